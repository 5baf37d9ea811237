"""Tests of specifications."""
