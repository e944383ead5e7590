"""Settles the process's memory once the first lists are in: what stays is set apart, what they took is given back.

Lists come as pages of megabytes, beside which what is kept of them is allocated. The C library keeps such pages for
later use, a third of all memory here, until it is told otherwise; and the collector would go through all that stays
again and again.
"""

import ctypes
import gc

_M_MMAP_THRESHOLD = -3
_LARGE = 1 << 19
"""Bytes from which on a block is one of its own, which goes back to the system when it is freed.

Twice what a TLS connection sets aside for each read: a block of its own for each of those would cost three system calls
and a page fault, thousands of times a second.
"""


def keep_large_apart() -> None:
    """Have what is large, such as a page of a list, never lie between what stays; the C library else learns to."""
    tune = getattr(ctypes.CDLL(None), "mallopt", None)
    if tune is not None:
        tune(_M_MMAP_THRESHOLD, _LARGE)


def set_apart() -> None:
    """Take what there is now out of the collector's sight: it stays for as long as the engine runs."""
    gc.collect()
    gc.freeze()


def give_back() -> None:
    """Have the C library return what is free to the system; one that cannot be told does as it likes."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
