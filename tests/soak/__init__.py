"""Tests that take long: `make soak` runs them, `make test` does not."""
