"""Read an apiserver's audit log, which has one record per request.

Tests count the engine's writes with it, independently of the engine. A record is written when the request is complete,
which may be a moment after its response arrived.
"""

import json
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

Record = dict[str, Any]
_TAIL = 1 << 20
"""The number of bytes at the end of a log that contain the beginning of its last line: no record is longer."""
WRITES = frozenset({"create", "update", "patch", "delete", "deletecollection"})


def position(log: Path) -> int:
    """Return the offset in bytes after the last complete record, to read on from later."""
    if not log.exists():
        return 0
    with log.open("rb") as file:
        end = file.seek(0, os.SEEK_END)
        start = file.seek(max(0, end - _TAIL))
        return start + file.read(end - start).rfind(b"\n") + 1


def read(log: Path, start: int = 0) -> list[Record]:
    """Return the complete records after an offset; a line that is still being written is left for the next call."""
    if not log.exists():
        return []
    with log.open("rb") as file:
        file.seek(start)
        whole, _, _ = file.read().rpartition(b"\n")
    return [json.loads(line) for line in whole.splitlines()]


def writes(records: Iterable[Record], agent: str, *, without: Sequence[str] = ()) -> list[Record]:
    """Return the records of requests that change something.

    Args:
        records: the records from `read`.
        agent: the beginning of the caller's User-Agent, e.g. `tensile/`.
        without: resources that do not count, e.g. `leases`.
    """
    return [
        record
        for record in records
        if record["verb"] in WRITES
        and record.get("userAgent", "").startswith(agent)
        and record.get("objectRef", {}).get("resource") not in without
    ]
