"""How a kernel is run: session (parent), worker (child), compiler, check, timing, interpreter."""
