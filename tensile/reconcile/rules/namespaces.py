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
from tensile.reconcile.pods.index import needs_lower_pod
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

    `mark` is its owner's, `upper_uid` and `upper_name` are UID and name of the upper namespace that it was made for.
    """

    ending: bool = False
    mark: str = ""
    upper_uid: str = ""
    upper_name: str = ""


def transform(raw: bytes) -> Transformed:
    """Transform a namespace: its bytes and its `NamespaceFacts`."""
    namespace = decoded(raw)
    ending = "deletionTimestamp" in metadata(namespace)
    written, notes = our_keys(namespace, "annotations"), annotations(namespace)
    if UPPER_UID not in written or not labels(namespace).get(OWNER):
        return Transformed(raw, NamespaceFacts(ending))
    upper_name = notes.get(UPPER_NAMESPACE, "") if UPPER_NAMESPACE in written else ""
    return Transformed(raw, NamespaceFacts(ending, labels(namespace)[OWNER], notes.get(UPPER_UID, ""), upper_name))


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


def is_for(entry: Entry, lower: LowerWorld, upper_namespace: str) -> bool:
    """Report whether a lower namespace may be used for an upper one: any, or with a prefix only the one made for it."""
    if lower.naming is None:
        return True
    return (entry.facts.mark, entry.facts.upper_name) == (lower.naming.mark, upper_namespace)


class NamespaceRule:
    """The rule with one key for each upper namespace that has pods or claims for the virtual node, or is ours there."""

    name = NAME

    def watches(self) -> tuple[Watch, ...]:
        """Watch namespaces on both sides, and lower accounts, which are created after their namespace."""
        return (
            Watch("namespaces", _on_lower_namespace),
            Watch("accounts", _on_lower_account),
            Watch("upper.namespaces", _on_upper_namespace),
        )

    def keys(self, world: World, lower: str) -> Iterator[Key]:
        """Yield a key for each namespace with a pod or a claim for the node, and for each one that is ours."""
        lower_world = world.lowers[lower]
        found = {entry.namespace for entry in lower_world.upper_pods} | claims.namespaces_selected_in(
            world, lower_world
        )
        found |= {entry.facts.upper_name for entry in lower_world.namespaces if entry.facts.mark == world.owner.mark}
        for namespace in sorted(found - {""}):
            yield key_of(lower, namespace)

    def decide(self, key: Key, world: World) -> Decision:
        """Create the namespace while an upper pod needs it; keep the labels of a namespace that is ours."""
        lower = world.lowers[key.lower]
        name = lower.namespace(key.name)
        upper, existing = world.upper.namespaces.get("", key.name), lower.namespaces.get("", name)
        is_known = lower.namespaces.synced and lower.mapping_known
        if not is_known or upper is None or not _needed(lower, upper, existing, world):
            return Decision()
        if lower.is_own(key.name):
            return Decision(problem=_own(key, lower))
        if existing is not None and existing.facts.ending:
            return Decision(
                problem=Problem(TERMINATING, f"namespace {name} is being deleted in lower cluster {lower.name}")
            )
        if existing is not None and _is_only_used(existing, upper, lower, world):
            return Decision()
        obstacle = (
            _obstacle(existing, upper, lower, world) if existing is not None and lower.naming is not None else None
        )
        if obstacle is not None:
            return Decision(problem=obstacle)
        manifest = _manifest(name, upper.manifest(), world)
        reason = "pods need it" if existing is None else "its Pod Security labels differ from the upper namespace"
        return Decision((Present(Ref(lower.name, NAMESPACE, "", name), manifest, reason),))


def _is_only_used(existing: Entry, upper: Entry, lower: LowerWorld, world: World) -> bool:
    """Report whether a namespace is foreign and stays so, although pods run in it."""
    if lower.naming is not None or is_ours(existing.manifest(), world.owner):
        return False
    ref = Ref(lower.name, NAMESPACE, "", existing.name)
    return adoption_problem(ref, existing.manifest(), upper.uid, world, lower.name) is not None


def _obstacle(existing: Entry, upper: Entry, lower: LowerWorld, world: World) -> Problem | None:
    """Return why a namespace with a prefixed name cannot be used, None where it is ours for that upper one, or may be.

    It is for one owner alone. A namespace with other marks is adopted only if our own Node notes the topology that made
    it as the one that this topology continues. A mark on the namespace alone proves nothing.
    """
    naming, facts, ref = lower.naming, existing.facts, Ref(lower.name, NAMESPACE, "", existing.name)
    assert naming is not None, "only a prefixed name can be for another owner"
    if facts.upper_name not in ("", upper.name):
        place = f"Namespace {existing.name} in {lower.name}"
        message = f"{place} belongs to upper namespace {facts.upper_name}, not to {upper.name}"
        return Problem(NAME_CONFLICT, f"{message}: rename one of the two")
    if facts.mark == world.owner.mark:
        return None
    predecessor = owner_of(world.owner.upper, naming.topology)
    if (facts.mark, facts.upper_name, facts.upper_uid) == (predecessor.mark, upper.name, upper.uid):
        return adoption_problem(ref, existing.manifest(), upper.uid, world, lower.name)
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


def _needed(lower: LowerWorld, upper: Entry, existing: Entry | None, world: World) -> bool:
    """Report whether an upper pod has to run in it or waits for its volume, or it was created for that upper namespace.

    One that we created keeps the Pod Security labels up to date also between two pods. Nothing is created, and nothing
    changed without a pod, while the Node is not ours.
    """
    excluded = world.topology.exclude_namespaces
    if has_node(lower, world):
        is_ours = existing is not None and (existing.facts.mark, existing.facts.upper_uid) == (
            world.owner.mark,
            upper.uid,
        )
        if is_ours and upper.name not in excluded:
            return True
    elif existing is None:
        return False
    runs = any(needs_lower_pod(pod, excluded) for pod in lower.upper_pods.select("namespace", upper.name))
    return runs or upper.name in claims.namespaces_selected_in(world, lower)


def _manifest(name: str, upper: Manifest, world: World) -> Manifest:
    security = {key: value for key, value in labels(upper).items() if key.startswith(_POD_SECURITY)}
    return {
        "apiVersion": NAMESPACE.api,
        "kind": NAMESPACE.name,
        "metadata": {
            "name": name,
            "labels": security | {_NAME_LABEL: name} | world.owner.label,
            "annotations": world.owner.signed(metadata(upper)["uid"]) | {UPPER_NAMESPACE: metadata(upper)["name"]},
        },
    }


def _on_upper_namespace(_world: World, lower: str, delta: Delta) -> Iterable[Key]:
    yield key_of(lower, delta.entry.name)


def _on_lower_namespace(world: World, lower: str, delta: Delta) -> Iterable[Key]:
    return _named(world.lowers[lower], delta.entry.name)


def _on_lower_account(world: World, lower: str, delta: Delta) -> Iterable[Key]:
    return _named(world.lowers[lower], delta.entry.namespace)


def _named(lower: LowerWorld, namespace: str) -> Iterable[Key]:
    """Yield the key of the upper namespace that a lower one is named after, whoever created the lower one."""
    upper_name = lower.named(namespace)
    if upper_name:
        yield key_of(lower.name, upper_name)
