"""A copy of the agent without the rest: what an init container puts where a job's own Python finds it."""
