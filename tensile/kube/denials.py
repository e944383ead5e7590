"""What a cluster does not let us follow: told once, however many lists meet it and however often, and when it is over.

A right that is missing ends nothing: what is denied is asked for again until it is granted. Meanwhile what needs it
waits, and nobody would hear why. A cluster may deny in other words each time, and grant in between; then it is heard
seldom, and the first words stay.
"""

import time
from collections.abc import Callable

import structlog

from tensile.errors import Denied
from tensile.objects import Kind
from tensile.telemetry import Ration

ADVICE = "`tensile doctor` says which rights are missing, and how to grant them"
REWORDED = 60.0
"""Seconds after which other words of the same denial count."""
_log = structlog.get_logger("tensile.kube.denials")


class Denials:
    """What one cluster denies, by whoever met it; `cluster` is its name, "" for the upper one, `clock` in seconds."""

    def __init__(self, cluster: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._cluster = cluster or "upper"
        self._clock = clock
        self._ration = Ration(clock)
        self._met: dict[object, Denied] = {}
        self._since: dict[object, float] = {}

    @property
    def words(self) -> str:
        """All that is denied at present, "" for nothing."""
        return "; ".join(sorted(self._said()))

    @property
    def unnamed(self) -> str:
        """The same without the cluster's name."""
        return "; ".join(sorted({error.words for error in self._met.values()}))

    def of(self, who: object) -> Denied | None:
        """Give what was denied to one last, with what to do about it; None where nothing is."""
        met = self._met.get(who)
        return met and Denied(f"{met.message}: {ADVICE}", cluster=met.cluster, doing=met.doing)

    def meet(self, who: object, kind: Kind, error: Denied) -> None:
        """Note that one is not let follow a kind."""
        met = self._met.get(who)
        if met is not None and met.doing == error.doing and self._clock() - self._since[who] < REWORDED:
            return
        if str(error) not in self._said() and self._ration.take():
            _log.warning("not allowed", cluster=self._cluster, kind=kind.name, error=str(error), advice=ADVICE)
        self._met[who], self._since[who] = error, self._clock()

    def end(self, who: object, kind: Kind) -> None:
        """Note that one is let follow a kind."""
        met = self._met.pop(who, None)
        if met is not None and str(met) not in self._said() and self._ration.take():
            _log.info("allowed again", cluster=self._cluster, kind=kind.name)

    def forget(self, who: object) -> None:
        """Note that one follows nothing any more."""
        self._met.pop(who, None)

    def _said(self) -> set[str]:
        return {str(error) for error in self._met.values()}
