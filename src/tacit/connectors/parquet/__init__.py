"""Parquet files as sources: `source` is the way in."""
