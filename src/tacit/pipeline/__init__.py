"""The whole flow, from tuples to answers."""
