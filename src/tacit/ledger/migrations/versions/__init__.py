"""One module for each migration; it never changes after it was published."""
