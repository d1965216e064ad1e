"""Searching a space of configs: what is compiled ahead, tried in which order, raced, and ranked in the end."""
