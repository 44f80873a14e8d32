"""The whole chain without a GPU: recorded traces on a simulated allocator, real agents, a real sidecar."""
