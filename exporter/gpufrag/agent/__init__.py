"""The agent: samples the allocator from inside the training process and publishes one file. It does no harm."""
