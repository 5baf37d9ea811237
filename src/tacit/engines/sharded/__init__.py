"""An engine in pieces: readers of partitions, shards of subjects, and one who collects.

Each piece is a plain object with a state that is bytes, so that a distributed engine can put it
wherever it likes and move it. None of them knows which engine that is.
"""
