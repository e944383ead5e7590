"""What the engine would say of itself now, put together from those who know it."""

from collections.abc import Callable
from datetime import datetime
from typing import TYPE_CHECKING

from tensile.reconcile.reading import Reading
from tensile.status.report import Report
from tensile.status.verdict import Verdict

if TYPE_CHECKING:
    from tensile.status.lowers import Row


class Standing:
    """The topology's verdict, and where to ask for the rest. `now` gives the time in UTC.

    `lowers` gives the lowers' rows, None while they are not known; `waits` says what the engine waits for, `pending`
    what of the topology in force has to wait, each in words.
    """

    def __init__(self, now: Callable[[], datetime]) -> None:
        self.verdict = Verdict()
        self.topology = ""
        self.lowers: Callable[[], list[Row] | None] = lambda: None
        self.waits: Callable[[], str] = lambda: ""
        self.pending: Callable[[], tuple[str, ...]] = lambda: ()
        self._now = now

    def take(self, reading: Reading, restart: tuple[str, ...] = ()) -> None:
        """Take what became of one more state of the topology's text; `restart` says what of it is not in force."""
        self.verdict = self.verdict.after(reading, self._now(), restart)
        if reading.topology is not None and not self.topology:
            self.topology = reading.topology.name

    def report(self) -> Report:
        """Give the whole picture."""
        lowers = self.lowers()
        verdict = self.verdict.pending(self.pending())
        return Report(self.topology, verdict, None if lowers is None else tuple(lowers), self.waits())
