"""Read a kernel's SASS: the parser, the table of opcodes, control flow and semantics."""
