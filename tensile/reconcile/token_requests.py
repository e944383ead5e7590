"""Request the tokens of a step when it is carried out, and insert them into its request.

A rule cannot know a token, and only the lower cluster that needs it should. So a step names the account and the
TokenRequests, and the tokens only go into the request. Observers, logs and the output of `plan` get the planned step,
without tokens.

If one token is missing, the step is not sent: a Secret is written once, with all its tokens.
"""

from base64 import b64encode
from collections.abc import Mapping
from datetime import datetime
from typing import NamedTuple

import orjson
from msgspec.structs import replace

from tensile.errors import Unreachable
from tensile.kube.cluster import Cluster, Patch
from tensile.names import TOKEN_TERM
from tensile.objects import Manifest, annotations, later, metadata, moment_of, timestamp
from tensile.reconcile.plan import TERM_PATH, Step

_DIGITS = 10
"""The most digits of a term in seconds: an apiserver limits it to 32 bits."""


class TokenTerm(NamedTuple):
    """The start of a token's term, and its seconds: of several tokens the shortest."""

    since: datetime
    seconds: int

    def __str__(self) -> str:
        return f"{timestamp(self.since)}/PT{self.seconds}S"

    def passed(self, share: float) -> datetime:
        """Return the time at which a share of the term is over."""
        return later(self.since, self.seconds * share)


def term_of(secret: Manifest) -> TokenTerm | None:
    """Return the term of a Secret's tokens, None if it is missing or invalid."""
    since, _, span = annotations(secret).get(TOKEN_TERM, "").partition("/PT")
    seconds = span.removesuffix("S")
    try:
        return TokenTerm(moment_of(since), int(seconds)) if seconds.isdecimal() and len(seconds) <= _DIGITS else None
    except ValueError:
        return None


async def granted(step: Step, clusters: Mapping[str, Cluster]) -> Step:
    """Return a step with the tokens that it requests, the same step if it requests none.

    Raises the ClusterError of the cluster that did not issue one.
    """
    if step.grant is None:
        return step
    account = step.grant.account
    cluster = clusters.get(account.cluster)
    if cluster is None:
        raise Unreachable("it is not connected yet", cluster=account.cluster, doing=f"create {account} token")
    return filled(step, [orjson.loads(await cluster.issue(account, ask.request)) for ask in step.grant.asks])


def filled(step: Step, answers: list[Manifest]) -> Step:
    """Return the step with the tokens of answered TokenRequests. `answers` are in the order of the requests."""
    assert step.grant is not None
    tokens = {
        ask.entry: b64encode(answer["status"]["token"].encode()).decode()
        for ask, answer in zip(step.grant.asks, answers, strict=True)
    }
    term = TokenTerm(step.grant.since, min(int(answer["spec"]["expirationSeconds"]) for answer in answers))
    if step.patch is not None:
        return replace(step, patch=_patched(step.patch, tokens, str(term)))
    assert step.body is not None
    meta = metadata(step.body)
    noted = {**meta, "annotations": {**meta["annotations"], TOKEN_TERM: str(term)}}
    return replace(step, body={**step.body, "metadata": noted, "data": {**step.body["data"], **tokens}})


def _patched(patch: Patch, tokens: dict[str, str], term: str) -> Patch:
    """Insert tokens and term into their operations."""
    return patch._replace(body=[_operated(one, tokens, term) for one in patch.body])


def _operated(operation: Manifest, tokens: dict[str, str], term: str) -> Manifest:
    match operation["path"]:
        case "/data":
            return {**operation, "value": {**operation["value"], **tokens}}
        case path if path == TERM_PATH:
            return {**operation, "value": term}
        case _:
            return operation
