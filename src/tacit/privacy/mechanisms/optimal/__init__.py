"""The optimal mechanism: planning, channels, draws and decoding."""
