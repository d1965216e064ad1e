"""Compile kernels for any GPU, and read facts from the resulting IR, PTX and SASS. Needs Triton."""
