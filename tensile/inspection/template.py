"""Reads the pod that `tensile simulate` is asked about: a Pod, or whatever has a template of one.

What the apiserver would fill in before a scheduler sees the pod is filled in here too, as far as placement reads it.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import orjson

from tensile.errors import TensileError
from tensile.objects import Manifest, metadata
from tensile.yamltext import compose
from tensile.yamltree import plain, show_path


class Template(NamedTuple):
    """A pod that does not exist yet, and how many of it its owner asks for (None where nothing says so)."""

    pod: Manifest
    replicas: int | None


def template(text: str, name: str) -> Template:
    """Read it; raises TensileError with the place of what is wrong."""
    document = compose(text, what="pod")
    if document.flaws or document.root is None:
        lines = [f"{name}:{at.line}:{at.column}: {show_path(path)}: {words}" for at, path, words in document.flaws]
        raise TensileError("\n".join(lines) or f"{name}: empty: write a Pod, or an object with a pod template")
    found = orjson.loads(orjson.dumps(plain(document.root)))  # lists, as JSON has them
    return _read(found, name) if isinstance(found, dict) else _refuse(name)


def _read(found: Manifest, name: str) -> Template:
    spec, kind = found.get("spec"), found.get("kind")
    if not isinstance(spec, dict):
        return _refuse(name)
    replicas = spec.get("replicas", spec.get("parallelism"))
    if kind == "CronJob":
        spec = (spec.get("jobTemplate") or {}).get("spec") or {}
        replicas = spec.get("parallelism", 1)
    body = found if kind == "Pod" else spec.get("template")
    if not isinstance(body, dict) or not isinstance(body.get("spec"), dict) or not _containers(body["spec"]):
        return _refuse(name)
    meta = metadata(found)
    own = {
        "name": str(meta.get("name") or meta.get("generateName") or "pod"),
        "namespace": meta.get("namespace") or "default",
        "labels": metadata(body).get("labels") or {},
        "annotations": metadata(body).get("annotations") or {},
    }
    return Template({"apiVersion": "v1", "kind": "Pod", "metadata": own, "spec": filled(body["spec"])}, replicas)


def filled(spec: Manifest) -> Manifest:
    """Fill in what the apiserver does: requests that only have a limit, and ports of pods on their node's network."""
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


def _containers(spec: Manifest) -> bool:
    found = spec.get("containers")
    return isinstance(found, list) and bool(found) and all(isinstance(one, dict) for one in found)


def _refuse(name: str) -> Template:
    raise TensileError(f"{name}: no pod: write a Pod with containers, or what has a template of one")
