"""The rule for ServiceAccounts that pods run as: created before the pod, updated, deleted after the last of its pods.

A lower account is another account than the upper one, with the lower cluster's own tokens. They share the name, by
which a pod gets its rights in the lower cluster. So a foreign account of that name is never used: it would lend its
rights. The account `default` is each cluster's own and has no copy. Upper pods request an account; a lower pod of ours
that runs as one only keeps it from deletion, as it is (`copies.py`).
"""

from collections.abc import Iterable, Iterator

from tensile.kube.store import Cache, Delta, Entry, Transformed, decoded
from tensile.objects import SERVICE_ACCOUNT, Manifest, Ref, annotations, labels, uid
from tensile.reconcile.copies import asking, keeps, may_be_made
from tensile.reconcile.desired import Absent, Decision, Present, Watch
from tensile.reconcile.ownership import has_node, is_of, is_ours, upper_uid_of
from tensile.reconcile.pods.index import lives_below
from tensile.reconcile.pods.references import Reference
from tensile.reconcile.rules import namespaces
from tensile.reconcile.world import Key, LowerWorld, Problem, World

NAME = "account"
DEFAULT = "default"
"""The account that every cluster creates in every namespace."""
_SECTIONS = ("metadata.labels", "metadata.annotations", "imagePullSecrets", "automountServiceAccountToken")
_LEFT_ABOVE = frozenset({"kubectl.kubernetes.io/last-applied-configuration", "kubernetes.io/enforce-mountable-secrets"})
"""Annotations that are not copied.

With the second, pods that mount Secrets which the account does not list are refused; the upper cluster has enforced it,
and the list is not copied.
"""


def digest(raw: bytes) -> Transformed:
    """Transform an account: its bytes and the names of its pull secrets. Most have none, and are not decoded."""
    if b"imagePullSecrets" not in raw:
        return Transformed(raw, ())
    return Transformed(raw, tuple(one["name"] for one in _pulls(decoded(raw)) if one.get("name")))


def by_pull_secret(entry: Entry) -> Iterator[tuple[str, str]]:
    """Index accounts by (namespace, name) of their pull secrets."""
    for name in entry.facts:
        yield (entry.namespace, name)


INDEXES = {"pull secret": by_pull_secret}


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
    names = (one.name for one in wanted if one.kind == SERVICE_ACCOUNT.name and one.name != DEFAULT)
    return [key_of(lower.name, namespace, name) for name in names if copied(world, lower, namespace, name) is None]


def copied(world: World, lower: LowerWorld, namespace: str, name: str) -> Entry | None:
    """Return the copy of an account, None where there is none of the present upper account."""
    above = world.upper.more[SERVICE_ACCOUNT].get(namespace, name)
    copy = lower.more[SERVICE_ACCOUNT].get(lower.namespace(namespace), name)
    is_there = above is not None and copy is not None and is_of(copy.manifest(), world.owner, above.uid)
    return copy if is_there else None


def standing(world: World, lower: LowerWorld, namespace: str, name: str) -> Entry | None:
    """Return the copy of an account that exists in the upper cluster, or is missing there without a seen deletion."""
    originals = world.upper.more[SERVICE_ACCOUNT]
    if originals.get(namespace, name) is not None:
        return copied(world, lower, namespace, name)
    copy = lower.more[SERVICE_ACCOUNT].get(lower.namespace(namespace), name)
    departed = originals.tombstone(namespace, name)
    is_deleted = departed is not None and departed.seen
    return copy if copy is not None and not is_deleted and is_ours(copy.manifest(), world.owner) else None


def pulling(world: World, namespace: str, secret: str) -> list[str]:
    """Return the names of the upper accounts but `default` that pull images with a Secret of their namespace."""
    found = world.upper.more[SERVICE_ACCOUNT].select("pull secret", (namespace, secret))
    return [entry.name for entry in found if entry.name != DEFAULT]


def secrets_of(world: World, namespace: str, wanted: Iterable[Reference]) -> Iterator[str]:
    """Yield the names of the pull secrets of the accounts among what a pod refers to."""
    for one in wanted:
        above = world.upper.more[SERVICE_ACCOUNT].get(namespace, one.name) if one.kind == SERVICE_ACCOUNT.name else None
        if above is not None and one.name != DEFAULT:
            yield from above.facts


def pods_using(world: World, lower: LowerWorld, namespace: str, name: str) -> Iterator[Entry]:
    """Yield the upper pods that need the copy of an account, by its upper namespace and name."""
    if lower.spec.service_accounts.identity != "none":
        yield from asking(lower, world, SERVICE_ACCOUNT.name, namespace, name)


def is_asked(world: World, lower: LowerWorld, namespace: str, name: str) -> bool:
    """Report whether an upper pod needs the copy of an account."""
    return any(True for _ in pods_using(world, lower, namespace, name))


def is_used(world: World, lower: LowerWorld, namespace: str, name: str) -> bool:
    """Report whether an upper pod needs the copy of an account, or a lower pod of ours keeps it."""
    return is_asked(world, lower, namespace, name) or keeps(lower, SERVICE_ACCOUNT.name, namespace, name)


class ServiceAccountRule:
    """The rule with one key for each account but `default` that a virtual node's pod runs as, or that has a copy."""

    name = NAME

    def watches(self) -> tuple[Watch, ...]:
        """Watch accounts on both sides, and pods on both sides that begin or cease to run as one."""
        return (
            Watch("upper.ServiceAccount", _original),
            Watch("ServiceAccount", _copy),
            Watch("upper_pods", _user, facts=("terminal", "daemon", "references")),
            Watch("pods", _user_below, facts=("references",)),
        )

    def keys(self, world: World, lower: str) -> Iterator[Key]:
        """Yield the keys of all accounts that pods run as and of every copy."""
        here = world.lowers[lower]
        found = {key for entry in here.upper_pods for key in _keys_of(lower, entry.namespace, named(entry))}
        found |= {key for entry in here.more[SERVICE_ACCOUNT] for key in _below(here, entry)}
        yield from sorted(found)

    def decide(self, key: Key, world: World) -> Decision:
        """Return the copy while a pod needs it."""
        lower = world.lowers[key.lower]
        originals, copies = world.upper.more[SERVICE_ACCOUNT], lower.more[SERVICE_ACCOUNT]
        if not (originals.synced and copies.synced and lower.settled):
            return Decision()
        ref = Ref(lower.name, SERVICE_ACCOUNT, lower.namespace(key.namespace), key.name)
        original, copy = originals.get(key.namespace, key.name), copies.get(ref.namespace, ref.name)
        if not is_used(world, lower, key.namespace, key.name):
            return _end(world, ref, copy, "no pod runs as it any more")
        if original is None:
            return _without_original(world, ref, copy, originals, key)
        askers = pods_using(world, lower, key.namespace, key.name)
        is_wanted = any(True for _ in askers) if copy is not None else may_be_made(askers)
        return _kept(world, lower, ref, original, copy) if is_wanted else Decision()


def _kept(world: World, lower: LowerWorld, ref: Ref, original: Entry, copy: Entry | None) -> Decision:
    if not has_node(lower, world):
        return Decision()
    if not namespaces.ready(lower, original.namespace):
        return Decision(depends_on=(namespaces.key_of(lower.name, original.namespace),))
    manifest = _copy_of(original, copy, ref, world)
    reason = f"pods on node {lower.node} run as it"
    return Decision((Present(ref, manifest, reason, sections=_SECTIONS, replaceable=True),))


def _copy_of(original: Entry, copy: Entry | None, ref: Ref, world: World) -> Manifest:
    """Return the copy: the account's name, its pull secrets, and whether pods get a token by default."""
    above = original.manifest()
    kept = {key: value for key, value in annotations(above).items() if key not in _LEFT_ABOVE}
    pulls = _pulls(above)
    known = {one.get("name") for one in pulls}
    pulls += [one for one in _others(copy, original.namespace, world) if one.get("name") not in known]
    return {
        "apiVersion": SERVICE_ACCOUNT.api,
        "kind": SERVICE_ACCOUNT.name,
        "metadata": {
            "name": ref.name,
            "namespace": ref.namespace,
            "labels": labels(above) | world.owner.label,
            "annotations": kept | world.owner.signed(uid(above)),
        },
        "automountServiceAccountToken": above.get("automountServiceAccountToken", True),
    } | ({"imagePullSecrets": pulls} if pulls else {})


def _others(copy: Entry | None, namespace: str, world: World) -> list[Manifest]:
    """Return the pull secrets that others added to a copy: those that are no upper Secret are not ours to remove.

    Some clusters add one to every account, and would add it again indefinitely.
    """
    pulls = _pulls(copy.manifest()) if copy is not None else []
    return [one for one in pulls if world.upper.secrets.get(namespace, one.get("name", "")) is None]


def _pulls(account: Manifest) -> list[Manifest]:
    return list(account.get("imagePullSecrets") or ())


def _without_original(world: World, ref: Ref, copy: Entry | None, originals: Cache, key: Key) -> Decision:
    """Delete the copy if its original was seen deleted; keep it if the original is merely missing."""
    problem = Problem("ServiceAccountNotFound", f"ServiceAccount {key.namespace}/{key.name}: it does not exist")
    departed = originals.tombstone(key.namespace, key.name)
    if departed is None or not departed.seen or copy is None:
        return Decision(problem=problem)
    if not originals.is_deleted(key.namespace, key.name, upper_uid_of(copy.manifest())):
        return Decision(problem=problem)
    return _end(world, ref, copy, "the upper ServiceAccount was deleted")._replace(problem=problem)


def _end(world: World, ref: Ref, copy: Entry | None, reason: str) -> Decision:
    if copy is None or not is_ours(copy.manifest(), world.owner):
        return Decision()
    return Decision((Absent(ref, copy.uid, reason),))


def _original(world: World, lower: str, delta: Delta) -> Iterator[Key]:
    entry, here = delta.entry, world.lowers[lower]
    if entry.name == DEFAULT:
        return
    users = here.upper_pods.select("reference", (SERVICE_ACCOUNT.name, entry.namespace, entry.name))
    if users or here.more[SERVICE_ACCOUNT].get(here.namespace(entry.namespace), entry.name):
        yield key_of(lower, entry.namespace, entry.name)


def _copy(world: World, lower: str, delta: Delta) -> Iterator[Key]:
    yield from _below(world.lowers[lower], delta.entry)


def _below(lower: LowerWorld, entry: Entry) -> Iterator[Key]:
    for namespace in lower.above(entry.namespace):
        yield key_of(lower.name, namespace, entry.name)


def _user(world: World, lower: str, delta: Delta) -> Iterator[Key]:
    """Yield the accounts that an upper pod begins or ceases to run as."""
    excluded = world.topology.exclude_namespaces
    names = [named(entry) if entry and lives_below(entry, excluded) else frozenset() for entry in delta]
    yield from _keys_of(lower, delta.entry.namespace, names[0] ^ names[1])


def _user_below(world: World, lower: str, delta: Delta) -> Iterator[Key]:
    """Yield the accounts that a lower pod begins or ceases to run as; a pod that ended counts until it is deleted."""
    names = [named(entry) if entry else frozenset() for entry in delta]
    for namespace in world.lowers[lower].above(delta.entry.namespace):
        yield from _keys_of(lower, namespace, names[0] ^ names[1])


def named(pod: Entry) -> frozenset[str]:
    """Return the name of the account that a pod runs as, an empty set for `default`."""
    return frozenset(
        one.name for one in pod.facts.references if one.kind == SERVICE_ACCOUNT.name and one.name != DEFAULT
    )


def _keys_of(lower: str, namespace: str, names: Iterable[str]) -> Iterator[Key]:
    return (key_of(lower, namespace, name) for name in names)
