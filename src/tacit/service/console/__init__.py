"""The console: server-rendered pages for each role."""
