"""Tests of how the engine reduces its memory after the first lists."""

import gc
import subprocess
import sys
from pathlib import Path

import pytest

from tensile.engine import run as memory
from tensile.kube.store import decoded, forget_decoded


def test_set_apart_excludes_the_present_objects_from_garbage_collection() -> None:
    """Later collections only go through newer objects; garbage is collected before the others are frozen."""
    before, stays = gc.get_freeze_count(), [[] for _ in range(100_000)]
    memory.freeze_objects()
    assert gc.get_freeze_count() > before + len(stays) // 2


def test_give_back_returns_freed_memory_to_the_system() -> None:
    """Pages between blocks that are still in use are not returned by themselves."""
    kept, freed = [], []
    for number in range(2000):
        freed.append(bytes([number % 256]) * 20_000)
        kept.append(bytes([number % 256]) * 600)
    full = resident()
    freed.clear()
    memory.return_free_memory()
    assert full - resident() > 20_000_000
    assert len(kept) == 2000


_READING = """
from tensile.engine import run as memory
from test_memory import resident

memory.map_large_allocations()
kept, before = [], resident()
for number in range(40):
    pages = [bytes([number]) * 2_000_000 for _ in range(4)]
    kept += [bytes(page[:3_000]) for page in pages for _ in range(5)]
    del pages
print(resident() - before)
"""


@pytest.mark.process
def test_large_blocks_are_kept_apart_from_lasting_ones() -> None:
    """The pages of lists are returned as soon as they are read: little more than what was kept remains.

    Without this setting, the C library keeps four times as much.
    """
    run = subprocess.run(
        [sys.executable, "-c", _READING], cwd=Path(__file__).parent, capture_output=True, text=True, check=True
    )
    assert int(run.stdout) < 5_000_000


def test_forget_decoded_drops_the_decoded_objects() -> None:
    """The next caller decodes the same bytes again and gets a new object."""
    raw = b'{"kind":"Pod"}'
    first = decoded(raw)
    assert decoded(raw) is first
    forget_decoded()
    again = decoded(raw)
    assert again == first
    assert again is not first


def resident() -> int:
    """Return the resident memory of this process in bytes."""
    with open("/proc/self/statm") as file:  # noqa: PTH123 - a file of the kernel
        return int(file.read().split()[1]) * 4096
