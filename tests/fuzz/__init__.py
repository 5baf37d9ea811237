"""Parsers against hostile input: a corpus that every run of the tests replays, and a fuzzer."""
