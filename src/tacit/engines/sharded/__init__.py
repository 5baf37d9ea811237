"""A distributed engine: readers of partitions, shards of subjects, and a collector.

Each part is a plain object whose state is bytes, so a distributed engine can place and move it
freely. No part depends on a particular engine.
"""
