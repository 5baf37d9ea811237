"""Specifications: YAML -> checked objects."""
