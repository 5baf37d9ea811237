"""Evaluation: data sets, baselines, experiments and figures."""
