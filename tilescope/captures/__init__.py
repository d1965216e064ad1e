"""Start recordings, and read the files that they write."""
