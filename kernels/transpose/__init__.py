"""B[N, M] = A[M, N] transposed."""
