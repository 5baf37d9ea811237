"""Raw tuples become typed events."""
