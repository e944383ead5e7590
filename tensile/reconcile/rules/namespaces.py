"""The rule for lower namespaces: created when a pod needs one that is missing.

They get the Pod Security labels of the upper namespace; without these they would allow what the upper namespace
forbids. An existing namespace is used as it is, whoever created it; only our own are kept in sync. With `mapping:
prefix` a name is meant for one owner alone, so another's namespace of that name is a conflict.
"""

from collections.abc import Iterable, Iterator

import msgspec

from tensile.kube.store import Delta, Entry, Transformed, decoded
from tensile.names import NAMESPACE_EXCLUDED, OWNER, UPPER_NAMESPACE, UPPER_UID, ProblemReason, owner_of
from tensile.objects import NAMESPACE, Manifest, Ref, annotations, labels, metadata
from tensile.reconcile.desired import Decision, Present, Watch
from tensile.reconcile.ownership import NAME_CONFLICT, adoption_problem, adopts, conflict, has_node, is_ours, our_keys
from tensile.reconcile.pods.index import lives_below
from tensile.reconcile.rules import claims
from tensile.reconcile.world import Key, LowerWorld, Problem, World

NAME = "namespace"
TERMINATING: ProblemReason = "NamespaceTerminating"
"""The lower namespace is being deleted, so nothing can be created in it. Remedy: wait; if it stays, look there for
objects with finalizers."""
_POD_SECURITY = "pod-security.kubernetes.io/"
_NAME_LABEL = "kubernetes.io/metadata.name"
"""The apiserver sets this label on every namespace and credits its creator with it, so it is ours to keep."""


class NamespaceFacts(msgspec.Struct, frozen=True, gc=False):
    """Facts of a namespace: whether it is `ending`, and the marks that an engine like this one wrote, "" without.

    `mark` is its owner's, `upper_uid` and `above` are UID and name of the upper namespace that it was made for.
    """

    ending: bool = False
    mark: str = ""
    upper_uid: str = ""
    above: str = ""


def digest(raw: bytes) -> Transformed:
    """Transform a namespace: its bytes and its `NamespaceFacts`."""
    namespace = decoded(raw)
    ending = "deletionTimestamp" in metadata(namespace)
    written, notes = our_keys(namespace, "annotations"), annotations(namespace)
    if UPPER_UID not in written or not labels(namespace).get(OWNER):
        return Transformed(raw, NamespaceFacts(ending))
    above = notes.get(UPPER_NAMESPACE, "") if UPPER_NAMESPACE in written else ""
    return Transformed(raw, NamespaceFacts(ending, labels(namespace)[OWNER], notes.get(UPPER_UID, ""), above))


def key_of(lower: str, upper_namespace: str) -> Key:
    """Return the key of the lower namespace that belongs to an upper one."""
    return Key(NAME, lower, "", upper_namespace)


def ready(lower: LowerWorld, upper_namespace: str) -> str:
    """Return the UID of the lower namespace when pods can be created in it, else "".

    Kubernetes refuses a pod until the namespace's ServiceAccount `default` exists. Nothing is created in the namespace
    of the engine's own account: a pod there could be given the engine's credential.
    """
    if lower.is_own(upper_namespace):
        return ""
    name = lower.namespace(upper_namespace)
    entry = lower.namespaces.get("", name)
    if entry is None or entry.facts.ending or lower.accounts.get(name, "default") is None:
        return ""
    return entry.uid if is_for(entry, lower, upper_namespace) else ""


def is_for(below: Entry, lower: LowerWorld, upper_namespace: str) -> bool:
    """Report whether a lower namespace may be used for an upper one: any, or with a prefix only the one made for it."""
    if lower.naming is None:
        return True
    return (below.facts.mark, below.facts.above) == (lower.naming.mark, upper_namespace)


class NamespaceRule:
    """The rule with one key for each upper namespace that has pods or claims for the virtual node, or is ours there."""

    name = NAME

    def watches(self) -> tuple[Watch, ...]:
        """Watch namespaces on both sides, and lower accounts, which are created after their namespace."""
        return (
            Watch("namespaces", _below),
            Watch("accounts", _account_below),
            Watch("upper.namespaces", _above),
        )

    def keys(self, world: World, lower: str) -> Iterator[Key]:
        """Yield a key for each namespace with a pod or a claim for the node, and for each one that is ours."""
        lower_world = world.lowers[lower]
        found = {entry.namespace for entry in lower_world.upper_pods} | claims.namespaces_selected_in(
            world, lower_world
        )
        found |= {entry.facts.above for entry in lower_world.namespaces if entry.facts.mark == world.owner.mark}
        for namespace in sorted(found - {""}):
            yield key_of(lower, namespace)

    def decide(self, key: Key, world: World) -> Decision:
        """Create the namespace while an upper pod needs it; keep the labels of a namespace that is ours."""
        lower = world.lowers[key.lower]
        name = lower.namespace(key.name)
        above, below = world.upper.namespaces.get("", key.name), lower.namespaces.get("", name)
        is_known = lower.namespaces.synced and lower.mapping_known
        if not is_known or above is None or not _needed(lower, above, below, world):
            return Decision()
        if lower.is_own(key.name):
            return Decision(problem=_own(key, lower))
        if below is not None and below.facts.ending:
            return Decision(
                problem=Problem(TERMINATING, f"namespace {name} is being deleted in lower cluster {lower.name}")
            )
        if below is not None and _is_only_used(below, above, lower, world):
            return Decision()
        obstacle = _obstacle(below, above, lower, world) if below is not None and lower.naming is not None else None
        if obstacle is not None:
            return Decision(problem=obstacle)
        manifest = _manifest(name, above.manifest(), world)
        reason = "pods need it" if below is None else "its Pod Security labels differ from the upper namespace"
        return Decision((Present(Ref(lower.name, NAMESPACE, "", name), manifest, reason),))


def _is_only_used(below: Entry, above: Entry, lower: LowerWorld, world: World) -> bool:
    """Report whether a namespace is foreign and stays so, although pods run in it."""
    if lower.naming is not None or is_ours(below.manifest(), world.owner):
        return False
    ref = Ref(lower.name, NAMESPACE, "", below.name)
    return adoption_problem(ref, below.manifest(), above.uid, world, lower.name) is not None


def _obstacle(below: Entry, above: Entry, lower: LowerWorld, world: World) -> Problem | None:
    """Return why a namespace with a prefixed name cannot be used, None where it is ours for that upper one, or may be.

    It is for one owner alone. A namespace with other marks is adopted only if our own Node notes the topology that made
    it as the one that this topology continues. A mark on the namespace alone proves nothing.
    """
    naming, facts, ref = lower.naming, below.facts, Ref(lower.name, NAMESPACE, "", below.name)
    assert naming is not None, "only a prefixed name can be for another owner"
    if facts.above not in ("", above.name):
        message = (
            f"Namespace {below.name} in {lower.name} belongs to upper namespace {facts.above}, not to {above.name}"
        )
        return Problem(NAME_CONFLICT, f"{message}: rename one of the two")
    if facts.mark == world.owner.mark:
        return None
    predecessor = owner_of(world.owner.upper, naming.topology)
    if (facts.mark, facts.above, facts.upper_uid) == (predecessor.mark, above.name, above.uid):
        return adoption_problem(ref, below.manifest(), above.uid, world, lower.name)
    why = (
        f"only a namespace that topology {naming.topology} created for it is adopted"
        if adopts(world, lower.name)
        else ""
    )
    return conflict(ref, why)


def _own(key: Key, lower: LowerWorld) -> Problem:
    """Return the problem that a namespace is the engine's own."""
    name = lower.namespace(key.name)
    where = f"{name} of {lower.name}" if name == lower.account else f"{key.name} of the upper cluster"
    return Problem(
        NAMESPACE_EXCLUDED, f"namespace {where} has the engine's own ServiceAccount: nothing in {key.name} is mirrored"
    )


def _needed(lower: LowerWorld, above: Entry, below: Entry | None, world: World) -> bool:
    """Report whether an upper pod has to run in it or waits for its volume, or it was created for that upper namespace.

    One that we created keeps the Pod Security labels up to date also between two pods. Nothing is created, and nothing
    changed without a pod, while the Node is not ours.
    """
    excluded = world.topology.exclude_namespaces
    if has_node(lower, world):
        is_ours = below is not None and (below.facts.mark, below.facts.upper_uid) == (world.owner.mark, above.uid)
        if is_ours and above.name not in excluded:
            return True
    elif below is None:
        return False
    runs = any(lives_below(pod, excluded) for pod in lower.upper_pods.select("namespace", above.name))
    return runs or above.name in claims.namespaces_selected_in(world, lower)


def _manifest(name: str, above: Manifest, world: World) -> Manifest:
    security = {key: value for key, value in labels(above).items() if key.startswith(_POD_SECURITY)}
    return {
        "apiVersion": NAMESPACE.api,
        "kind": NAMESPACE.name,
        "metadata": {
            "name": name,
            "labels": security | {_NAME_LABEL: name} | world.owner.label,
            "annotations": world.owner.signed(metadata(above)["uid"]) | {UPPER_NAMESPACE: metadata(above)["name"]},
        },
    }


def _above(_world: World, lower: str, delta: Delta) -> Iterable[Key]:
    yield key_of(lower, delta.entry.name)


def _below(world: World, lower: str, delta: Delta) -> Iterable[Key]:
    return _named(world.lowers[lower], delta.entry.name)


def _account_below(world: World, lower: str, delta: Delta) -> Iterable[Key]:
    return _named(world.lowers[lower], delta.entry.namespace)


def _named(lower: LowerWorld, namespace: str) -> Iterable[Key]:
    """Yield the key of the upper namespace that a lower one is named after, whoever created the lower one."""
    above = lower.named(namespace)
    if above:
        yield key_of(lower.name, above)
