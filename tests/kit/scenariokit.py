"""The language of the scenario files: a topology, the objects of each cluster, the acts, and what is recorded.

    about: one sentence
    topology: {lowers: [...], ...}        absent: lower-a and lower-b
    slow: true                            deleted lower pods stay until they vanish
    given:                                by cluster; "upper" is the upper one
      upper: [{pod: shop/web, spec: {...}, status: {...}}, {configMap: shop/settings}]
      lower-a: [{twin: shop/web, status: {...}}]
    before: true                          the engine runs once, without recording, before the acts
    then: [{delete: upper Pod shop/web}, ...]

A namespace exists in the upper cluster if any cluster has an object in it, and in a lower cluster if that one has. An
entry's other fields are merged over the smallest object of its kind, `meta` over its metadata.
"""

from collections.abc import Callable, Iterable
from itertools import groupby
from typing import Any

import orjson
from stagekit import EngineSimulation, LoopRecord
from worldkit import (
    OWNER_HERE,
    STRANGER,
    A,
    make_lower_pod,
    make_namespace,
    make_object,
    make_upper_pod,
    secret,
    with_owner_marks,
)

from tensile.kubelet.pods.conditions import conditions_of
from tensile.names import OWNER
from tensile.objects import (
    CLAIM,
    CLUSTER_ROLE,
    CONFIG_MAP,
    EVENT,
    NAMESPACE,
    NODE,
    POD,
    ROLE,
    ROLE_BINDING,
    SECRET,
    SERVICE_ACCOUNT,
    STORAGE_CLASS,
    UPPER,
    VOLUME,
    Manifest,
    Ref,
)
from tensile.reconcile.plan import Step
from tensile.topology import Topology, parse

_STORAGE = (CLAIM, VOLUME, STORAGE_CLASS)
_RIGHTS = (SERVICE_ACCOUNT, ROLE, ROLE_BINDING, CLUSTER_ROLE)
KINDS = {kind.name: kind for kind in (POD, CONFIG_MAP, SECRET, NAMESPACE, NODE, *_RIGHTS, *_STORAGE)}
_WORDS = {kind.name[0].lower() + kind.name[1:]: kind for kind in KINDS.values()} | {"twin": POD}
_OWN = {"meta", "marked", "stranger", "forged", "at", "of", "times", *_WORDS}
Entry = dict[str, Any]


# Reading.


def topology_of(given: Manifest | None) -> Topology:
    """Return the topology of a scenario; lowers get a kubeconfig, and are lower-a and lower-b if none are named."""
    lowers = [{"kubeconfig": f"k/{one['name']}", **one} for one in (given or {}).get("lowers") or _TWO]
    head = {"apiVersion": "tensile-kube.io/v1alpha1", "kind": "Topology", "name": "demo"}
    return parse(as_text({**head, **(given or {}), "lowers": lowers}))


_TWO = ({"name": "lower-a"}, {"name": "lower-b"})


def as_text(document: Manifest) -> str:
    """Return a document as text that the topology's own parser reads."""
    return orjson.dumps(document).decode()


def make_entry(entry: Entry) -> Manifest:
    """Return the object that an entry describes."""
    word = next(word for word in _WORDS if word in entry)
    namespace, _, name = entry[word].rpartition("/")
    manifest = _SMALLEST[word](namespace, name, entry)
    rest = {field: value for field, value in entry.items() if field not in _OWN}
    manifest = merged(manifest, rest if word not in ("pod", "twin") else {})
    return _labelled(entry, merged(manifest, {"metadata": entry.get("meta", {})}))


def _pod(namespace: str, name: str, entry: Entry) -> Manifest:
    spec = {"nodeName": entry.get("at", A), **entry.get("spec", {})}
    identity = {"namespace": namespace, "uid": f"uid-{name}", **entry.get("meta", {})}
    return make_upper_pod(name, spec, entry.get("status"), **identity)


def _twin(namespace: str, name: str, entry: Entry) -> Manifest:
    upper_object = _pod(namespace, name, {**entry, "meta": {"uid": entry.get("of", f"uid-{name}")}})
    made = make_lower_pod(upper_object, entry.get("status"), entry.get("at", A))
    return merged(made, {"spec": {"nodeName": "n1"}})


def _thing(kind: str) -> Callable[[str, str, Entry], Manifest]:
    return lambda namespace, name, _entry: make_object(kind, name, namespace)


_SMALLEST: dict[str, Callable[[str, str, Entry], Manifest]] = {
    "pod": _pod,
    "twin": _twin,
    "configMap": _thing("ConfigMap"),
    "secret": lambda namespace, name, _entry: secret(name, namespace=namespace),
    "namespace": lambda _namespace, name, _entry: make_namespace(name),
    "node": _thing("Node"),
    "serviceAccount": _thing("ServiceAccount"),
    "persistentVolumeClaim": _thing("PersistentVolumeClaim"),
    "persistentVolume": _thing("PersistentVolume"),
    "storageClass": _thing("StorageClass"),
    "role": _thing("Role"),
    "roleBinding": _thing("RoleBinding"),
    "clusterRole": _thing("ClusterRole"),
}


def _labelled(entry: Entry, manifest: Manifest) -> Manifest:
    """Return the object with the entry's marks: of this topology, of another owner, or the label alone."""
    if "marked" in entry:
        return with_owner_marks(manifest, entry["marked"])
    if "stranger" in entry:
        return with_owner_marks(manifest, entry["stranger"], STRANGER)
    if entry.get("forged"):
        return merged(manifest, {"metadata": {"labels": {OWNER: OWNER_HERE.mark}}})
    return manifest


def merged(manifest: Manifest, change: Manifest) -> Manifest:
    """Return an object with a JSON merge patch applied."""
    found = dict(manifest)
    for key, value in change.items():
        if value is None:
            found.pop(key, None)
        elif isinstance(value, dict) and isinstance(found.get(key, {}), dict):
            found[key] = merged(found.get(key) or {}, value)
        else:
            found[key] = value
    return found


def ref_of(text: str) -> Ref:
    """Parse "lower-a Pod shop/web"."""
    cluster, kind, place = text.split()
    namespace, _, name = place.rpartition("/")
    return Ref(_cluster(cluster), KINDS[kind], namespace, name)


def _cluster(name: str) -> str:
    return UPPER if name == "upper" else name


# Preparing the simulation, and running the acts.


def start_scenario(scenario: Entry) -> EngineSimulation:
    """Return the simulation with the objects of a scenario."""
    spoken = topology_of(scenario.get("topology"))
    simulation = EngineSimulation(*(f"name: {one.name}" for one in spoken.lowers), prompt=not scenario.get("slow"))
    simulation.reload(spoken)
    given = scenario.get("given") or {}
    for cluster, entries in given.items():
        for entry in entries:
            put_object(simulation, _cluster(cluster), entry)
    if scenario.get("nodes", True):
        simulation.create_nodes()
    return simulation


def put_object(simulation: EngineSimulation, cluster: str, entry: Entry) -> None:
    """Put an object into a cluster, with its namespace."""
    many = entry.get("times", 0)
    for number in range(many):
        word = "pod" if "pod" in entry else "twin"
        one = {field: value for field, value in entry.items() if field != "times"}
        put_object(simulation, cluster, {**one, word: f"{entry[word]}-{number}"})
    if many:
        return
    manifest = make_entry(entry)
    namespace = manifest["metadata"].get("namespace", "")
    if namespace and simulation.find(Ref(UPPER, NAMESPACE, "", namespace)) is None:
        simulation.clusters[UPPER].place(NAMESPACE, make_namespace(namespace))
    kind = KINDS[manifest["kind"]]
    if namespace and cluster != UPPER and simulation.find(Ref(cluster, NAMESPACE, "", namespace)) is None:
        simulation.clusters[cluster].place(NAMESPACE, make_namespace(namespace))
    simulation.clusters[cluster].place(kind, manifest)


async def run_act(simulation: EngineSimulation, act: Entry) -> None:
    """Run one act."""
    ((word, what),) = act.items()
    if word in _WITH_REF:
        await _WITH_REF[word](simulation, ref_of(what["of"] if isinstance(what, dict) else what), what)
    else:
        await _WITHOUT[word](simulation, what)


async def _delete(simulation: EngineSimulation, ref: Ref, what: Any) -> None:
    grace = what.get("grace") if isinstance(what, dict) else None
    await simulation.delete(ref, grace)


async def _vanish(simulation: EngineSimulation, ref: Ref, _what: Any) -> None:
    simulation.clusters[ref.cluster].vanish(ref)


async def _delete_without_event(simulation: EngineSimulation, ref: Ref, _what: Any) -> None:
    simulation.delete_without_event(ref)


async def _change(simulation: EngineSimulation, ref: Ref, what: Entry) -> None:
    seen = simulation.find(ref)
    assert seen is not None
    change = {field: value for field, value in what.items() if field != "of"}
    simulation.clusters[ref.cluster].alter(ref, lambda manifest: manifest.update(merged(seen, change)))


async def _put(simulation: EngineSimulation, what: Entry) -> None:
    entry = dict(what)
    put_object(simulation, _cluster(entry.pop("in")), entry)


async def _silence(simulation: EngineSimulation, what: dict[str, float]) -> None:
    for lower, seconds in what.items():
        simulation.set_unreachable(lower, seconds)


async def _distrust(simulation: EngineSimulation, what: str) -> None:
    simulation.mark_stale(_cluster(what))


async def _relist(simulation: EngineSimulation, what: str) -> None:
    simulation.relist(_cluster(what))


async def _reload(simulation: EngineSimulation, what: Entry) -> None:
    simulation.reload(topology_of(what))


async def _restart(simulation: EngineSimulation, what: Any) -> None:
    await simulation.restart(unread=what.get("unread") if isinstance(what, dict) else None)


async def _deny(simulation: EngineSimulation, what: Entry) -> None:
    simulation.clusters[_cluster(what["in"])].denied[(what["verb"], what["kind"])] = what["message"]


async def _allow(simulation: EngineSimulation, what: str) -> None:
    simulation.clusters[_cluster(what)].denied.clear()


async def _fail(simulation: EngineSimulation, what: dict[str, int]) -> None:
    for cluster, writes in what.items():
        simulation.clusters[_cluster(cluster)].failing = writes


async def _hold_events(simulation: EngineSimulation, what: str) -> None:
    simulation.hold_events(_cluster(what))


async def _deliver_events(simulation: EngineSimulation, what: str) -> None:
    simulation.deliver_events(_cluster(what))


async def _stop(simulation: EngineSimulation, _what: Any) -> None:
    await simulation.stop()


async def _abandon(simulation: EngineSimulation, what: str) -> None:
    lower = simulation.world.lowers[what]
    lower.in_topology = lower.connected = False
    simulation.enqueue_all(what)


async def _relist_without(simulation: EngineSimulation, ref: Ref, _what: Any) -> None:
    simulation.relist_without(ref)


async def _at_once(simulation: EngineSimulation, what: list[Entry]) -> None:
    for act in what:
        await run_act(simulation, act)


async def _wait(simulation: EngineSimulation, what: float) -> None:
    await simulation.advance(what)


_WITH_REF: dict[str, Any] = {
    "delete": _delete,
    "vanish": _vanish,
    "slip": _delete_without_event,
    "change": _change,
    "overlook": _relist_without,
}
_WITHOUT: dict[str, Any] = {
    "put": _put,
    "silent": _silence,
    "distrust": _distrust,
    "relist": _relist,
    "topology": _reload,
    "restart": _restart,
    "deny": _deny,
    "allow": _allow,
    "fails after": _fail,
    "late": _hold_events,
    "hear": _deliver_events,
    "stop": _stop,
    "abandon": _abandon,
    "at once": _at_once,
    "wait": _wait,
}


# Recording.


def described(records: Iterable[LoopRecord]) -> list[str]:
    """Return what the loop did as lines, by key, in the order of each key's steps."""
    by_key: dict[str, list[str]] = {}
    for one in records:
        key = " ".join(part for part in (one.key.rule, one.key.lower, f"{one.key.namespace}/{one.key.name}") if part)
        by_key.setdefault(key.removesuffix(" /"), []).append(_line(one))
    return [line for key in sorted(by_key) for line in (f"{key}:", *(f"  {line}" for line in _counted(by_key[key])))]


def _counted(lines: list[str]) -> list[str]:
    """Return repeated lines once, with their count."""
    return [line if count == 1 else f"{count} times: {line}" for line, count in _runs(lines)]


def _runs(lines: list[str]) -> list[tuple[str, int]]:
    return [(line, len(list(group))) for line, group in groupby(lines)]


def _line(record: LoopRecord) -> str:
    if record.problem is not None:
        return f"problem {record.problem.reason}: {record.problem.message}"
    assert record.step is not None
    refused = f"\n    -> {type(record.error).__name__}: {record.error.message}" if record.error else ""
    unasked = "" if record.step.requested else " [unrequested]"
    return f"{record.step.verb} {_object(record.step)}{_content(record.step)} ({record.step.reason}){unasked}{refused}"


def _object(step: Step) -> str:
    if step.ref.kind == EVENT and step.body:
        about = step.body["involvedObject"]
        return f"Event of {about['kind']} {about['name']}, {step.body['type']}: {step.body['message']}"
    tail = f" {step.subresource}" if step.subresource else ""
    where = f"{step.ref.namespace}/{step.ref.name}" if step.ref.namespace else step.ref.name
    return f"{step.ref.cluster or 'upper'} {step.ref.kind.name} {where}{tail}"


def _content(step: Step) -> str:
    if step.verb == "delete":
        return "" if step.grace is None else f" grace={step.grace}"
    if step.patch is None:
        return ""
    if step.subresource == "status":
        return f" {_summary(step.patch.body['status'])}"
    return " " + ", ".join(f"{one['op']} {one['path']}" for one in step.operations)


def _summary(status: Manifest) -> str:
    fields = [f"{field}={status[field]}" for field in ("phase", "reason") if field in status]
    others = sorted(set(status) - {"phase", "reason", "message", "conditions"})
    conditions = [
        f"{kind}={one.get('status', one.get('$patch'))}" + (f"/{one['reason']}" if one.get("reason") else "")
        for kind, one in sorted(conditions_of({"status": status}).items())
    ]
    return " ".join([*fields, *conditions, *(f"+{field}" for field in others)])


async def final_state(simulation: EngineSimulation) -> list[str]:
    """Return which pods exist in each cluster in the end, and their status."""
    lines = []
    for cluster in simulation.clusters:
        for pod in await simulation.listed(cluster):
            meta = pod["metadata"]
            ending = f" ending({meta['deletionGracePeriodSeconds']})" if "deletionTimestamp" in meta else ""
            lines.append(f"{cluster or 'upper'} {meta['namespace']}/{meta['name']}: {_summary(pod['status'])}{ending}")
    return lines
