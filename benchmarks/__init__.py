"""Benchmarks: the engine against others that do the same job, answers checked equal."""
