"""What became of the topology's text: which one is in force since when, and what is wrong with a later one."""

from datetime import datetime
from typing import Any, NamedTuple

from tensile.objects import timestamp
from tensile.reconcile.reading import Reading, Text

_LONGEST = 16 * 1024
"""Characters of an error that are told: more than a person reads, and far less than a ConfigMap holds."""


class Accepted(NamedTuple):
    """The text in force, since when, what of it needs a restart, and what comes into force later by itself."""

    text: Text
    time: datetime
    restart: tuple[str, ...] = ()
    pending: tuple[str, ...] = ()


class Rejected(NamedTuple):
    """A later text that changed nothing, why, and since when."""

    text: Text
    time: datetime
    error: str


class Verdict(NamedTuple):
    """What is known of the topology's text at present."""

    accepted: Accepted | None = None
    rejected: Rejected | None = None

    @property
    def state(self) -> str:
        """One word for it: Pending, Accepted or Rejected."""
        if self.rejected is not None:
            return "Rejected"
        return "Pending" if self.accepted is None else "Accepted"

    def after(self, reading: Reading, now: datetime, restart: tuple[str, ...] = ()) -> "Verdict":
        """Give the verdict after one more state; the same text as before keeps its time.

        `restart` says what of it is not in force until the engine is started again.
        """
        if reading.error is not None:
            return self._replace(rejected=Rejected(reading.text, now, _shortened(str(reading.error))))
        before = self.accepted
        if before is not None and before.text.sha256 == reading.text.sha256:
            return Verdict(before._replace(text=reading.text, restart=restart))
        return Verdict(Accepted(reading.text, now, restart))

    def pending(self, words: tuple[str, ...]) -> "Verdict":
        """Give the verdict with what of the text in force has to wait."""
        return self if self.accepted is None else self._replace(accepted=self.accepted._replace(pending=words))

    def document(self) -> dict[str, Any]:
        """Give it as JSON: `state`, and where there is one `accepted` and `rejected`."""
        found: dict[str, Any] = {"state": self.state}
        if self.accepted is not None:
            found["accepted"] = _told(self.accepted.text, self.accepted.time)
            if self.accepted.restart:
                found["accepted"]["restartNeeded"] = list(self.accepted.restart)
            if self.accepted.pending:
                found["accepted"]["pending"] = list(self.accepted.pending)
        if self.rejected is not None:
            found["rejected"] = {"error": self.rejected.error, **_told(self.rejected.text, self.rejected.time)}
        return found


def _told(text: Text, time: datetime) -> dict[str, str]:
    version = {"resourceVersion": text.version} if text.version else {}
    return {**({"sha256": text.sha256} if text.sha256 else {}), **version, "time": timestamp(time)}


def _shortened(words: str) -> str:
    return words if len(words) <= _LONGEST else words[: _LONGEST - 4] + "\n..."
