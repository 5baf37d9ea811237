"""Data to try things on: generated taxi trips."""
