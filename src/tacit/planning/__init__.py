"""From history to a plan: quality, budgets, and the least epsilon that is enough."""
