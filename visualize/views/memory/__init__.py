"""The Memory view: the bytes that each warp request touches, as the textbook and the compiler have it, and why."""
