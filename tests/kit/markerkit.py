"""Secrets with marker values, pods that refer to them in every possible way, and a search for leaked markers."""

from base64 import b64encode
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import orjson
from sitekit import Manifest

OPAQUE = "Opaque"
KEYS = {
    "kubernetes.io/tls": ("tls.crt", "tls.key"),
    "kubernetes.io/basic-auth": ("username", "password"),
    "kubernetes.io/ssh-auth": ("ssh-privatekey", "more"),
}
"""The keys of a Secret by its type; Secrets of other types have the keys "one" and "two"."""


class SecretUse(NamedTuple):
    """One way to refer to a Secret: what it adds to a pod's spec, and the Secret's type."""

    spec: Manifest
    type: str = OPAQUE


def _container(name: str, **content: Any) -> Manifest:
    return {"name": name, "image": "app:1", **content}


def _env(secret: str, /, **more: Any) -> Manifest:
    return {"env": [{"name": "V", "valueFrom": {"secretKeyRef": {"name": secret, "key": "one", **more}}}]}


def _volume(called: str, /, **source: Any) -> Manifest:
    return {"volumes": [{"name": called, **source}]}


def secret_uses() -> dict[str, SecretUse]:
    """Return all ways, by the name of the Secret that each refers to."""
    by_name = {"secretRef": {"name": "cephfs"}}
    found = {
        "env": SecretUse({"containers": [_container("env", **_env("env"))]}),
        "env-from": SecretUse({"containers": [_container("env-from", envFrom=[{"secretRef": {"name": "env-from"}}])]}),
        "env-optional": SecretUse({"containers": [_container("env-optional", **_env("env-optional", optional=True))]}),
        "env-init": SecretUse({"initContainers": [_container("env-init", **_env("env-init"))]}),
        "env-sidecar": SecretUse(
            {"initContainers": [_container("env-sidecar", restartPolicy="Always", **_env("env-sidecar"))]}
        ),
        "volume": SecretUse(_volume("volume", secret={"secretName": "volume"})),
        "items": SecretUse(_volume("items", secret={"secretName": "items", "items": [{"key": "one", "path": "p"}]})),
        "projected": SecretUse(_volume("projected", projected={"sources": [{"secret": {"name": "projected"}}]})),
        "pull": SecretUse({"imagePullSecrets": [{"name": "pull"}]}, "kubernetes.io/dockerconfigjson"),
        "account-pull": SecretUse({"serviceAccountName": "robot"}, "kubernetes.io/dockerconfigjson"),
        "legacy-pull": SecretUse({"imagePullSecrets": [{"name": "legacy-pull"}]}, "kubernetes.io/dockercfg"),
        "immutable": SecretUse(_volume("immutable", secret={"secretName": "immutable"})),
        "applied": SecretUse(_volume("applied", secret={"secretName": "applied"})),
        "custom": SecretUse(_volume("custom", secret={"secretName": "custom"}), "example.com/custom"),
        "csi": SecretUse(_volume("csi", csi={"driver": "d.example.com", "nodePublishSecretRef": {"name": "csi"}})),
        "cephfs": SecretUse(_volume("cephfs", cephfs={"monitors": ["m"], **by_name})),
        "rbd": SecretUse(_volume("rbd", rbd={"monitors": ["m"], "image": "i", "secretRef": {"name": "rbd"}})),
        "iscsi": SecretUse(
            _volume(
                "iscsi",
                iscsi={
                    "targetPortal": "127.0.0.1",
                    "iqn": "iqn.2026-01.com.example:storage",
                    "lun": 0,
                    "chapAuthSession": True,
                    "secretRef": {"name": "iscsi"},
                },
            )
        ),
        "flex": SecretUse(_volume("flex", flexVolume={"driver": "d/e", "secretRef": {"name": "flex"}})),
        "azure": SecretUse(_volume("azure", azureFile={"shareName": "s", "secretName": "azure"})),
        "scale-io": SecretUse(
            _volume(
                "scale-io",
                scaleIO={"gateway": "g", "system": "s", "volumeName": "v", "secretRef": {"name": "scale-io"}},
            )
        ),
        "storage-os": SecretUse(
            _volume("storage-os", storageos={"volumeName": "v", "secretRef": {"name": "storage-os"}})
        ),
    }
    for kind in KEYS:
        name = kind.partition("/")[2]
        found[name] = SecretUse(_volume(name, secret={"secretName": name}), kind)
    return found


def joined_spec(specs: Iterable[Manifest]) -> Manifest:
    """Return one spec that combines all of them."""
    found: dict[str, Any] = {"containers": [_container("main")]}
    for spec in specs:
        for field, value in spec.items():
            found[field] = [*found.get(field, []), *value] if isinstance(value, list) else value
    return found


class Markers:
    """Values that occur in Secrets only; each is used once."""

    def __init__(self, mark: str) -> None:
        self._mark = mark
        self.values: list[str] = []

    def fresh(self) -> str:
        """Make another marker."""
        self.values.append(f"m4rker{len(self.values):03d}n{self._mark}")
        return self.values[-1]

    def data(self, kind: str, name: str) -> dict[str, str]:
        """Make the content of a Secret of a type, as its `data` field has it."""
        if kind.startswith("kubernetes.io/dockerc"):
            whole = {"r.example": {"username": "u", "password": self.fresh(), "auth": _encoded(f"u:{self.fresh()}")}}
            key, content = (".dockerconfigjson", {"auths": whole}) if kind.endswith("json") else (".dockercfg", whole)
            return {key: _encoded(orjson.dumps(content).decode())}
        return {key: _encoded(f"{name}={self.fresh()}") for key in KEYS.get(kind, ("one", "two"))}

    def found_in(self, *texts: str) -> list[str]:
        """Return the markers that occur in texts: plain, or in base64 at any offset of the encoded text."""
        return [value for value in self.values if any(form in text for text in texts for form in _forms(value))]


def _encoded(text: str) -> str:
    return b64encode(text.encode()).decode()


def _forms(value: str) -> Iterator[str]:
    """Yield a value in plain text, and the middle of its base64 for each offset at which it can begin."""
    yield value
    for offset in range(3):
        whole = _encoded(" " * offset + value)
        yield whole[4 : len(whole) // 4 * 4 - 4]
