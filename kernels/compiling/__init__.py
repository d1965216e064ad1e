"""What the compiler makes of a kernel, for any GPU: its texts, read back as facts. Triton; runs in a compile worker."""
