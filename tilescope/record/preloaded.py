"""What a fork server does once, and its workers would otherwise do before their first compile."""

from triton.runtime.cache import triton_key

from tilescope.record import capture_file, patches  # noqa: F401

triton_key()  # hashes the files of Triton, and keeps the result
