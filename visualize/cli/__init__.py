"""The commands of `app.py` that serve no page, or the page of a capture."""
