"""Read TTGIR, PTX and SASS, evaluate addresses, and count the memory requests of a launch."""
