"""The commands of `tilescope`."""
