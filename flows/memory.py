"""What the C library does with memory that is freed, where it has such settings."""

import ctypes
from contextlib import suppress
from functools import lru_cache

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # of glibc's mallopt
KEPT_BYTES, ARRAY_BYTES = 1 << 28, 1 << 25  # freed memory that a process keeps, and of the largest array that is kept so


@lru_cache(maxsize=1)
def keep_memory() -> None:
    """Has glibc keep freed arrays for the next ones, which a next part of a tape or replay asks for as large. Handing them back
    takes a twentieth of a long replay; a thread by default gives each back, and is then half as long in getting pages again as in
    computing."""
    with suppress(AttributeError, OSError, TypeError):
        for setting, n_bytes in ((M_TRIM_THRESHOLD, KEPT_BYTES), (M_MMAP_THRESHOLD, ARRAY_BYTES)):
            ctypes.CDLL(None).mallopt(setting, n_bytes)
