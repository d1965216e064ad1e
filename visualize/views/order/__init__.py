"""The Order view: which program computes which tile, which blocks it loads, and how many bytes reach DRAM."""
