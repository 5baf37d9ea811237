"""Turn history into a plan: expected quality, shares of epsilon, and the least epsilon."""
