"""The whole chain without a GPU: recorded traces, a simulated allocator, real agents, a real sidecar."""
