"""The CUDA caching allocator of each torch release, simulated block for block."""
