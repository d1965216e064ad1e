"""C[M, N] = A[M, K] @ B[K, N]."""
