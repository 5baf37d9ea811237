"""Raw tuples to typed events: the subject, the time and the event types of each tuple."""
