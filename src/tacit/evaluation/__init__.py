"""How well it works: data sets, baselines, experiments and figures."""
