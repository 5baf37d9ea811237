"""The guarantee: channels in whole numbers, their exact audit, and how they are sampled."""
