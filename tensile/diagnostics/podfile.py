"""Reads pods from a file: Pods, and the pod templates of other objects, in one or several YAML documents.

A rendered chart has Services and ConfigMaps between its workloads, so documents without a pod are skipped, as long as
one of the file has a pod. For `simulate`, defaults that the apiserver would set before a scheduler sees the pod are set
here too, as far as placement reads them.
"""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, cast

from tensile.errors import TensileError
from tensile.objects import Manifest, metadata
from tensile.reconcile.pods.pod_schema import Found, composed, demand, flaws, stored
from tensile.yaml_document import Path, YAMLNode, find, locate, show_path

_COUNTS = ("replicas", "parallelism")
_WORKLOAD: tuple[Path, Path] = (("spec",), ("spec", "template"))
"""The path of the spec with the number of replicas, and that of the pod template."""
_PLACES: dict[str, tuple[Path, Path]] = {
    "Pod": ((), ()),
    "PodTemplate": ((), ("template",)),
    "CronJob": (("spec", "jobTemplate", "spec"), ("spec", "jobTemplate", "spec", "template")),
    **dict.fromkeys(
        ("Deployment", "ReplicaSet", "StatefulSet", "DaemonSet", "Job", "ReplicationController"), _WORKLOAD
    ),
}


class PodSource(NamedTuple):
    """An object with a pod: its tree, the path of the part with the number of replicas, and that of the pod.

    The path of the pod is empty for a Pod itself.
    """

    root: YAMLNode
    owner: Path
    body: Path


class Template(NamedTuple):
    """A pod that does not exist yet, and how many replicas its owner requests (None: it does not say)."""

    pod: Manifest
    replicas: int | None


def sources(data: bytes, name: str) -> list[PodSource]:
    """Return the objects with a pod in a file, at least one.

    If no object has a pod, the result is the first one, so that the caller reports what it lacks. Raises TensileError,
    with the position in the file `name`, for invalid YAML.
    """
    found = [_source(root) for root in composed(data, name)]
    return [one for one in found if _has_pod(one)] or found[:1]


def _source(root: YAMLNode) -> PodSource:
    return PodSource(root, *_PLACES.get(_kind(root), _WORKLOAD))


def _kind(root: YAMLNode) -> str:
    kind = find(root, ("kind",))
    return kind.value if kind and isinstance(kind.value, str) else ""


def _has_pod(source: PodSource) -> bool:
    """Report whether an object is meant to have a pod: by its kind, or by a template with containers."""
    return _kind(source.root) in _PLACES or find(source.root, (*source.body, "spec", "containers")) is not None


def templates(data: bytes, name: str) -> list[Template]:
    """Return the templates in a file; raises TensileError with the position of each error in the file `name`."""
    return [_template(source, name) for source in sources(data, name)]


def _template(source: PodSource, name: str) -> Template:
    demand_valid(source, name)
    found = stored(source.root)
    return _parsed_template(found, _value_at(found, source.owner) if source.body else {}, _value_at(found, source.body))


def template_pod(source: PodSource, name: str) -> Manifest:
    """Return the pod that a controller would create from an object with a pod template.

    Only a DaemonSet is its owner: whether a pod is mirrored depends on that. Raises TensileError with the position of
    each error in the file `name`.
    """
    demand_valid(source, name)
    found = stored(source.root)
    meta, body = metadata(found), _value_at(found, source.body)
    pod_metadata: Manifest = {"generateName": f"{_name(meta)}-"}
    pod_metadata |= {field: meta[field] for field in ("namespace",) if field in meta}
    pod_metadata |= {field: metadata(body)[field] for field in ("labels", "annotations") if field in metadata(body)}
    pod_metadata |= _owned(found)
    return {"apiVersion": "v1", "kind": "Pod", "metadata": pod_metadata, "spec": body["spec"]}


def _owned(owner: Manifest) -> Manifest:
    """Return the owner reference to a DaemonSet as metadata of its pods; of other objects, nothing depends on it."""
    if owner.get("kind") != "DaemonSet":
        return {}
    reference = {"apiVersion": owner.get("apiVersion", ""), "kind": "DaemonSet", "name": _name(metadata(owner))}
    return {"ownerReferences": [reference | {"controller": True}]}


def _name(meta: Manifest) -> str:
    return str(meta.get("name") or meta.get("generateName") or "pod").rstrip("-")


def demand_valid(source: PodSource, name: str) -> None:
    """Raise TensileError, with positions in the file `name`, for an object without a valid pod."""
    root, owner, body = source
    spec = find(root, (*body, "spec", "containers"))
    if spec is None or not spec.value:
        position = locate(root, body)
        raise TensileError(
            f"{name}:{position.line}:{position.column}: {show_path(body)}: no pod: write a Pod with containers, or "
            "what has a template of one"
        )
    demand(root, _flaws(root, owner, body), name)


def _flaws(root: YAMLNode, owner: Path, body: Path) -> Iterator[Found]:
    """Yield each field that does not match the schema of a pod, or of an object with a pod template."""
    metas = {("metadata",), (*body, "metadata")}
    for path, kind in (*((meta, "ObjectMeta") for meta in metas), ((*body, "spec"), "PodSpec")):
        node = find(root, path)
        if node is not None:
            yield from flaws(node, kind, path)
    for path in ((*owner, count) for count in _COUNTS if body):
        node = find(root, path)
        if node is not None and node.value is not None:
            yield from flaws(node, "integer", path)
            if isinstance(node.value, int) and node.value < 0:
                yield path, f"{node.value} is less than none; write 0 or more"


def _value_at(found: Any, path: Path) -> Manifest:
    for step in path:
        found = found[step]
    return cast("Manifest", found)


def _parsed_template(found: Manifest, owner: Manifest, body: Manifest) -> Template:
    """Return the template of a parsed object; `owner` is the part with the number of replicas."""
    replicas = next((owner[count] for count in _COUNTS if count in owner), None)
    if replicas is None and found.get("kind") == "CronJob":
        replicas = 1
    meta = metadata(found)
    pod_metadata = {
        "name": meta.get("name") or meta.get("generateName") or "pod",
        "namespace": meta.get("namespace") or "default",
        "labels": metadata(body).get("labels") or {},
        "annotations": metadata(body).get("annotations") or {},
        **_owned(found),
    }
    return Template(
        {"apiVersion": "v1", "kind": "Pod", "metadata": pod_metadata, "spec": filled(body["spec"])}, replicas
    )


def filled(spec: Manifest) -> Manifest:
    """Return a pod spec with defaults of the apiserver.

    A limit without a request becomes the request, and container ports of a pod with hostNetwork become host ports.
    """
    uses_host_network = bool(spec.get("hostNetwork"))
    lists = {
        name: [_container(one, uses_host_network=uses_host_network) for one in spec[name]]
        for name in ("containers", "initContainers")
        if spec.get(name)
    }
    return {**spec, **lists}


def _container(container: Manifest, *, uses_host_network: bool) -> Manifest:
    resources = container.get("resources") or {}
    requests = {**(resources.get("limits") or {}), **(resources.get("requests") or {})}
    ports = [_port(one) if uses_host_network else one for one in container.get("ports") or ()]
    return {**container, "resources": {**resources, "requests": requests}, "ports": ports}


def _port(port: Mapping[str, Any]) -> Manifest:
    return {"hostPort": port.get("containerPort"), **port}
