"""The compiler, for any GPU: its texts read back as facts. Needs Triton; runs in a compile worker."""
