"""Tokens that a step asks for when it is carried out, and how they get into what it sends.

A rule cannot know a token, and nobody but the cluster that it is for should: so a step names the account and what to
ask, and the answers go into the request alone. What observers hear of, what is logged and what `plan` prints is the
step as it was decided, without a token in it.

Asks for the tokens of a step, just before it is carried out: nothing is decided here, and nothing kept.

Where an answer is missing, none of the step is done: the Secret is written once, with every token that it is for.
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
"""Of the seconds for which tokens hold: an apiserver gives none for longer than a number of 32 bits says."""


class Term(NamedTuple):
    """Since when tokens hold, and for how many seconds the one that ends first."""

    since: datetime
    seconds: int

    def __str__(self) -> str:
        return f"{timestamp(self.since)}/PT{self.seconds}S"

    def passed(self, share: float) -> datetime:
        """Return the moment at which a share of the term is over."""
        return later(self.since, self.seconds * share)


def term_of(secret: Manifest) -> Term | None:
    """Read the term of a Secret's tokens, None where there is none that can be read."""
    since, _, span = annotations(secret).get(TOKEN_TERM, "").partition("/PT")
    seconds = span.removesuffix("S")
    try:
        return Term(moment_of(since), int(seconds)) if seconds.isdecimal() and len(seconds) <= _DIGITS else None
    except ValueError:
        return None


def filled(step: Step, answers: list[Manifest]) -> Step:
    """Return the step with the tokens of answered TokenRequests in what it sends, in the order in which it asks."""
    assert step.grant is not None
    tokens = {
        ask.entry: b64encode(answer["status"]["token"].encode()).decode()
        for ask, answer in zip(step.grant.asks, answers, strict=True)
    }
    term = Term(step.grant.since, min(int(answer["spec"]["expirationSeconds"]) for answer in answers))
    if step.patch is not None:
        return replace(step, patch=_patched(step.patch, tokens, str(term)))
    assert step.body is not None
    meta = metadata(step.body)
    noted = {**meta, "annotations": {**meta["annotations"], TOKEN_TERM: str(term)}}
    return replace(step, body={**step.body, "metadata": noted, "data": {**step.body["data"], **tokens}})


def _patched(patch: Patch, tokens: dict[str, str], term: str) -> Patch:
    """Put tokens and term into the operations that are for them."""
    return patch._replace(body=[_operated(one, tokens, term) for one in patch.body])


def _operated(operation: Manifest, tokens: dict[str, str], term: str) -> Manifest:
    match operation["path"]:
        case "/data":
            return {**operation, "value": {**operation["value"], **tokens}}
        case path if path == TERM_PATH:
            return {**operation, "value": term}
        case _:
            return operation


async def granted(step: Step, clusters: Mapping[str, Cluster]) -> Step:
    """Return a step with the tokens that it asks for, itself where it asks for none.

    Raises the ClusterError of the cluster that did not issue one.
    """
    if step.grant is None:
        return step
    account = step.grant.account
    cluster = clusters.get(account.cluster)
    if cluster is None:
        raise Unreachable("there is no connection to it yet", cluster=account.cluster, doing=f"create {account} token")
    return filled(step, [orjson.loads(await cluster.issue(account, ask.request)) for ask in step.grant.asks])
