"""What a specification means to people: odds, leaks, what is promised and what is not."""
