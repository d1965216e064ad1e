"""The Memory view: the bytes that each warp request touches, in the textbook model and as compiled, and why."""
