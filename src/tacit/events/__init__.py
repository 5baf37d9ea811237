"""Raw tuples become typed events: who, when, and of which event types."""
