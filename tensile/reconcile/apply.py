"""Carry out one step exactly as planned, without further decisions.

Responses of the cluster go into the caches at once, so that the next decision rests on what was written and does not
wait for the watch.

Before a namespace is deleted, a check makes sure that it is empty, as its deletion removes everything in it, whoever
created it. The API has no precondition for that. So every kind of the cluster is listed, including those of extensions,
and a kind that cannot be listed counts as present. Objects that Kubernetes creates in each namespace do not count.

A rule cannot know a token, and only the lower cluster that needs it should. So a step names the account and the
TokenRequests. They are sent when the step is carried out, and the tokens only go into its request: observers, logs and
the output of `plan` get the planned step. If one token is missing, the step is not sent: a Secret is written once, with
all its tokens.
"""

from base64 import b64encode
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import NamedTuple

import orjson
from msgspec.structs import replace

from tensile.errors import Denied, NotFound, Unreachable
from tensile.kube.cluster import Cluster, Patch, Selection
from tensile.kube.store import Cache
from tensile.names import OWNER, REPLACES, TOKEN_TERM, UPPER_UID, ProblemReason
from tensile.objects import (
    CONFIG_MAP,
    EVENT,
    NAMESPACE,
    POD,
    SECRET,
    SERVICE_ACCOUNT,
    UPPER,
    Kind,
    Manifest,
    Ref,
    annotations,
    labels,
    later,
    metadata,
    moment_of,
    timestamp,
    uid,
)
from tensile.reconcile.ownership import upper_uid_of
from tensile.reconcile.plan import EVICTION, TERM_PATH, Step
from tensile.reconcile.pods.references import PUBLISHED_BY_LOWER
from tensile.reconcile.world import Problem

NOT_EMPTY: ProblemReason = "NamespaceNotEmpty"
"""A lower namespace of the engine is not needed any more, but has objects of others, or cannot be read whole.
Remedy: delete what is left in it, or leave it."""
_FIRST = (POD.plural, CONFIG_MAP.plural, SECRET.plural)
"""Kinds that are listed first: a used namespace mostly contains one of them."""
_COUNTED_ELSEWHERE = frozenset({"metrics.k8s.io"})
"""API groups in which every object represents an object of another group."""

CheckObject = Callable[[Manifest], Problem | None]
"""Returns why an object that is not ours must not be adopted."""
_DIGITS = 10
"""The most digits of a term in seconds: an apiserver limits it to 32 bits."""


async def carry_out(step: Step, cluster: Cluster, cache: Cache | None) -> None:
    """Send the step's request. Raises the ClusterError with which the cluster refused it."""
    match step.verb:
        case "create":
            _invalidate(step, cache)
            raw = await cluster.create(step.ref, step.body or {})
        case "patch":
            assert step.patch is not None
            raw = await cluster.patch(step.ref, step.patch, step.subresource)
        case "delete":
            await _delete(step, cluster, cache)
            return
        case "confirm":
            await reread(step, cluster, cache)
            return
    if cache is not None:
        cache.apply_response(raw)


def _invalidate(step: Step, cache: Cache | None) -> None:
    """Record before a create is sent that it may succeed even if its response is lost."""
    if cache is not None:
        cache.invalidate(step.ref.namespace, step.ref.name)


async def _delete(step: Step, cluster: Cluster, cache: Cache | None) -> None:
    """Delete the object, and record whether it is gone or terminating. After an eviction only a read shows that."""
    if step.subresource == EVICTION:
        await cluster.evict(step.ref, uid=step.uid)
        await reread(step, cluster, cache)
        return
    if step.only_if_empty:
        await check_empty(cluster, step.ref)
    raw = await cluster.delete(step.ref, uid=step.uid, grace=step.grace, version=step.version)
    if cache is None:
        return
    if _is_gone(orjson.loads(raw), step.grace):
        cache.confirm_deleted(step.ref.namespace, step.ref.name, step.uid)
    else:
        cache.apply_response(raw)


def _is_gone(response: Manifest, grace: int | None) -> bool:
    """Report whether an object is gone by the response to its deletion: only finalizers and grace periods keep it."""
    if response.get("kind") == "Status":
        return True
    meta = metadata(response)
    if meta.get("finalizers"):
        return False
    return grace == 0 or not meta.get("deletionTimestamp") or meta.get("deletionGracePeriodSeconds") == 0


async def reread(step: Step, cluster: Cluster, cache: Cache | None) -> None:
    """Read the step's object at quorum and update the cache: with the object, or with the proof that it is deleted.

    An object of that name counts as absent if it neither has the UID `step.uid`, nor was made for it, nor is cached. So
    does one that the cache does not select, such as an upper pod on another node. Whenever the object is not the one of
    `step.uid`, that one is recorded as deleted.
    """
    if cache is None:
        return
    since = cache.latest_version(step.ref.namespace, step.ref.name)
    try:
        raw = await cluster.read(step.ref)
    except NotFound:
        cache.confirm_absent(step.ref.namespace, step.ref.name, since, uid=step.uid)
        return
    found = orjson.loads(raw)
    known, is_same = cache.get(step.ref.namespace, step.ref.name), _is_about(step, found) and cache.selects(found)
    if not is_same and (known is None or known.uid != uid(found)):
        cache.confirm_absent(step.ref.namespace, step.ref.name, since, uid=step.uid)
        return
    cache.put(raw)
    if not is_same:
        cache.mark_deleted(step.ref.namespace, step.ref.name, step.uid)


def _is_about(step: Step, found: Manifest) -> bool:
    """Report whether an object is the one of the step: by its own UID or, in a lower cluster, its upper object's."""
    is_lower = step.ref.cluster != UPPER
    return step.uid in ("", uid(found)) or (is_lower and step.uid == annotations(found).get(UPPER_UID))


def is_cached(step: Step, cache: Cache | None) -> bool:
    """Report whether the object of a step is still cached."""
    known = cache.get(step.ref.namespace, step.ref.name) if cache else None
    return known is not None and known.uid == step.uid


async def resolve_existing(step: Step, cluster: Cluster, cache: Cache | None, check: CheckObject) -> Problem | None:
    """Handle AlreadyExists: return a conflict if the object may be neither used nor adopted, else add it to the cache.

    It is added even if the watch does not select it any more, for example because a label was removed. An Event that
    exists has been recorded already. A Namespace is never a conflict here. The pod that this one
    replaces is no conflict: it is about to go.
    """
    if cache is None:
        return None
    try:
        raw = await cluster.read(step.ref)
    except NotFound:
        return None
    found, wanted = orjson.loads(raw), step.body or {}
    if step.ref.kind == NAMESPACE or _same_owner(found, wanted) or _replace_same_pod(found, wanted):
        cache.add_unselected(raw)
        return None
    if uid(found) == annotations(wanted).get(REPLACES):
        return None
    problem = check(found)
    if problem is None:
        cache.add_unselected(raw)
    return problem


def _replace_same_pod(found: Manifest, wanted: Manifest) -> bool:
    """Report whether two pods were created as replacements of the same pod."""
    return REPLACES in annotations(wanted) and annotations(found).get(REPLACES) == annotations(wanted)[REPLACES]


def _same_owner(found: Manifest, wanted: Manifest) -> bool:
    return labels(found).get(OWNER) == labels(wanted).get(OWNER) and bool(upper_uid_of(found))


async def check_empty(cluster: Cluster, namespace: Ref) -> None:
    """Return if a namespace is empty. Raises Denied, with the reason NamespaceNotEmpty, if it may not be.

    Raises the ClusterError of a cluster that does not respond.
    """
    for kind in sorted(await cluster.kinds(), key=_rank):
        if _counts(kind):
            await _check_kind(kind, cluster, namespace)


async def _check_kind(kind: Kind, cluster: Cluster, namespace: Ref) -> None:
    """Raise Denied if a namespace contains an object of a kind, or if the kind must not be listed.

    A kind may be removed from the cluster after it was discovered. It has no objects then.
    """
    try:
        listing = await cluster.list(kind, Selection(namespace.name), name_of)
    except NotFound:
        if any((one.group, one.plural) == (kind.group, kind.plural) for one in await cluster.kinds()):
            raise
        return
    except Denied as error:
        raise _denied(namespace, f"the engine cannot list its {kind.plural}: {error.message}") from None
    found = first_foreign_object(kind, listing.items)
    if found:
        raise _denied(namespace, f"it contains {kind.name} {found}")


def name_of(raw: bytes) -> str:
    """Return an object's name: for a large namespace, only names are kept in memory."""
    return str(metadata(orjson.loads(raw))["name"])


def first_foreign_object(kind: Kind, names: Iterable[str]) -> str:
    """Return the name of the first object that Kubernetes did not create itself, "" for none."""
    return next((name for name in names if not _is_published(kind, name)), "")


def _is_published(kind: Kind, name: str) -> bool:
    """Report whether every namespace gets an object of that kind and name automatically."""
    if kind == CONFIG_MAP:
        return name in PUBLISHED_BY_LOWER
    return kind == SERVICE_ACCOUNT and name == "default"


def _counts(kind: Kind) -> bool:
    """Report whether objects of a kind count as content. Events do not: they describe others, and expire."""
    return kind.plural != EVENT.plural and kind.group not in _COUNTED_ELSEWHERE


def _rank(kind: Kind) -> tuple[int, str, str]:
    position = _FIRST.index(kind.plural) if kind.plural in _FIRST else len(_FIRST)
    return (position, kind.api, kind.plural)


def _denied(namespace: Ref, why: str) -> Denied:
    name, cluster = namespace.name, namespace.cluster
    message = f"Namespace {name} in {cluster} is not needed any more, but {why}: it is not deleted"
    return Denied(message, cluster=cluster, doing=f"delete Namespace {name}", reason=NOT_EMPTY)


class TokenTerm(NamedTuple):
    """The start of a token's term, and its seconds: of several tokens the shortest."""

    since: datetime
    seconds: int

    def __str__(self) -> str:
        return f"{timestamp(self.since)}/PT{self.seconds}S"

    def time_at(self, share: float) -> datetime:
        """Return the time at which a share of the term is over."""
        return later(self.since, self.seconds * share)


def term_of(secret: Manifest) -> TokenTerm | None:
    """Return the term of a Secret's tokens, None if it is missing or invalid."""
    since, _, duration = annotations(secret).get(TOKEN_TERM, "").partition("/PT")
    seconds = duration.removesuffix("S")
    try:
        return TokenTerm(moment_of(since), int(seconds)) if seconds.isdecimal() and len(seconds) <= _DIGITS else None
    except ValueError:
        return None


async def with_requested_tokens(step: Step, clusters: Mapping[str, Cluster]) -> Step:
    """Return a step with the tokens that it requests, the same step if it requests none.

    Raises the ClusterError of the cluster that did not issue one.
    """
    if step.grant is None:
        return step
    account = step.grant.account
    cluster = clusters.get(account.cluster)
    if cluster is None:
        raise Unreachable("it is not connected yet", cluster=account.cluster, doing=f"create {account} token")
    return insert_tokens(step, [orjson.loads(await cluster.issue(account, token.request)) for token in step.grant.asks])


def insert_tokens(step: Step, responses: list[Manifest]) -> Step:
    """Return the step with the tokens of answered TokenRequests. `responses` are in the order of the requests."""
    assert step.grant is not None
    tokens = {
        token.entry: b64encode(response["status"]["token"].encode()).decode()
        for token, response in zip(step.grant.asks, responses, strict=True)
    }
    term = TokenTerm(step.grant.since, min(int(response["spec"]["expirationSeconds"]) for response in responses))
    if step.patch is not None:
        return replace(step, patch=_insert_into_patch(step.patch, tokens, str(term)))
    assert step.body is not None
    meta = metadata(step.body)
    annotated = {**meta, "annotations": {**meta["annotations"], TOKEN_TERM: str(term)}}
    return replace(step, body={**step.body, "metadata": annotated, "data": {**step.body["data"], **tokens}})


def _insert_into_patch(patch: Patch, tokens: dict[str, str], term: str) -> Patch:
    """Insert tokens and term into their operations."""
    return patch._replace(body=[_insert_into_operation(operation, tokens, term) for operation in patch.body])


def _insert_into_operation(operation: Manifest, tokens: dict[str, str], term: str) -> Manifest:
    match operation["path"]:
        case "/data":
            return {**operation, "value": {**operation["value"], **tokens}}
        case path if path == TERM_PATH:
            return {**operation, "value": term}
        case _:
            return operation
