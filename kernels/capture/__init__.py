"""Record the launches of a script, and read the file that holds them."""
