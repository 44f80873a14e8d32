"""Checkpoints that all ranks of a job take at one agreed step."""
