"""The Library: every shipped recording, and predictions compared with the recorded counts."""
