"""Optimal: its planning hook, its channels, its draws and their decoding."""
