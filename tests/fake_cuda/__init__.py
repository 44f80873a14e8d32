"""Real torch allocators, and the whole CUDA build of torch, on a machine without a GPU. See docs/development.md."""
