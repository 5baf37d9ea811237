"""The service: a run with HTTP in front, for the roles source, consumer, subject and operator."""
