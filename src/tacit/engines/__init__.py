"""Engines: runs on one machine or on many."""
