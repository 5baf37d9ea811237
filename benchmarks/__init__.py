"""Benchmarks: the engine against others that do the same job; equal answers are checked."""
