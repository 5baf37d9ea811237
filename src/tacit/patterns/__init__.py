"""Patterns for queries and private patterns: the tree, the language, and matching."""
