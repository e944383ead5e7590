"""Reads the pod to simulate from a file: a Pod, or an object with a pod template.

Defaults that the apiserver would set before a scheduler sees the pod are set here too, as far as placement reads them.
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
    "CronJob": (("spec", "jobTemplate", "spec"), ("spec", "jobTemplate", "spec", "template")),
}


class Template(NamedTuple):
    """A pod that does not exist yet, and how many replicas its owner requests (None: it does not say)."""

    pod: Manifest
    replicas: int | None


def template(data: bytes, name: str) -> Template:
    """Return the template in a file; raises TensileError with the position of each error in the file `name`."""
    root = composed(data, name)
    kind = find(root, ("kind",))
    owner, body = _PLACES.get(kind.value if kind and isinstance(kind.value, str) else "", _WORKLOAD)
    spec = find(root, (*body, "spec", "containers"))
    if spec is None or not spec.value:
        where = locate(root, body)
        raise TensileError(
            f"{name}:{where.line}:{where.column}: {show_path(body)}: no pod: write a Pod with containers, or what has "
            "a template of one"
        )
    demand(root, _flaws(root, owner, body), name)
    found = stored(root)
    return _read(found, _at(found, owner) if body else {}, _at(found, body))


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


def _at(found: Any, path: Path) -> Manifest:
    for step in path:
        found = found[step]
    return cast("Manifest", found)


def _read(found: Manifest, owner: Manifest, body: Manifest) -> Template:
    """Return the template of a parsed object; `owner` is the part with the number of replicas."""
    replicas = next((owner[count] for count in _COUNTS if count in owner), None)
    if replicas is None and found.get("kind") == "CronJob":
        replicas = 1
    meta = metadata(found)
    own = {
        "name": meta.get("name") or meta.get("generateName") or "pod",
        "namespace": meta.get("namespace") or "default",
        "labels": metadata(body).get("labels") or {},
        "annotations": metadata(body).get("annotations") or {},
    }
    return Template({"apiVersion": "v1", "kind": "Pod", "metadata": own, "spec": filled(body["spec"])}, replicas)


def filled(spec: Manifest) -> Manifest:
    """Return a pod spec with defaults of the apiserver.

    A limit without a request becomes the request, and container ports of a pod with hostNetwork become host ports.
    """
    host = bool(spec.get("hostNetwork"))
    lists = {
        name: [_container(one, host=host) for one in spec[name]]
        for name in ("containers", "initContainers")
        if spec.get(name)
    }
    return {**spec, **lists}


def _container(container: Manifest, *, host: bool) -> Manifest:
    resources = container.get("resources") or {}
    requests = {**(resources.get("limits") or {}), **(resources.get("requests") or {})}
    ports = [_port(one) if host else one for one in container.get("ports") or ()]
    return {**container, "resources": {**resources, "requests": requests}, "ports": ports}


def _port(port: Mapping[str, Any]) -> Manifest:
    return {"hostPort": port.get("containerPort"), **port}
