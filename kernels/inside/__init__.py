"""What happens inside one program: its instructions, shared memory, registers and pipeline."""
