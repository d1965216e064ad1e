"""Find what a launch wastes, and try changes: compile them, and count the launch again."""
