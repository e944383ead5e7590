"""One state of a topology's text after another, each judged: what it says, or why it is refused.

The same for a file and for a ConfigMap. A refused state is an answer like any other, because whoever wrote it has to be
told; it takes nothing away from the last good one, against which the next is compared.
"""

import asyncio
from collections.abc import Callable
from typing import NamedTuple

import structlog

from tensile.errors import TensileError
from tensile.topology import Topology

_LARGE = 64 * 1024
_log = structlog.get_logger("tensile.reconcile.source")


class Text(NamedTuple):
    """A topology's text as it was found: how large it is in bytes, its sha256 in hex ("" where there is no text).

    `version` and `uid` are those of the ConfigMap that holds it, "" for a file.
    """

    size: int = 0
    sha256: str = ""
    version: str = ""
    uid: str = ""


class Reading(NamedTuple):
    """What became of a text: its topology, or the error that refuses it.

    `changed` says that the topology means something else than the last good one.
    """

    text: Text
    topology: Topology | None = None
    error: TensileError | None = None
    changed: bool = False


class Judge:
    """Holds each state against the last good one, which is `good`; `name` is where it is from, for the log."""

    def __init__(self, good: Topology, name: str) -> None:
        self.good = good
        self._name = name
        self._doubted = False

    async def judge(self, text: Text, parse: Callable[[], Topology]) -> Reading:
        """Judge a state; `parse` raises TensileError for a bad one."""
        try:
            topology = await parsed(text, parse)
        except TensileError as error:
            self._doubted = True
            return Reading(text, error=error)
        if self._doubted:
            _log.info("topology is valid again", file=self._name)
            self._doubted = False
        changed = topology != self.good
        self.good = topology
        return Reading(text, topology, changed=changed)


async def parsed(text: Text, parse: Callable[[], Topology]) -> Topology:
    """Parse a text; a large one takes long enough to hold up everything else, so it has a thread of its own."""
    return await asyncio.to_thread(parse) if text.size > _LARGE else parse()
