"""Reports of launches, as JSON and as text."""
