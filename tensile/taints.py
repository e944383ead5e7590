"""Which taints a toleration lets a pod bear, as Kubernetes decides it."""

from collections.abc import Mapping
from typing import Any

HARD = frozenset({"NoSchedule", "NoExecute"})
"""The effects that keep a pod off a node."""


def tolerates(toleration: Mapping[str, Any], taint: Mapping[str, Any]) -> bool:
    """Say whether a toleration matches a taint, as Kubernetes does; numeric operators match none."""
    if toleration.get("effect") and toleration["effect"] != taint.get("effect"):
        return False
    if toleration.get("key") and toleration["key"] != taint["key"]:
        return False
    if toleration.get("operator") == "Exists":
        return True
    equal = (toleration.get("operator") or "Equal") == "Equal"
    return equal and (toleration.get("value") or "") == (taint.get("value") or "")
