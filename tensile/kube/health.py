"""Whether a cluster answers, as far as its traffic tells.

An open watch on which nothing happens is no silence: silence begins with a failure and ends with any answer, even a
refusal. One refusal is silence too, that of a credential, theirs or ours: nothing can be done there, and what watches
go on telling, which were opened before, does not change that.

What a cluster does not let us follow: told once, however many lists meet it and however often, and when it is over.

A right that is missing ends nothing: what is denied is asked for again until it is granted. Meanwhile what needs it
waits, and nobody would hear why. A cluster may deny in other words each time, and grant in between; then it is heard
seldom, and the first words stay.
"""

import time
from collections.abc import Callable
from typing import NamedTuple

import structlog

from tensile.errors import Denied, Unreachable
from tensile.kube.credentials import Access
from tensile.kube.limits import Ration
from tensile.objects import Kind

NOT_CONTACTED = "not contacted yet"
"""The trouble of a cluster that has not been asked anything."""


class WrongCluster(Unreachable):
    """Another cluster answers at this address than before: nothing is read from it or written to it."""

    title = "refused"


class SharedCluster(WrongCluster):
    """The cluster at this address is followed already, under another name: two nodes would run the same pods."""


class Objection(NamedTuple):
    """Why a cluster may not be the one of a name, and what to do about it ("": its address is wrong)."""

    what: str
    advice: str = ""


def another_cluster(access: Access, uid: str, pin: str, *, is_upper: bool) -> str:
    """Return what to say and do where a cluster answers that is not the one of UID `pin`."""
    meant = "restart" if is_upper else "take the lower out of the topology and give the new cluster a name of its own"
    return (
        f"another cluster answers at {access.url} than before (kube-system {uid} instead of {pin}): "
        f"nothing is done there; put the address in {access.origin} right, or, if it is meant, {meant}"
    )


def same_cluster(access: Access, objection: Objection) -> str:
    """Return what to say and do where a cluster answers that goes by another name already."""
    advice = objection.advice or f"put the address in {access.origin} right, or take the lower out of the topology"
    return f"{access.url} leads to {objection.what}: nothing is done there under this name; {advice}"


class Health:
    """What is known of one cluster's presence. Times are of one monotonic clock, in seconds.

    `last_contact` is the last answer, None before the first; `error` the present trouble, "" for none; `wrong` is true
    while another cluster answers in its place, `shared` while that is one that goes by another name, `shut_out`
    while it does not accept our credential or we not its own, `excessive` while it counts as one that sends too much.
    """

    def __init__(self, now: float) -> None:
        self.last_contact: float | None = None
        self.error = NOT_CONTACTED
        self.wrong = False
        self.shared = False
        self.shut_out = False
        self.excessive = False
        self._bearable_from = 0.0
        self._silent_since: float | None = now
        self._turned_at = now

    def turn(self, now: float) -> None:
        """Note that another way is taken from now on, which is as good as untried; the silence goes on."""
        self._turned_at = now

    def contact(self, now: float) -> None:
        """Note an answer to a request."""
        self.shut_out = False
        self.hear(now)

    def hear(self, now: float) -> None:
        """Note a word of a watch that is open."""
        self.last_contact = now
        if self.excessive and now >= self._bearable_from:
            self.excessive = False
        if not self.wrong and not self.shut_out and not self.excessive:
            self.error = ""
            self._silent_since = None

    def silence(self, now: float, error: str) -> None:
        """Note that an answer did not come."""
        self.error = error
        if self._silent_since is None:
            self._silent_since = now

    def refuse(self, now: float, error: str, *, shared: bool = False) -> None:
        """Note that another cluster answers, or one that goes by another name; counts as silence until `accept`."""
        self.wrong = True
        self.shared = shared
        self.silence(now, error)

    def shut(self, now: float, error: str) -> None:
        """Note that a credential is not accepted, theirs or ours; counts as silence until `contact`."""
        self.shut_out = True
        self.silence(now, error)

    def exceed(self, now: float, error: str, until: float) -> None:
        """Note that it sent too much; counts as silence until it answers at the time `until`, or later."""
        self.excessive, self._bearable_from = True, until
        self.silence(now, error)

    def accept(self, now: float) -> None:
        """Note that it is the cluster it should be."""
        self.wrong = self.shared = False
        self.contact(now)

    def unreachable_for(self, now: float) -> float:
        """Return for how many seconds the cluster has not answered, 0 when it does."""
        return 0.0 if self._silent_since is None else max(now - self._silent_since, 0.0)

    def tried_for(self, now: float) -> float:
        """Return for how many seconds the way there has been the one that it is."""
        return now - self._turned_at


ADVICE = "`tensile doctor` says which rights are missing, and how to grant them"
REWORDED = 60.0
"""Seconds after which other words of the same denial count."""
_log = structlog.get_logger("tensile.kube.health")


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
        """Return what was denied to one last, with what to do about it; None where nothing is."""
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
