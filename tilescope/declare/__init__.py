"""Declare kernels, knobs, problems, GPUs and experiments."""
