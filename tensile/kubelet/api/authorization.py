"""Whether a caller may do what it asks: the upper cluster decides, by SubjectAccessReview on the Node object.

So the rights are those of a real kubelet and are given by the same RBAC rules. The node is that of the listener, never
one that the caller names. Answers hold as long as the kubelet lets them; no answer is a no.
"""

import time
from collections.abc import Callable
from http import HTTPStatus

import msgspec

from tensile.cluster import Cluster
from tensile.kubelet.api.authentication import User
from tensile.kubelet.api.refusal import Refused
from tensile.kubelet.api.reviews import Reviews
from tensile.kubelet.api.routes import Access
from tensile.kubelet.api.target import Log
from tensile.kubelet.api.verdicts import Verdicts
from tensile.objects import ACCESS_REVIEW, Manifest

ALLOWED_SECONDS = 300.0
DENIED_SECONDS = 30.0
DENIALS_OF_A_USER = (100, 1.0)
"""Answers of no that a user is given: so many at once, one more for each so many seconds; then it is not asked."""
_REMEMBERED = 4096

_Question = tuple[User, Access, str]


class _AccessStatus(msgspec.Struct, frozen=True):
    allowed: bool = False
    denied: bool = False


class _AccessReview(msgspec.Struct, frozen=True):
    status: _AccessStatus


class Authorizer:
    """Lets pass who has any of the rights that a call may rest on; else 403, or 503 when the upper cannot be asked."""

    def __init__(self, upper: Cluster, log: Log, clock: Callable[[], float] = time.monotonic) -> None:
        self._reviews = Reviews(upper, log, DENIALS_OF_A_USER, "user", clock)
        self._clock = clock
        self._answers: Verdicts[_Question, bool] = Verdicts(_REMEMBERED)

    async def permit(self, user: User, accesses: tuple[Access, ...], node: str) -> None:
        """Return when one of `accesses` to the node is the user's; the rights are asked for one after the other."""
        for access in accesses:
            if await self._allowed((user, access, node)):
                return
        verb = accesses[0].verb
        names = ", ".join(access.subresource for access in accesses)
        message = f"Forbidden (user={user.name}, verb={verb}, resource=nodes, name={node}, subresource(s)=[{names}])"
        raise Refused(HTTPStatus.FORBIDDEN, message)

    async def _allowed(self, question: _Question) -> bool:
        answer = self._answers.get(question, self._clock())
        if answer is not None:
            return answer
        user, *_ = question
        self._reviews.check(user.name)

        def known() -> bool:
            """Report whether somebody else has asked meanwhile."""
            return self._answers.get(question, self._clock()) is not None

        review = await self._reviews.ask(ACCESS_REVIEW, _spec(*question), _AccessReview, known)
        if review is None:
            return bool(self._answers.get(question, self._clock()))
        answer = review.status.allowed and not review.status.denied
        self._answers.put(question, answer, self._clock() + (ALLOWED_SECONDS if answer else DENIED_SECONDS))
        if not answer:
            self._reviews.charge(user.name)
        return answer


def _spec(user: User, access: Access, node: str) -> Manifest:
    """Put the question in the terms of a SubjectAccessReview, with the attributes that the kubelet uses."""
    attributes = {
        "verb": access.verb,
        "version": "v1",
        "resource": "nodes",
        "subresource": access.subresource,
        "name": node,
    }
    return {
        "user": user.name,
        "uid": user.uid,
        "groups": list(user.groups),
        "extra": {key: list(values) for key, values in user.extra},
        "resourceAttributes": attributes,
    }
