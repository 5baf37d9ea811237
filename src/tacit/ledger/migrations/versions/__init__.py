"""One module for each step, never changed after it was published."""
