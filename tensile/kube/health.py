"""The health of a cluster's connection, the identity of the cluster, and the permissions that it denies.

An idle watch is no silence. Silence begins with a failure and ends with any response, even an error, or with an event
of a watch. Events of older watches do not end it after a rejected credential, theirs or ours, and while no new
connection can be opened: an apiserver that shuts down serves its open watches for up to a minute.

After a lost connection, a rejected credential or a change of access, the cluster must prove its identity before any
other request is sent. So it must when a new connection leads to a server with an unknown certificate. An idle
connection ends without an error, and another cluster may have the address by then.

A denied permission is requested again until it is granted, and what needs it waits. It is logged once, however many
informers meet it, and again when it is granted. A cluster may deny with changing messages and grant in between, so log
lines are limited and the first message is kept.
"""

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Any, NamedTuple

import structlog

from tensile.errors import Denied, Unreachable
from tensile.kube.credentials import Access
from tensile.kube.limits import AT_ONCE, EVERY, KeyedTokenBuckets
from tensile.kube.net import cancel_and_wait
from tensile.objects import Kind

NOT_CONTACTED = "not contacted yet"
"""The error of a cluster that has not received a request yet."""

ADVICE = "`tensile doctor` lists the missing permissions and how to grant them"
REWORDED_SECONDS = 60.0
"""Seconds after which a new message for the same denial counts."""
_log = structlog.get_logger("tensile.kube.health")


class WrongCluster(Unreachable):
    """Another cluster responds at this address than before. Nothing is read from it or written to it."""

    title = "refused"


class SharedCluster(WrongCluster):
    """The cluster at this address is open already under another name: two nodes would run the same pods."""


class AccessProblem(NamedTuple):
    """Why a cluster must not be used under a name, and what to do about it ("": its address is wrong)."""

    what: str
    advice: str = ""


CheckIdentity = Callable[[str], AccessProblem | None]
"""Returns why the cluster of a UID must not be used under this name, None if it may."""
_IDENTIFYING = "read Namespace kube-system"


def another_cluster(access: Access, uid: str, pin: str, *, is_upper: bool, objection: AccessProblem | None) -> str:
    """Return the message for a response from another cluster than the one with UID `pin`.

    `objection` is the conflict of that cluster with another name. Then its kubeconfig is right, but not for this name.
    """
    remedy = "restart the engine" if is_upper else "add it as a new lower"
    advice = f"correct the server in {access.origin}, or, if intended, {remedy}"
    conflict = ""
    if objection is not None and not is_upper:
        conflict, advice = f", {objection.what}", objection.advice or _other_kubeconfig(access)
    return f"a different cluster responds at {access.url}{conflict} (kube-system UID {uid}, expected {pin}): {advice}"


def same_cluster(access: Access, objection: AccessProblem) -> str:
    """Return the message for a cluster that is open already under another name."""
    advice = objection.advice or f"{_other_kubeconfig(access)}, or remove the lower from the topology"
    return f"{access.url} is {objection.what}: {advice}"


def _other_kubeconfig(access: Access) -> str:
    return f"use the kubeconfig of another cluster than {access.origin}"


class Health:
    """The connection state of one cluster. Times are in seconds of one monotonic clock.

    `last_contact` is the time of the last response, None before the first. `error` is the present error, "" for none.
    `wrong` is true while another cluster responds at the address, and `shared` while that one is open under another
    name. `is_locked_out` is true while one side rejects the other's credential, `rejected` if it is ours that was
    rejected last, and `excessive` while the cluster counts as sending too much. `unconnected` is true if the last
    failure was a connection that could not be opened. `unproven` is the denial of what would show the cluster's
    identity, "" for none: until then it gets no requests.
    """

    def __init__(self, now: float) -> None:
        self.last_contact: float | None = None
        self.error = NOT_CONTACTED
        self.wrong = False
        self.shared = False
        self.is_locked_out = False
        self.rejected = False
        self.excessive = False
        self.unconnected = False
        self.unproven = ""
        self._excessive_until = 0.0
        self._silent_since: float | None = now
        self._access_since = now

    def record_access_change(self, now: float) -> None:
        """Record that another, untried access is used from now on. Silence continues."""
        self._access_since = now

    def record_response(self, now: float) -> None:
        """Record a response to a request."""
        self.is_locked_out = self.rejected = self.unconnected = False
        self.record_event(now)

    def record_event(self, now: float) -> None:
        """Record an event of an open watch."""
        self.last_contact = now
        if self.excessive and now >= self._excessive_until:
            self.excessive = False
        if not (self.wrong or self.is_locked_out or self.excessive or self.unconnected):
            self.error = ""
            self._silent_since = None

    def record_failure(self, now: float, error: str, *, unconnected: bool = False) -> None:
        """Record a request without a response. `unconnected`: no connection could be opened for it."""
        self.error, self.rejected, self.unconnected = error, False, unconnected
        if self._silent_since is None:
            self._silent_since = now

    def record_wrong_cluster(self, now: float, error: str, *, shared: bool = False) -> None:
        """Record that another cluster responds, or one under another name: silence until `record_accepted`."""
        self.wrong = True
        self.shared = shared
        self.record_failure(now, error)

    def record_rejection(self, now: float, error: str, *, ours: bool = False) -> None:
        """Record that a credential was rejected, theirs or ours. Counts as silence until `record_response`."""
        self.record_failure(now, error)
        self.is_locked_out, self.rejected = True, ours

    def record_excess(self, now: float, error: str, until: float) -> None:
        """Record that the cluster sent too much. Counts as silence until it responds at `until` or later."""
        self.excessive, self._excessive_until = True, until
        self.record_failure(now, error)

    def record_accepted(self, now: float) -> None:
        """Record that the right cluster responds."""
        self.wrong = self.shared = False
        self.unproven = ""
        self.record_response(now)

    def unreachable_for(self, now: float) -> float:
        """Return the seconds for which the cluster has not responded, 0 if it responds."""
        return 0.0 if self._silent_since is None else max(now - self._silent_since, 0.0)

    def tried_for(self, now: float) -> float:
        """Return the seconds for which the present access has been in use."""
        return now - self._access_since


class ClusterIdentity:
    """The identity of one cluster, the UID of its namespace kube-system, and whether the cluster has to prove it.

    `pin` is the required UID, "" for the first UID that the cluster returns. `in_doubt` is true until the next proof.
    `admit` is called for each UID. What is found out is recorded in `health`.
    """

    def __init__(
        self, cluster: str, health: Health, *, pin: str, admit: CheckIdentity, clock: Callable[[], float]
    ) -> None:
        self.pin = pin
        self.in_doubt = bool(pin)
        self._cluster = cluster
        self._health = health
        self._admit = admit
        self._clock = clock
        self._proven: set[bytes] = set()
        """The certificates of servers that were proven to be this cluster's."""
        self._proving: asyncio.Task[object] | None = None

    def is_proven(self, certificate: bytes) -> bool:
        """Report whether a server was proven to be this cluster's. Before an identity is pinned, any is."""
        return not self.pin or certificate in self._proven

    def require_proof(self) -> None:
        """Require a new proof, if an identity is pinned."""
        self.in_doubt = self.in_doubt or bool(self.pin)

    def record_hang(self, message: str) -> Unreachable:
        """Record that the cluster seems to hang, and return the error."""
        self.require_proof()
        self._health.record_failure(self._clock(), message)
        return Unreachable(message, cluster=self._cluster, doing=_IDENTIFYING)

    def accept_any(self) -> None:
        """Accept whichever cluster responds next as the right one."""
        self.pin = ""
        self._proven.clear()

    def verify(self, uid: str, certificate: bytes, access: Access, *, is_current: bool) -> None:
        """Accept the UID that a server with that certificate returned. Raises WrongCluster or SharedCluster.

        `access` is the one in use, and `is_current` whether the UID was read with it.
        """
        objection = self._admit(uid)
        if self.pin and uid != self.pin:
            self._proven.clear()
            message = another_cluster(access, uid, self.pin, is_upper=not self._cluster, objection=objection)
            raise self._refused(WrongCluster, message)
        if objection is not None:
            raise self._refused(SharedCluster, same_cluster(access, objection))
        self.pin = uid
        self._proven.add(certificate)
        self.in_doubt = self.in_doubt and not is_current
        self._health.record_accepted(self._clock())

    async def prove(self, identify: Callable[[], Coroutine[Any, Any, object]]) -> None:
        """Call `identify`, once for all waiting calls. Raises the error that prevents the proof."""
        if self._proving is None or self._proving.done():
            self._proving = asyncio.create_task(identify())
            self._proving.add_done_callback(lambda task: task.cancelled() or task.exception())
        await asyncio.shield(self._proving)

    async def close(self) -> None:
        """Cancel a proof in progress."""
        await cancel_and_wait(self._proving)

    def _refused(self, error: type[WrongCluster], message: str) -> WrongCluster:
        """Record that the cluster must not be used, and return the error."""
        self.in_doubt = True
        self._health.record_wrong_cluster(self._clock(), message, shared=error is SharedCluster)
        return error(message, cluster=self._cluster, doing=_IDENTIFYING)


class Denials:
    """The permissions that one cluster denies, by the informer that needs them.

    `cluster` is its name, "" for the upper one. `clock` returns seconds.
    """

    def __init__(self, cluster: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._cluster = cluster or "upper"
        self._clock = clock
        self._lines: KeyedTokenBuckets[str] = KeyedTokenBuckets(AT_ONCE, EVERY, limit=1)
        self._denied: dict[object, tuple[Denied, float]] = {}

    @property
    def text(self) -> str:
        """All present denials, "" for none."""
        return "; ".join(sorted(self._messages()))

    @property
    def unnamed(self) -> str:
        """The same without the cluster's name."""
        return "; ".join(sorted({error.description for error, _ in self._denied.values()}))

    def of(self, informer: object) -> Denied | None:
        """Return the present denial of an informer with advice for the user, None for none."""
        denial, _ = self._denied.get(informer, (None, 0.0))
        return denial and Denied(f"{denial.message}: {ADVICE}", cluster=denial.cluster, doing=denial.doing)

    def record(self, informer: object, kind: Kind, error: Denied) -> None:
        """Record that an informer is not allowed to watch a kind."""
        denial, since = self._denied.get(informer, (None, 0.0))
        if denial is not None and denial.doing == error.doing and self._clock() - since < REWORDED_SECONDS:
            return
        if str(error) not in self._messages() and self._may_log():
            _log.warning("permission denied", cluster=self._cluster, kind=kind.name, error=str(error), advice=ADVICE)
        self._denied[informer] = error, self._clock()

    def end(self, informer: object, kind: Kind) -> None:
        """Record that an informer is allowed to watch a kind."""
        denial, _ = self._denied.pop(informer, (None, 0.0))
        if denial is not None and str(denial) not in self._messages() and self._may_log():
            _log.info("permission granted again", cluster=self._cluster, kind=kind.name)

    def forget(self, informer: object) -> None:
        """Remove an informer that has ended."""
        self._denied.pop(informer, None)

    def _may_log(self) -> bool:
        """Report whether another line may be written now, and count it."""
        return self._lines.take(self._cluster, self._clock())

    def _messages(self) -> set[str]:
        return {str(error) for error, _ in self._denied.values()}
