"""The rule for namespaces below: made when a pod needs one that is missing.

They come with the Pod Security labels of the namespace above, or a namespace made bare would allow what the upper's
forbids. One that is there already is used as it is, whoever made it; only what we made is kept in step.
"""

from collections.abc import Iterable, Iterator

from tensile.cache import Delta, Kept, decoded
from tensile.names import OWNER, OWNER_NAME, UPPER_UID
from tensile.objects import NAMESPACE, Manifest, Ref, labels, metadata
from tensile.reconcile.claims import selected_in
from tensile.reconcile.desired import Decision, Present, Route
from tensile.reconcile.observed import has_node, is_ours
from tensile.reconcile.podfacts import lives_below
from tensile.world import Key, LowerWorld, Problem, World

NAME = "namespace"
_POD_SECURITY = "pod-security.kubernetes.io/"
_NAME_LABEL = "kubernetes.io/metadata.name"
"""Every namespace gets it from the apiserver, which books it to whoever made the namespace: so it is ours to keep."""


def digest(raw: bytes) -> Kept:
    """Keep a namespace; its facts are whether it is being deleted."""
    return Kept(raw, "deletionTimestamp" in metadata(decoded(raw)))


def key_of(lower: str, upper_namespace: str) -> Key:
    """Give the key of the namespace below that belongs to one above."""
    return Key(NAME, lower, "", upper_namespace)


def ready(lower: LowerWorld, upper_namespace: str) -> str:
    """Give the UID of the namespace below when pods can be made in it, else "".

    Kubernetes refuses a pod until the namespace's ServiceAccount `default` exists.
    """
    name = lower.namespace(upper_namespace)
    entry = lower.namespaces.get("", name)
    if entry is None or entry.facts or lower.accounts.get(name, "default") is None:
        return ""
    return entry.uid


class NamespaceRule:
    """One key for each upper namespace that has pods on the virtual node."""

    name = NAME

    def routes(self) -> tuple[Route, ...]:
        """Hear of namespaces on both sides, and of accounts below, which come after their namespace."""
        return (
            Route("namespaces", _below),
            Route("accounts", _account_below),
            Route("upper.namespaces", _above),
        )

    def keys(self, world: World, lower: str) -> Iterator[Key]:
        """Give a key for each namespace with a pod."""
        for namespace in sorted({entry.namespace for entry in world.lowers[lower].upper_pods}):
            yield key_of(lower, namespace)

    def decide(self, key: Key, world: World) -> Decision:
        """Make the namespace while a pod above needs it; keep the labels of one that is ours."""
        lower = world.lowers[key.lower]
        name = lower.namespace(key.name)
        above, below = world.upper.namespaces.get("", key.name), lower.namespaces.get("", name)
        if not lower.namespaces.synced or above is None or not _needed(lower, key.name, world):
            return Decision()
        if below is not None and below.facts:
            return Decision(
                problem=Problem("NamespaceTerminating", f"namespace {name} is being deleted in {lower.name}")
            )
        if below is not None and not is_ours(below.manifest(), world.owner):
            return Decision()
        manifest = _manifest(name, above.manifest(), world)
        reason = "pods need it" if below is None else "its Pod Security labels differ from those above"
        return Decision((Present(Ref(lower.name, NAMESPACE, "", name), manifest, reason),))


def _needed(lower: LowerWorld, upper_namespace: str, world: World) -> bool:
    """Say whether a pod above has to run in it, or waits for its volume; while the Node is not ours, none does."""
    if lower.namespaces.get("", lower.namespace(upper_namespace)) is None and not has_node(lower, world):
        return False
    pods = lower.upper_pods.select("namespace", upper_namespace)
    runs = any(lives_below(pod, world.topology.exclude_namespaces) for pod in pods)
    return runs or selected_in(world, lower, upper_namespace)


def _manifest(name: str, above: Manifest, world: World) -> Manifest:
    security = {key: value for key, value in labels(above).items() if key.startswith(_POD_SECURITY)}
    return {
        "apiVersion": NAMESPACE.api,
        "kind": NAMESPACE.name,
        "metadata": {
            "name": name,
            "labels": {**security, _NAME_LABEL: name, OWNER: world.owner.mark},
            "annotations": {OWNER_NAME: world.owner.name, UPPER_UID: metadata(above)["uid"]},
        },
    }


def _name_of(delta: Delta) -> str:
    entry = delta.entry
    return entry.name


def _above(world: World, lower: str, delta: Delta) -> Iterable[Key]:
    if world.lowers[lower].upper_pods.select("namespace", _name_of(delta)):
        yield key_of(lower, _name_of(delta))


def _below(world: World, lower: str, delta: Delta) -> Iterable[Key]:
    yield key_of(lower, world.lowers[lower].upper_namespace(_name_of(delta)))


def _account_below(world: World, lower: str, delta: Delta) -> Iterable[Key]:
    entry = delta.entry
    yield key_of(lower, world.lowers[lower].upper_namespace(entry.namespace))
