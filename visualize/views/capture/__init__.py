"""The page of a capture: the launches of a user's script, and the requests of each."""
