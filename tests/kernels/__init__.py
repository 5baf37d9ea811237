"""Tests of how kernels are compiled and kept."""
