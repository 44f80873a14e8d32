"""The PyTorch source: CUDA and ROCm builds."""
