"""B[M, N] = softmax of each row of A[M, N]: a family that is added to a copy of the tree, as one folder."""
