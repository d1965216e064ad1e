"""What `python app.py` does besides serving the page: commands for a terminal, and the flags of the page."""
