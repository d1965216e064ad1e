"""A package of one kernel, as somebody else would declare it: TILESCOPE_KERNELS=tests.own_kernels."""
