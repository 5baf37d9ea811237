"""The ledger: charges, released answers and checkpoints."""
