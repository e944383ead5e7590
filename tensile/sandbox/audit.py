"""Reads an apiserver's audit log: who asked for what, one record a request.

It is how a test counts what the engine writes without believing the engine. A record is written when the request is
over, which may be a moment after its answer arrived.
"""

import json
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

Record = dict[str, Any]

WRITES = frozenset({"create", "update", "patch", "delete", "deletecollection"})


_TAIL = 1 << 20
"""Bytes at the end of a log in which its last line begins: no record is longer."""


def position(log: Path) -> int:
    """Return where the last whole record ends now, in bytes, to read on from later."""
    if not log.exists():
        return 0
    with log.open("rb") as file:
        end = file.seek(0, os.SEEK_END)
        start = file.seek(max(0, end - _TAIL))
        return start + file.read(end - start).rfind(b"\n") + 1


def read(log: Path, start: int = 0) -> list[Record]:
    """Return the whole records after a position; a line that is still being written is left for the next time."""
    if not log.exists():
        return []
    with log.open("rb") as file:
        file.seek(start)
        whole, _, _ = file.read().rpartition(b"\n")
    return [json.loads(line) for line in whole.splitlines()]


def writes(records: Iterable[Record], agent: str, *, without: Sequence[str] = ()) -> list[Record]:
    """Return the records of requests that change something.

    Args:
        records: from `read`.
        agent: what the caller's User-Agent begins with, e.g. `tensile/`.
        without: resources that do not count, e.g. `leases`.
    """
    return [
        record
        for record in records
        if record["verb"] in WRITES
        and record.get("userAgent", "").startswith(agent)
        and record.get("objectRef", {}).get("resource") not in without
    ]
