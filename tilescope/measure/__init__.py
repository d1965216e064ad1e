"""Run and measure kernels: sessions, worker processes, checks, timing, counters and timelines."""
