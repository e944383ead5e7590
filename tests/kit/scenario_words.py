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
from stagekit import LoopRecord, Stage
from worldkit import OWNER_HERE, STRANGER, A, marked, secret, space, thing, twin, upper_pod

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


def made(entry: Entry) -> Manifest:
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
    return upper_pod(name, spec, entry.get("status"), **identity)


def _twin(namespace: str, name: str, entry: Entry) -> Manifest:
    above = _pod(namespace, name, {**entry, "meta": {"uid": entry.get("of", f"uid-{name}")}})
    made = twin(above, entry.get("status"), entry.get("at", A))
    return merged(made, {"spec": {"nodeName": "n1"}})


def _thing(kind: str) -> Callable[[str, str, Entry], Manifest]:
    return lambda namespace, name, _entry: thing(kind, name, namespace)


_SMALLEST: dict[str, Callable[[str, str, Entry], Manifest]] = {
    "pod": _pod,
    "twin": _twin,
    "configMap": _thing("ConfigMap"),
    "secret": lambda namespace, name, _entry: secret(name, namespace=namespace),
    "namespace": lambda _namespace, name, _entry: space(name),
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
        return marked(manifest, entry["marked"])
    if "stranger" in entry:
        return marked(manifest, entry["stranger"], STRANGER)
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


# Preparing the stage, and running the acts.


def staged(scenario: Entry) -> Stage:
    """Return the stage with the objects of a scenario."""
    spoken = topology_of(scenario.get("topology"))
    stage = Stage(*(f"name: {one.name}" for one in spoken.lowers), prompt=not scenario.get("slow"))
    stage.reload(spoken)
    given = scenario.get("given") or {}
    for cluster, entries in given.items():
        for entry in entries:
            place(stage, _cluster(cluster), entry)
    if scenario.get("nodes", True):
        stage.raise_nodes()
    return stage


def place(stage: Stage, cluster: str, entry: Entry) -> None:
    """Put an object into a cluster, with its namespace."""
    many = entry.get("times", 0)
    for number in range(many):
        word = "pod" if "pod" in entry else "twin"
        one = {field: value for field, value in entry.items() if field != "times"}
        place(stage, cluster, {**one, word: f"{entry[word]}-{number}"})
    if many:
        return
    manifest = made(entry)
    namespace = manifest["metadata"].get("namespace", "")
    if namespace and stage.find(Ref(UPPER, NAMESPACE, "", namespace)) is None:
        stage.clusters[UPPER].place(NAMESPACE, space(namespace))
    kind = KINDS[manifest["kind"]]
    if namespace and cluster != UPPER and stage.find(Ref(cluster, NAMESPACE, "", namespace)) is None:
        stage.clusters[cluster].place(NAMESPACE, space(namespace))
    stage.clusters[cluster].place(kind, manifest)


async def happen(stage: Stage, act: Entry) -> None:
    """Run one act."""
    ((word, what),) = act.items()
    if word in _WITH_REF:
        await _WITH_REF[word](stage, ref_of(what["of"] if isinstance(what, dict) else what), what)
    else:
        await _WITHOUT[word](stage, what)


async def _delete(stage: Stage, ref: Ref, what: Any) -> None:
    grace = what.get("grace") if isinstance(what, dict) else None
    await stage.delete(ref, grace)


async def _vanish(stage: Stage, ref: Ref, _what: Any) -> None:
    stage.clusters[ref.cluster].vanish(ref)


async def _slip(stage: Stage, ref: Ref, _what: Any) -> None:
    stage.slip(ref)


async def _change(stage: Stage, ref: Ref, what: Entry) -> None:
    seen = stage.find(ref)
    assert seen is not None
    change = {field: value for field, value in what.items() if field != "of"}
    stage.clusters[ref.cluster].alter(ref, lambda manifest: manifest.update(merged(seen, change)))


async def _put(stage: Stage, what: Entry) -> None:
    entry = dict(what)
    place(stage, _cluster(entry.pop("in")), entry)


async def _silence(stage: Stage, what: dict[str, float]) -> None:
    for lower, seconds in what.items():
        stage.quieten(lower, seconds)


async def _distrust(stage: Stage, what: str) -> None:
    stage.mark_stale(_cluster(what))


async def _relist(stage: Stage, what: str) -> None:
    stage.relist(_cluster(what))


async def _reload(stage: Stage, what: Entry) -> None:
    stage.reload(topology_of(what))


async def _restart(stage: Stage, what: Any) -> None:
    await stage.restart(unread=what.get("unread") if isinstance(what, dict) else None)


async def _deny(stage: Stage, what: Entry) -> None:
    stage.clusters[_cluster(what["in"])].denied[(what["verb"], what["kind"])] = what["message"]


async def _allow(stage: Stage, what: str) -> None:
    stage.clusters[_cluster(what)].denied.clear()


async def _fail(stage: Stage, what: dict[str, int]) -> None:
    for cluster, writes in what.items():
        stage.clusters[_cluster(cluster)].failing = writes


async def _late(stage: Stage, what: str) -> None:
    stage.delay(_cluster(what))


async def _hear(stage: Stage, what: str) -> None:
    stage.hear(_cluster(what))


async def _stop(stage: Stage, _what: Any) -> None:
    await stage.stop()


async def _abandon(stage: Stage, what: str) -> None:
    lower = stage.world.lowers[what]
    lower.in_topology = lower.connected = False
    stage.enqueue_all(what)


async def _overlook(stage: Stage, ref: Ref, _what: Any) -> None:
    stage.overlook(ref)


async def _at_once(stage: Stage, what: list[Entry]) -> None:
    for act in what:
        await happen(stage, act)


async def _wait(stage: Stage, what: float) -> None:
    await stage.calm(what)


_WITH_REF: dict[str, Any] = {
    "delete": _delete,
    "vanish": _vanish,
    "slip": _slip,
    "change": _change,
    "overlook": _overlook,
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
    "late": _late,
    "hear": _hear,
    "stop": _stop,
    "abandon": _abandon,
    "at once": _at_once,
    "wait": _wait,
}


# Recording.


def told(said: Iterable[LoopRecord]) -> list[str]:
    """Return what the loop did as lines, by key, in the order of each key's steps."""
    by_key: dict[str, list[str]] = {}
    for one in said:
        key = " ".join(part for part in (one.key.rule, one.key.lower, f"{one.key.namespace}/{one.key.name}") if part)
        by_key.setdefault(key.removesuffix(" /"), []).append(_line(one))
    return [line for key in sorted(by_key) for line in (f"{key}:", *(f"  {line}" for line in _counted(by_key[key])))]


def _counted(lines: list[str]) -> list[str]:
    """Return repeated lines once, with their count."""
    return [line if count == 1 else f"{count} times: {line}" for line, count in _runs(lines)]


def _runs(lines: list[str]) -> list[tuple[str, int]]:
    return [(line, len(list(group))) for line, group in groupby(lines)]


def _line(said: LoopRecord) -> str:
    if said.problem is not None:
        return f"problem {said.problem.reason}: {said.problem.message}"
    assert said.step is not None
    refused = f"\n    -> {type(said.error).__name__}: {said.error.message}" if said.error else ""
    unasked = "" if said.step.requested else " [unrequested]"
    return f"{said.step.verb} {_object(said.step)}{_content(said.step)} ({said.step.reason}){unasked}{refused}"


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
    said = [
        f"{kind}={one.get('status', one.get('$patch'))}" + (f"/{one['reason']}" if one.get("reason") else "")
        for kind, one in sorted(conditions_of({"status": status}).items())
    ]
    return " ".join([*fields, *said, *(f"+{field}" for field in others)])


async def standing(stage: Stage) -> list[str]:
    """Return which pods exist in each cluster in the end, and their status."""
    lines = []
    for cluster in stage.clusters:
        for pod in await stage.listed(cluster):
            meta = pod["metadata"]
            ending = f" ending({meta['deletionGracePeriodSeconds']})" if "deletionTimestamp" in meta else ""
            lines.append(f"{cluster or 'upper'} {meta['namespace']}/{meta['name']}: {_summary(pod['status'])}{ending}")
    return lines
