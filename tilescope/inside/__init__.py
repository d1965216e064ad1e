"""Inspect the programs of a launch: their instructions, shared memory, registers, layout conversions and pipelines."""
