"""Tests of baselines."""
