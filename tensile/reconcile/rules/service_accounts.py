"""ServiceAccounts that pods run as: created before the pod, updated, deleted after the last of its pods.

A lower account is another account than the upper one, with the lower cluster's own tokens. They share the name, by
which a pod gets its rights in the lower cluster. So a foreign account of that name is never used: it would lend its
rights. The account `default` is each cluster's own and has no copy. Upper pods request an account; a lower pod of ours
that runs as one only keeps it from deletion, as it is (`copies.py`).
"""

from collections.abc import Iterable, Iterator

from tensile.kube.store import Entry, Transformed, decoded
from tensile.names import ProblemReason
from tensile.objects import SERVICE_ACCOUNT, Kind, Manifest
from tensile.reconcile.copies import is_missing_undeleted, is_referenced_in_lower, pods_referring_to
from tensile.reconcile.desired import Decision
from tensile.reconcile.ownership import is_copy, is_copy_of
from tensile.reconcile.pods.references import Reference
from tensile.reconcile.rules.mirror_rule import MirroredKind, MirrorRule, Need, Pair, follow_deletion, pods_referring
from tensile.reconcile.world import Key, LowerWorld, Problem, World

ACCOUNT_NOT_FOUND: ProblemReason = "ServiceAccountNotFound"
"""A pod runs as a service account that the upper cluster does not have. Remedy: create it in the namespace of the
pod."""
NAME = "account"
DEFAULT = "default"
"""The account that every cluster creates in every namespace."""
_CONTENT = ("imagePullSecrets", "automountServiceAccountToken")


def transform(raw: bytes) -> Transformed:
    """Transform an account: its bytes and the names of its pull secrets. Most have none, and are not decoded."""
    if b"imagePullSecrets" not in raw:
        return Transformed(raw, ())
    return Transformed(raw, tuple(one["name"] for one in _pulls(decoded(raw)) if one.get("name")))


def _by_pull_secret(entry: Entry) -> Iterator[tuple[str, str]]:
    """Index accounts by (namespace, name) of their pull secrets."""
    for name in entry.facts:
        yield (entry.namespace, name)


def key_of(lower: str, namespace: str, name: str) -> Key:
    """Return the key of an account's copy, by its upper namespace and name."""
    return Key(NAME, lower, namespace, name)


def known(world: World, lower: LowerWorld) -> bool:
    """Report whether the accounts on both sides are listed, or do not matter."""
    caches = (world.upper.more[SERVICE_ACCOUNT], lower.more[SERVICE_ACCOUNT])
    return "ServiceAccount" not in lower.spec.controllers or all(cache.synced for cache in caches)


def missing(world: World, lower: LowerWorld, namespace: str, wanted: Iterable[Reference]) -> list[Key]:
    """Return the keys of the accounts that a pod has to wait for: those it refers to that have no copy yet."""
    if lower.spec.service_accounts.identity == "none":
        return []
    names = (name for name in named(wanted) if copied(world, lower, namespace, name) is None)
    return [key_of(lower.name, namespace, name) for name in names]


def copied(world: World, lower: LowerWorld, namespace: str, name: str) -> Entry | None:
    """Return the copy of an account, None where there is none of the present upper account."""
    upper_account = world.upper.more[SERVICE_ACCOUNT].get(namespace, name)
    copy = lower.more[SERVICE_ACCOUNT].get(lower.namespace(namespace), name)
    return copy if upper_account is not None and is_copy_of(copy, world.owner, upper_account.uid) else None


def usable_copy(world: World, lower: LowerWorld, namespace: str, name: str) -> Entry | None:
    """Return the copy of an account that exists in the upper cluster, or is missing there without a seen deletion."""
    if not is_missing_undeleted(world.upper.more[SERVICE_ACCOUNT], namespace, name):
        return copied(world, lower, namespace, name)
    copy = lower.more[SERVICE_ACCOUNT].get(lower.namespace(namespace), name)
    return copy if copy is not None and is_copy(copy, world.owner) else None


def pulling(world: World, namespace: str, secret: str) -> list[str]:
    """Return the names of the upper accounts but `default` that pull images with a Secret of their namespace."""
    found = world.upper.more[SERVICE_ACCOUNT].select("pull secret", (namespace, secret))
    return [entry.name for entry in found if entry.name != DEFAULT]


def secrets_of(world: World, namespace: str, wanted: Iterable[Reference]) -> Iterator[str]:
    """Yield the names of the pull secrets of the accounts among what a pod refers to."""
    for one in wanted:
        upper_account = (
            world.upper.more[SERVICE_ACCOUNT].get(namespace, one.name) if one.kind == SERVICE_ACCOUNT.name else None
        )
        if upper_account is not None and one.name != DEFAULT:
            yield from upper_account.facts


def pods_using(world: World, lower: LowerWorld, namespace: str, name: str) -> Iterator[Entry]:
    """Yield the upper pods that need the copy of an account, by its upper namespace and name."""
    if lower.spec.service_accounts.identity != "none":
        yield from pods_referring_to(lower, world, SERVICE_ACCOUNT.name, namespace, name)


def is_requested(world: World, lower: LowerWorld, namespace: str, name: str) -> bool:
    """Report whether an upper pod needs the copy of an account."""
    return any(True for _ in pods_using(world, lower, namespace, name))


def is_used(world: World, lower: LowerWorld, namespace: str, name: str) -> bool:
    """Report whether an upper pod needs the copy of an account, or a lower pod of ours keeps it."""
    return is_requested(world, lower, namespace, name) or is_referenced_in_lower(
        lower, SERVICE_ACCOUNT.name, namespace, name
    )


def named(references: Iterable[Reference]) -> frozenset[str]:
    """Return the name of the account among what a pod refers to, an empty set for `default`."""
    return frozenset(one.name for one in references if one.kind == SERVICE_ACCOUNT.name and one.name != DEFAULT)


def _need(pair: Pair) -> Need:
    name = pair.ref.name
    if name != DEFAULT and is_requested(pair.world, pair.lower, pair.key.namespace, name):
        return Need.ASKED
    return Need.KEPT if name == DEFAULT or pair.is_kept else Need.NONE


def _present(pair: Pair, original: Entry) -> Decision:
    """Return the copy: the account's name, its pull secrets, and whether pods get a token by default."""
    obstacle = pair.obstacle(pair.referring())
    if obstacle is not None:
        return obstacle
    account = original.manifest()
    pulls = _pulls(account)
    known = {one.get("name") for one in pulls}
    pulls += [one for one in _others(pair) if one.get("name") not in known]
    content: Manifest = {"automountServiceAccountToken": account.get("automountServiceAccountToken", True)}
    content |= {"imagePullSecrets": pulls} if pulls else {}
    return Decision((pair.copied(original, content, f"pods on node {pair.lower.node} use it", _CONTENT),))


def _others(pair: Pair) -> list[Manifest]:
    """Return the pull secrets that others added to a copy: those that are no upper Secret are not ours to remove.

    Some clusters add one to every account, and would add it again indefinitely.
    """
    pulls = [] if pair.copy is None else _pulls(pair.copy.manifest())
    return [one for one in pulls if pair.world.upper.secrets.get(pair.key.namespace, one.get("name", "")) is None]


def _pulls(account: Manifest) -> list[Manifest]:
    return list(account.get("imagePullSecrets") or ())


def _missing(pair: Pair, _: Need) -> Decision:
    """Follow a deletion that was seen, and report the problem: pods that run as the account need it."""
    message = f"ServiceAccount {pair.key.namespace}/{pair.ref.name} does not exist in the upper cluster"
    return follow_deletion(pair)._replace(problem=Problem(ACCOUNT_NOT_FOUND, message))


def _concerns(_: World, lower: LowerWorld, kind: Kind, original: Entry) -> bool:
    """Report whether upper pods run as an account."""
    users = (kind.name, original.namespace, original.name)
    return original.name != DEFAULT and lower.upper_pods.count("reference", users) > 0


def _keys_of(_: World, lower: str, namespace: str, references: Iterable[Reference]) -> Iterator[Key]:
    return (key_of(lower, namespace, name) for name in named(references))


RULE = MirrorRule(
    name=NAME,
    kinds=(
        MirroredKind(
            kind=SERVICE_ACCOUNT,
            need=_need,
            present=_present,
            missing=_missing,
            unneeded="no pod uses it any more",
            concerns=_concerns,
            transform_upper=transform,
            upper_indexes={"pull secret": _by_pull_secret},
        ),
    ),
    controller="ServiceAccount",
    users=pods_referring(_keys_of),
)
"""One key for each account but `default` that a virtual node's pod runs as, or that has a copy."""
