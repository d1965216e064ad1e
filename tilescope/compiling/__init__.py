"""Compile the kernels of this project for any GPU, without one. Needs Triton."""
