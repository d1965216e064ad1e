"""Record the launches of a script in the user's process."""
