"""A checkpoint that all ranks of a job save at one step: protocol, promise and participant in the rank, coordinator."""
