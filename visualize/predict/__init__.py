"""Predictions from index arithmetic alone. NumPy only."""
