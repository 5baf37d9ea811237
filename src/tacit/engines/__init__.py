"""The flow on a machine, or on many."""
