"""Tokens of the upper cluster for one pod: which its volumes ask for, and the Secret below that stands in for them.

A kubelet fetches a pod's tokens from its own apiserver; the lower cluster's would be tokens of another cluster. So the
engine has them issued above, bound to the upper pod, and keeps them in a Secret of ours, out of which the same files
are mounted. It is named by the pod's UID, which nobody knows beforehand, so that no other Secret has its name.
"""

from collections.abc import Iterator
from hashlib import sha256
from typing import NamedTuple

from tensile.cache import Entry, Kept, decoded
from tensile.names import TOKEN_POD, UPPER_UID
from tensile.objects import Manifest, annotations, metadata
from tensile.reconcile import observed
from tensile.reconcile.observed import marks_of
from tensile.reconcile.references import is_token_volume

PUBLISHED_CA = "kube-root-ca.crt"
"""The ConfigMap in which each cluster tells every namespace its authority."""
CA, NAMESPACE, TOKEN = "ca.crt", "namespace", "token"
_CREDENTIALS = frozenset({"serviceAccountToken", "podCertificate"})
"""Sources of a projected volume by which a pod shows who it is."""
_PREFIX = "upper-token-"
_ONE_HOUR = 3600
_STRETCHED = 3607
"""What admission asks for; the apiserver takes it for a sign of old clients, and gives a token for a year."""
_SHORTEST = 600
_DIGITS = 8


class Wish(NamedTuple):
    """One token: its key in the Secret, its audience ("" for the apiserver itself), and for how many seconds."""

    entry: str
    audience: str
    seconds: int


class TokenFacts(NamedTuple):
    """A Secret with tokens: the name and the UID of the upper pod that they are for."""

    pod: str
    uid: str


def secret_name(pod_uid: str) -> str:
    """Name the Secret with the tokens of an upper pod."""
    return f"{_PREFIX}{pod_uid}"


def digest(raw: bytes) -> Kept:
    """Keep a Secret of ours below with its marks, and `TokenFacts` where it is no copy of one above."""
    secret = decoded(raw)
    noted = annotations(secret)
    uid = noted.get(UPPER_UID, "")
    has_tokens = TOKEN_POD in noted and metadata(secret)["name"] == secret_name(uid)
    return Kept(raw, marks_of(secret, TokenFacts(noted[TOKEN_POD], uid) if has_tokens else None))


def _by_pod(entry: Entry) -> Iterator[tuple[str, str]]:
    if entry.facts.token is not None:
        yield (entry.namespace, entry.facts.token.pod)


INDEXES = {"pod": _by_pod, **observed.INDEXES}


def wishes(spec: Manifest) -> tuple[Wish, ...]:
    """Give the tokens that a pod's volumes ask for, one for each audience; () for a pod that needs none."""
    found: dict[str, int] = {}
    for audience, seconds in _asked(spec):
        found[audience] = min(seconds, found.get(audience, seconds))
    return tuple(Wish(entry_of(audience), audience, found[audience]) for audience in sorted(found))


def entry_of(audience: str) -> str:
    """Give the key of an audience's token in the Secret."""
    return f"{TOKEN}-{sha256(audience.encode()).hexdigest()[:_DIGITS]}" if audience else TOKEN


def sources_of(volume: Manifest) -> list[Manifest]:
    """Give the sources of a projected volume, [] for any other."""
    return list((volume.get("projected") or {}).get("sources") or ())


def with_token(volume: Manifest) -> bool:
    """Say whether a volume projects a token."""
    return any("serviceAccountToken" in source for source in sources_of(volume))


def _asked(spec: Manifest) -> Iterator[tuple[str, int]]:
    """Give audience and seconds of each token that a volume asks for."""
    for volume in spec.get("volumes") or ():
        if is_token_volume(volume) and "secret" in volume:
            yield "", _ONE_HOUR
        for source in sources_of(volume):
            token = source.get("serviceAccountToken")
            if token is not None:
                yield token.get("audience") or "", _lifetime(token.get("expirationSeconds"))


def _lifetime(seconds: int | None) -> int:
    """Give how long a token is asked to hold; less than ten minutes is refused."""
    return _ONE_HOUR if seconds in (None, _STRETCHED) else max(int(seconds or 0), _SHORTEST)


def in_place_of_tokens(volume: Manifest, secret: str) -> Manifest:
    """Give a volume with the Secret in the place of each token, and of what tells of the cluster beside it.

    The authority is the upper cluster's then, and so is the namespace; the files have the same names.
    """
    if is_token_volume(volume) and "secret" in volume:
        items = [_item(name, name) for name in (TOKEN, CA, NAMESPACE)]
        return {"name": volume["name"], "projected": {"sources": [_from(secret, items)]}}
    if not with_token(volume):
        return volume
    sources = [one for source in sources_of(volume) for one in _replaced(source, secret)]
    return {**volume, "projected": {**volume["projected"], "sources": sources}}


def without_tokens(volume: Manifest) -> Manifest:
    """Give a volume without the tokens and certificates that it projects, itself where it has none."""
    sources = [source for source in sources_of(volume) if not source.keys() & _CREDENTIALS]
    if len(sources) == len(sources_of(volume)):
        return volume
    return {**volume, "projected": {**volume["projected"], "sources": sources}}


def _replaced(source: Manifest, secret: str) -> Iterator[Manifest]:
    """Give what stands in the place of one source."""
    token, published, downward = (source.get(form) for form in ("serviceAccountToken", "configMap", "downwardAPI"))
    if token is not None:
        yield _from(secret, [_item(entry_of(token.get("audience") or ""), token["path"])])
    elif published is not None and published.get("name") == PUBLISHED_CA:
        paths = [item["path"] for item in published.get("items") or ({"key": CA, "path": CA},) if item["key"] == CA]
        yield _from(secret, [_item(CA, path) for path in paths])
    elif downward is not None:
        yield from _without_namespace(downward, secret)
    else:
        yield source


def _without_namespace(downward: Manifest, secret: str) -> Iterator[Manifest]:
    """Give a downward source, its file with the pod's namespace out of the Secret: below it may have another name."""
    named: list[Manifest] = []
    rest: list[Manifest] = []
    for item in downward.get("items") or ():
        path = (item.get("fieldRef") or {}).get("fieldPath")
        (named if path == "metadata.namespace" else rest).append(item)
    if named:
        yield _from(secret, [_item(NAMESPACE, item["path"]) for item in named])
    if rest or not named:
        yield {"downwardAPI": {**downward, "items": rest}}


def _from(secret: str, items: list[Manifest]) -> Manifest:
    return {"secret": {"name": secret, "items": items}}


def _item(key: str, path: str) -> Manifest:
    return {"key": key, "path": path}
