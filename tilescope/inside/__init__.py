"""Inspect the programs of a launch: their instructions, shared memory, registers, layouts and pipelines."""
