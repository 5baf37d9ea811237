"""Charges and released answers: what was spent, and what was said for it."""
