"""A world for the tests of rules: a topology from text, caches as informers would fill them, and a fixed clock.

Every cache begins empty and in sync. Objects get their UID from their kind and name, and their resourceVersion from
their cache, so that a test has only the details that matter to it.
"""

from collections.abc import Callable, Iterable, Iterator
from copy import deepcopy
from datetime import UTC, datetime
from typing import Any

import orjson

from tensile.engine.caches import lower_world, upper_world
from tensile.kube.store import Cache, Entry
from tensile.kubelet.node.rule import NodeRule
from tensile.kubelet.node.rule import key_of as node_key
from tensile.kubelet.pods.lower_context import LowerContext
from tensile.kubelet.pods.projection import to_lower_pod
from tensile.names import FIELD_MANAGER, OWNER, OWNER_NAME, UPPER_UID, Owner, owner_of
from tensile.objects import Manifest, annotations, labels, metadata, uid
from tensile.reconcile.desired import Decision, Present, Rule, Wanted
from tensile.reconcile.plan import Plan, plan
from tensile.reconcile.world import Key, LowerWorld, NamespaceNaming, World
from tensile.topology import Lower, Topology, parse

OWNER_HERE = owner_of("11111111-upper", "demo")
STRANGER = owner_of("22222222-other", "demo")
NOW = datetime(2026, 3, 1, 12, 0, 0, tzinfo=UTC)
A, B = "lower-a", "lower-b"
_HEAD = "apiVersion: tensile-kube.io/v1alpha1\nkind: Topology\nname: demo\n"


def make_topology(*lowers: str, more: str = "") -> Topology:
    """Parse a topology of lowers given in flow style without braces ("name: lower-a, maintenance: drain").

    If none are given, it has lower-a and lower-b with defaults. `more` is further text of the file.
    """
    entries = lowers or (f"name: {A}", f"name: {B}")
    items = "".join(f"- {{kubeconfig: k/{place}, {entry}}}\n" for place, entry in enumerate(entries))
    return parse(f"{_HEAD}lowers:\n{items}{more}")


def make_world(*lowers: str, more: str = "", now: datetime = NOW) -> World:
    """Make a world of empty clusters, in sync, for such a topology."""
    found = make_topology(*lowers, more=more)
    upper = upper_world()
    mark_synced(*upper.caches(), *upper.more.values())
    made = World(found, OWNER_HERE, upper, now, "10.0.0.1")
    made.lowers.update({spec.name: make_lower(spec) for spec in found.lowers})
    return made


def make_lower(spec: Lower) -> LowerWorld:
    """Make an empty lower as the engine does."""
    lower = lower_world(spec, NamespaceNaming("demo", OWNER_HERE.mark))
    lower.version = "v1.36.3"
    mark_synced(*lower.caches(), *lower.place_caches(), *lower.more.values())
    return lower


def mark_synced(*caches: Cache) -> None:
    """Mark caches as synced by an empty first list."""
    for cache in caches:
        cache.replace((), 1)


def synced_cache(*given: Any, **more: Any) -> Cache:
    """Make a cache that is synced by an empty first list; the arguments are those of Cache."""
    cache = Cache(*given, **more)
    cache.replace((), 1)
    return cache


def apply_topology(into: World, *lowers: str, more: str = "") -> None:
    """Apply another topology: lowers that are absent from it stay in the world, marked as not in the topology."""
    into.topology = make_topology(*lowers, more=more)
    specs = {spec.name: spec for spec in into.topology.lowers}
    for name, lower in into.lowers.items():
        lower.in_topology = name in specs
        lower.spec = specs.get(name, lower.spec)
    into.lowers.update({name: make_lower(spec) for name, spec in specs.items() if name not in into.lowers})


# Changes of caches.


def put(cache: Cache, *manifests: Manifest) -> Entry:
    """Put objects into a cache as its watch does, each newer than all before, and return the last entry."""
    for manifest in manifests:
        cache.put(stored_bytes(manifest, cache.version + 1))
    meta = metadata(manifests[-1])
    entry = cache.get(meta.get("namespace", ""), meta["name"])
    assert entry is not None
    return entry


def delete_observed(cache: Cache, name: str, namespace: str = "default") -> None:
    """Remove an object from a cache as its watch does, so that its name is known to be free."""
    entry = cache.get(namespace, name)
    assert entry is not None
    cache.remove(stored_bytes(entry.manifest(), cache.version + 1))


def relist_without(cache: Cache, name: str, namespace: str = "default") -> None:
    """Relist a cache without an object, so that its fate is not known."""
    kept = [entry.raw for entry in cache if (entry.namespace, entry.name) != (namespace, name)]
    assert len(kept) < len(cache)
    cache.replace(kept, cache.version + 1)


def stored_bytes(manifest: Manifest, version: int) -> bytes:
    """Return the bytes of an object as the API stores it at a version."""
    return orjson.dumps({**manifest, "metadata": {**metadata(manifest), "resourceVersion": str(version)}})


def add_namespace(of: World, lower: str = A, namespace: str = "default") -> None:
    """Put a namespace into the upper and a lower cluster, with its account, so that pods can be created in it.

    The lower namespace has no owner.
    """
    lower_state = of.lowers[lower]
    put(of.upper.namespaces, make_namespace(namespace))
    put(lower_state.namespaces, make_namespace(namespace, uid=f"below-{namespace}"))
    put(lower_state.accounts, make_service_account(namespace))


def add_virtual_node(of: World, lower: str = A) -> Entry:
    """Put a lower's virtual node into the upper cluster, as the engine would create it now."""
    (made,) = NodeRule().decide(node_key(of.lowers[lower]), of).wanted
    assert isinstance(made, Present)
    return put(
        of.upper.nodes, with_managed_fields({**made.manifest, "metadata": made.manifest["metadata"] | {"uid": "node"}})
    )


# Objects. Keyword arguments beyond those named are in the metadata.


def make_object(kind: str, name: str, namespace: str = "default", api: str = "v1", **meta: Any) -> Manifest:
    """Make an object with metadata and nothing else; namespace is "" if its kind has none."""
    where = {"namespace": namespace} if namespace else {}
    return {"apiVersion": api, "kind": kind, "metadata": {"name": name, **where, "uid": f"{kind}-{name}", **meta}}


def make_upper_pod(
    name: str = "web", spec: Manifest | None = None, status: Manifest | None = None, **meta: Any
) -> Manifest:
    """Make an upper pod bound to lower-a, with one container "main"; spec and status are merged over that."""
    basis = {"nodeName": A, "containers": [{"name": "main", "image": "app:1"}]}
    pod = make_object("Pod", name, meta.pop("namespace", "default"), generation=1, **meta)
    return {**pod, "spec": basis | (spec or {}), "status": {"phase": "Pending"} | (status or {})}


def make_lower_pod(of: Manifest, status: Manifest | None = None, node: str = A, **meta: Any) -> Manifest:
    """Make the lower pod of an upper pod as the engine would; its UID is "below-" and the upper pod's."""
    namespace = metadata(of)["namespace"]
    made = to_lower_pod(of, LowerContext(OWNER_HERE, node, namespace, f"below-{namespace}"))
    more = {"uid": f"below-{uid(of)}", **meta}
    made = {**made, "metadata": {**made["metadata"], **more}, "status": {"phase": "Pending"} | (status or {})}
    return with_managed_fields(made)


def spec_with_references(
    *, config_maps: Iterable[str] = (), secrets: Iterable[str] = (), optional: bool = False
) -> Manifest:
    """Make a pod's spec that refers to ConfigMaps and Secrets by volumes."""
    volumes = [{"name": f"c-{one}", "configMap": {"name": one, "optional": optional}} for one in config_maps]
    volumes += [{"name": f"s-{one}", "secret": {"secretName": one, "optional": optional}} for one in secrets]
    return {"volumes": volumes}


def token_volume(name: str = "kube-api-access-x") -> Manifest:
    """Make the volume that admission adds to a pod for its account's token, as an apiserver stores it."""
    field = {"apiVersion": "v1", "fieldPath": "metadata.namespace"}
    sources = [
        {"serviceAccountToken": {"expirationSeconds": 3607, "path": "token"}},
        {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
        {"downwardAPI": {"items": [{"path": "namespace", "fieldRef": field}]}},
    ]
    return {"name": name, "projected": {"defaultMode": 420, "sources": sources}}


def config_map(name: str = "settings", data: dict[str, str] | None = None, **meta: Any) -> Manifest:
    """Make a ConfigMap."""
    return {**make_object("ConfigMap", name, **meta), "data": data or {"key": "value"}}


def secret(name: str = "password", kind: str = "Opaque", **meta: Any) -> Manifest:
    """Make a Secret."""
    return {**make_object("Secret", name, **meta), "type": kind, "data": {"key": "dmFsdWU="}}


def make_namespace(name: str = "default", **meta: Any) -> Manifest:
    """Make a namespace, with the label that the API adds to each."""
    given = meta.pop("labels", {})
    return make_object("Namespace", name, "", labels={"kubernetes.io/metadata.name": name, **given}, **meta)


def make_service_account(namespace: str = "default", name: str = "default") -> Manifest:
    """Make a ServiceAccount."""
    return make_object("ServiceAccount", name, namespace)


def make_lower_node(
    name: str = "n1", cpu: str = "4", *, ready: bool = True, arch: str = "amd64", **spec: Any
) -> Manifest:
    """Make a real node of a lower cluster: 8Gi, 110 pods; keyword arguments beyond those named are in its spec."""
    conditions = [{"type": "Ready", "status": "True" if ready else "False"}]
    amounts = {"cpu": cpu, "memory": "8Gi", "pods": "110"}
    info = {"architecture": arch, "operatingSystem": "linux", "kubeletVersion": "v1.36.3"}
    status = {"allocatable": amounts, "conditions": conditions, "nodeInfo": info}
    return {**make_object("Node", name, ""), "spec": spec, "status": status}


def with_owner_marks(manifest: Manifest, upper_uid: str, owner: Owner = OWNER_HERE, **meta: Any) -> Manifest:
    """Return an object with an owner's marks, as created for the upper object of that UID."""
    ours = {
        "labels": labels(manifest) | {OWNER: owner.mark},
        "annotations": annotations(manifest) | {OWNER_NAME: owner.name, UPPER_UID: upper_uid},
    }
    return with_managed_fields({**manifest, "metadata": {**metadata(manifest), **ours, **meta}})


def with_managed_fields(manifest: Manifest) -> Manifest:
    """Return an object whose managedFields record that tensile wrote all its labels and annotations."""
    fields = {
        f"f:{section}": {f"f:{key}": {} for key in metadata(manifest).get(section) or {}}
        for section in ("labels", "annotations")
    }
    book = {"manager": FIELD_MANAGER, "operation": "Update", "fieldsV1": {"f:metadata": fields}}
    return {**manifest, "metadata": {**metadata(manifest), "managedFields": [book]}}


def change_as_other_client(
    cache: Cache, name: str, change: Callable[[Manifest], None], namespace: str = "default"
) -> Entry:
    """Change an object as another client: `change` receives it decoded, and the cache receives the result."""
    entry = cache.get(namespace, name)
    assert entry is not None
    manifest = deepcopy(entry.manifest())
    change(manifest)
    return put(cache, manifest)


# Decisions of rules.


def decision_and_plan(rule: Rule, key: Key, of: World) -> tuple[Decision, Plan]:
    """Return a rule's decision about a key and its plan; fail if they change an object that the caches share."""
    decision = rule.decide(key, of)
    found = plan(key, decision, of)
    for cache in (*of.upper.caches(), *(cache for lower in of.lowers.values() for cache in lower.caches())):
        assert all(entry.manifest() == orjson.loads(entry.raw) for entry in cache if entry.raw)
    return decision, found


def only_desired(decision: Decision) -> Wanted:
    """Return the one object that a decision wants."""
    (wanted,) = decision.wanted
    return wanted


def sorted_names(keys: Iterable[Key]) -> Iterator[str]:
    """Yield the names of keys, sorted, with their namespace if they have one."""
    yield from sorted(f"{key.namespace}/{key.name}" if key.namespace else key.name for key in keys)


SIBLING = owner_of(OWNER_HERE.upper, "second")


def make_owned_node(owner: str, ready: str = "True", **more: str) -> Manifest:
    """Make a virtual node of an owner, with the Ready status that its engine or its absence leaves."""
    node = make_object("Node", f"node-{owner}", "", labels={"type": "virtual-kubelet", OWNER: owner} | more)
    return {**node, "status": {"conditions": [{"type": "Ready", "status": ready}]}}
