"""What the fork server of `pool` does once, and each worker would otherwise do before its first compile."""

from triton.runtime.cache import triton_key

from tilescope.record import capture_file, patches  # noqa: F401

triton_key()  # hashes the files of Triton, and keeps the result
