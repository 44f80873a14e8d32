"""The sidecar: reads the agents' files and NVML, and serves what they say together."""
