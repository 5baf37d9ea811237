"""What a specification means: odds, shared attributes, what is guaranteed and what is not."""
