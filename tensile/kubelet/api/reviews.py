"""Asks the upper cluster to review who somebody is and what it may, a few questions at a time.

Whoever reaches a port can show tokens that it has made up, and each is a question. They share a connection, and its
rate, with all that the engine writes above, so only a few are on their way at one time, and who asks in vain, or shows
ever other tokens, is turned away unasked after a while.
"""

import asyncio
import time
from collections.abc import Callable
from http import HTTPStatus
from typing import TypeVar

import msgspec

from tensile.allowance import Allowances
from tensile.cluster import Cluster
from tensile.errors import ClusterError
from tensile.kubelet.api.refusal import Refused
from tensile.kubelet.api.target import Log
from tensile.objects import UPPER, Kind, Manifest, Ref

REVIEW_SECONDS = 10.0
"""How long a review may take, the wait for its turn included."""

AT_ONCE = 8
_UNANSWERED = "the upper cluster could not be asked about this request: try again"
_REMEMBERED = 4096

Answer = TypeVar("Answer", bound=msgspec.Struct)


class Reviews:
    """Reviews of one kind. `rate` is the burst, and the seconds for one more, that each party has; `whose` says which.

    Neither the spec nor the words of an error are logged or told: a token may be in them.
    """

    def __init__(
        self, upper: Cluster, log: Log, rate: tuple[int, float], whose: str, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._upper = upper
        self._log = log
        self._whose = whose
        self._clock = clock
        self._turns = asyncio.Semaphore(AT_ONCE)
        self._allowed: Allowances[str] = Allowances(*rate, limit=_REMEMBERED)

    async def ask(
        self, kind: Kind, spec: Manifest, expected: type[Answer], known: Callable[[], bool] = lambda: False
    ) -> Answer | None:
        """Return the upper cluster's answer; 503 when there is none to rely on.

        Returns None where it is `known` by the time that the question has its turn.
        """
        try:
            async with asyncio.timeout(REVIEW_SECONDS), self._turns:
                return None if known() else await self._asked(kind, spec, expected)
        except (ClusterError, TimeoutError, msgspec.MsgspecError) as error:
            status = error.status if isinstance(error, ClusterError) else 0
            self._log.warning(
                "the upper cluster did not review a request", review=kind.name, why=type(error).__name__, status=status
            )
        raise Refused(HTTPStatus.SERVICE_UNAVAILABLE, _UNANSWERED)

    async def _asked(self, kind: Kind, spec: Manifest, expected: type[Answer]) -> Answer:
        body = {"apiVersion": kind.api, "kind": kind.name, "spec": spec}
        return msgspec.json.decode(await self._upper.create(Ref(UPPER, kind, "", ""), body), type=expected)

    def check(self, party: str) -> None:
        """Refuse with 429 a party that has used up what it has."""
        if self._allowed.left(party, self._clock()):
            raise Refused(HTTPStatus.TOO_MANY_REQUESTS, f"too many requests of this {self._whose}: try again later")

    def charge(self, party: str) -> None:
        """Count one against a party."""
        self._allowed.take(party, self._clock())
