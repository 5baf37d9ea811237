"""Answers to queries, as columns and as frames."""
