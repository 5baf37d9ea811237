"""Connectors: sources of tuples and sinks of answers, one module per kind."""
