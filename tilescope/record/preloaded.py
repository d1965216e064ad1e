"""Work that the fork server does once, so that its workers need not do it before their first compile."""

from triton.runtime.cache import triton_key

from tilescope.record import capture_file, patches  # noqa: F401

triton_key()  # hashes Triton's files and caches the result
