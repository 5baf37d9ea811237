"""From tuples to answers: the run loop, the engine, sources and sinks."""
