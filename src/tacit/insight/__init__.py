"""Insight into a specification or plan: explanation, audit, curves, and checks of a set-up."""
