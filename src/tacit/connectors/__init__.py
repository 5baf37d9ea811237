"""Where tuples come from and where answers go: a module for each kind of file."""
