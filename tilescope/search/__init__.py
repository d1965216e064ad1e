"""Search a space of configs: compile ahead, explore, race, and rank the finalists."""
