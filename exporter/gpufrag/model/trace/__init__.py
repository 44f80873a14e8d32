"""Recorded allocator traces: reading, rewinding, replaying and comparing settings."""
