"""Read TTGIR: parse it, and follow values and layouts through its operations."""
