"""Memory: what was released before, and public events, predict the private events of a window."""
