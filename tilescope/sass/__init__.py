"""What the instructions of a kernel's SASS do: the parser, the table of opcodes, control flow and semantics."""
