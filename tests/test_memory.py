"""What the engine does about its memory once the first lists are in."""

import gc

from tensile import memory


def test_what_stays_is_out_of_the_collectors_sight() -> None:
    """A collection goes through what came since only; what is garbage already is not kept."""
    before = gc.get_freeze_count()
    try:
        memory.set_apart()
        assert gc.get_freeze_count() > before
    finally:
        gc.unfreeze()


def test_what_was_freed_goes_back_to_the_system() -> None:
    """Pages that lie between what is kept cannot go back by themselves."""
    kept, freed = [], []
    for number in range(2000):
        freed.append(bytes([number % 256]) * 20_000)
        kept.append(bytes([number % 256]) * 600)
    full = resident()
    freed.clear()
    memory.give_back()
    assert full - resident() > 20_000_000
    assert len(kept) == 2000


def resident() -> int:
    """Give the bytes of this process that are in memory."""
    with open("/proc/self/statm") as file:  # noqa: PTH123 - a file of the kernel
        return int(file.read().split()[1]) * 4096
