"""Topologies to render, as text and as setups."""

from typing import Any

import yaml

from tensile.deploy.manifests import NAMESPACE, RenderOptions, manifest_files, rendering, upper_stream
from tensile.deploy.setup import Setup
from tensile.objects import Manifest


def lower(name: str, **fields: Any) -> dict[str, Any]:
    """Return a lower cluster of a topology, whose kubeconfig is in a Secret."""
    return {"name": name, "kubeconfigSecret": {"namespace": NAMESPACE, "name": name}, **fields}


ALL = {"controllers": ["PV", "Service", "RBAC", "ServiceAccount"], "serviceAccounts": {"identity": "upper"}}
TOPOLOGIES: dict[str, dict[str, Any]] = {
    "little": {"lowers": [], "controllers": []},
    "default": {},
    "whole": {
        **ALL,
        "webhook": {"enabled": True, "service": {"namespace": NAMESPACE, "name": "tensile-webhook"}},
        "extender": {"enabled": True},
        "descheduler": {"enabled": True, "recreateBarePods": True},
        "services": {"kubeSystem": True},
    },
    "prefix": {"lowerDefaults": {"namespaces": {"mapping": "prefix"}, "maintenance": "drain"}},
    "ports": {
        "webhook": {"enabled": True, "port": 8081, "service": {"namespace": NAMESPACE, "name": "hook"}},
        "telemetry": {"bind": "::", "port": 8082},
        "lowerDefaults": {"node": {"kubeletPort": 9000}},
        "lowers": [lower("only")],
    },
}
"""Fields that replace those of a topology of two lowers, by purpose."""
_APPLIED: dict[tuple[str, str, str], list[Manifest]] = {}
"""Applied objects by text, namespace and image, because rendering needs a tenth of a second."""


def text(**fields: Any) -> str:
    """Return a topology file of two lowers, for an engine in the upper cluster."""
    lowers = [lower(name) for name in ("lower-a", "lower-b")]
    file = {"apiVersion": "tensile-kube.io/v1alpha1", "kind": "Topology", "name": "demo", "lowers": lowers, **fields}
    return yaml.safe_dump(file, sort_keys=False)


def setup(namespace: str = NAMESPACE, image: str | None = None, **fields: Any) -> Setup:
    """Make a setup of such a file."""
    return rendering(text(**fields).encode(), "topology.yaml", RenderOptions(namespace, image))


def applied(found: Setup) -> list[Manifest]:
    """Return the objects for the upper cluster; setups of one text share them, so do not change them."""
    key = (found.text, found.namespace, found.image)
    if key not in _APPLIED:
        _APPLIED[key] = loaded(upper_stream(found))
    return _APPLIED[key]


def loaded(stream: str) -> list[Manifest]:
    """Return the objects of a YAML stream, read by libyaml if PyYAML has it: in a tenth of the time."""
    return list(yaml.load_all(stream, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)))


def only_object(objects: list[Manifest], kind: str, name: str = "") -> Manifest:
    """Return the object of a kind, of which there is one."""
    (found,) = [each for each in objects if each["kind"] == kind and name in ("", each["metadata"]["name"])]
    return found


def parse_rendered(found: Setup, path: str) -> list[Manifest]:
    """Parse a file of the rendering."""
    return loaded(manifest_files(found)[path])
