"""What matters of an object that is going to be made, in two or three lines: never the whole body."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from tensile.legible import harmless
from tensile.names import PREFIX
from tensile.objects import CLAIM, CONFIG_MAP, NAMESPACE, NODE, POD, SECRET, VOLUME, Kind, Manifest, labels
from tensile.reconcile.preview.values import listed

_MOST = 12
_OWN_NAME = "kubernetes.io/metadata.name"
"""The label that Kubernetes gives to each namespace."""
_PAYLOADS = ("data", "binaryData", "stringData")


def summary(kind: Kind, manifest: Manifest) -> list[str]:
    """Give the lines for an object; none for a kind that has no more to tell than its name."""
    about = _ABOUT.get(kind.name)
    return [f"{title}: {text}" for title, text in about(manifest) if text] if about else []


def _pod(manifest: Manifest) -> Iterator[tuple[str, str]]:
    spec = manifest.get("spec", {})
    containers = [*(spec.get("initContainers") or ()), *(spec.get("containers") or ())]
    yield "images", listed(dict.fromkeys(one.get("image", "") for one in containers), _MOST)


def _keys(manifest: Manifest) -> Iterator[tuple[str, str]]:
    yield "keys", listed(sorted(key for section in _PAYLOADS for key in manifest.get(section) or ()), _MOST)


def _secret(manifest: Manifest) -> Iterator[tuple[str, str]]:
    yield "type", harmless(manifest.get("type", ""))
    yield from _keys(manifest)


def _namespace(manifest: Manifest) -> Iterator[tuple[str, str]]:
    yield "labels", listed(_labels(manifest), _MOST)


def _node(manifest: Manifest) -> Iterator[tuple[str, str]]:
    spec, offered = manifest.get("spec", {}), manifest.get("status", {}).get("allocatable") or {}
    yield "capacity", listed((f"{name} {amount}" for name, amount in sorted(offered.items())), _MOST)
    yield "labels", listed(_labels(manifest), _MOST)
    yield "taints", listed((_taint(taint) for taint in spec.get("taints") or ()), _MOST)
    yield "unschedulable", "true" if spec.get("unschedulable") else ""


def _claim(manifest: Manifest) -> Iterator[tuple[str, str]]:
    spec = manifest.get("spec", {})
    yield "storage", harmless(((spec.get("resources") or {}).get("requests") or {}).get("storage", ""))
    yield "class", harmless(spec.get("storageClassName") or "")


def _volume(manifest: Manifest) -> Iterator[tuple[str, str]]:
    spec = manifest.get("spec", {})
    holder = spec.get("claimRef") or {}
    yield "storage", harmless((spec.get("capacity") or {}).get("storage", ""))
    yield "claim", harmless(f"{holder.get('namespace')}/{holder.get('name')}" if holder else "")
    yield "policy", harmless(spec.get("persistentVolumeReclaimPolicy") or "")


def _labels(manifest: Manifest) -> Iterator[str]:
    """Give the labels that say more than the name and that it is ours, as kubectl writes them."""
    found = sorted(labels(manifest).items())
    return (f"{key}={value}" for key, value in found if key != _OWN_NAME and not key.startswith(PREFIX))


def _taint(taint: Mapping[str, Any]) -> str:
    value = f"={taint['value']}" if taint.get("value") else ""
    return f"{taint.get('key', '')}{value}:{taint.get('effect', '')}"


_ABOUT: Mapping[str, Callable[[Manifest], Iterator[tuple[str, str]]]] = {
    CLAIM.name: _claim,
    CONFIG_MAP.name: _keys,
    NAMESPACE.name: _namespace,
    NODE.name: _node,
    POD.name: _pod,
    SECRET.name: _secret,
    VOLUME.name: _volume,
}
