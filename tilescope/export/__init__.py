"""Exports: a run as a standalone script or notebook, and a timeline as a Chrome trace."""
