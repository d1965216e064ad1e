"""Scripts for `app.py show`: common kernels, one per file. Each file's docstring says what to look for."""
