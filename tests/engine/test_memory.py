"""What the engine does about its memory once the first lists are in."""

import gc
import subprocess
import sys
from pathlib import Path

import pytest

from tensile.engine import run as memory
from tensile.kube.store import decoded, forget_decoded


def test_what_stays_is_out_of_the_collectors_sight() -> None:
    """A collection goes through what came since only; what is garbage already is not kept."""
    before, stays = gc.get_freeze_count(), [[] for _ in range(100_000)]
    memory.set_apart()
    assert gc.get_freeze_count() > before + len(stays) // 2


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


_READING = """
from tensile.engine import run as memory
from test_memory import resident

memory.keep_large_apart()
kept, before = [], resident()
for number in range(40):
    pages = [bytes([number]) * 2_000_000 for _ in range(4)]
    kept += [bytes(page[:3_000]) for page in pages for _ in range(5)]
    del pages
print(resident() - before)
"""


@pytest.mark.process
def test_what_is_large_does_not_lie_between_what_stays() -> None:
    """Pages of lists go back as soon as they were read: a fresh process holds not much more than what was kept of them.

    Left to itself the C library keeps four times as much.
    """
    run = subprocess.run(
        [sys.executable, "-c", _READING], cwd=Path(__file__).parent, capture_output=True, text=True, check=True
    )
    assert int(run.stdout) < 5_000_000


def test_what_was_decoded_is_dropped_on_demand() -> None:
    """It is decoded anew for who asks then."""
    raw = b'{"kind":"Pod"}'
    first = decoded(raw)
    assert decoded(raw) is first
    forget_decoded()
    again = decoded(raw)
    assert again == first
    assert again is not first


def resident() -> int:
    """Return the bytes of this process that are in memory."""
    with open("/proc/self/statm") as file:  # noqa: PTH123 - a file of the kernel
        return int(file.read().split()[1]) * 4096
