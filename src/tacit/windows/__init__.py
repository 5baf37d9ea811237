"""Events become windows: event time, the watermark, and the open windows' state."""
