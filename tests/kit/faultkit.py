"""Minimal pods and audit records for the oracles."""

from typing import Any

from tensile.names import OWNER, UPPER_UID

Manifest = dict[str, Any]
MARK = "0123456789abcdef"
A, B = "lower-a", "lower-b"
READY = {"type": "Ready", "status": "True"}


def container(number: int = 0, identity: str = "run://1") -> Manifest:
    """Make the status of a container with this restart count."""
    return {"name": "c", "containerID": identity, "restartCount": number}


def status(phase: str = "Running", *, ready: bool = True, restarts: int = 0, address: str = "10.0.0.1") -> Manifest:
    """Make a pod's status."""
    conditions = [{**READY, "status": str(ready)}]
    return {"phase": phase, "podIP": address, "conditions": conditions, "containerStatuses": [container(restarts)]}


def above(uid: str = "u1", node: str = A, *, ending: bool = False, **words: Any) -> Manifest:
    """Make an upper pod; further keyword arguments are those of `status`."""
    meta = {"uid": uid, "namespace": "default", "name": f"pod-{uid}"}
    if ending:
        meta["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    return {"metadata": meta, "spec": {"nodeName": node} if node else {}, "status": status(**words)}


def below(uid: str = "l1", upper: str = "u1", *, ending: bool = False, **words: Any) -> Manifest:
    """Make a lower pod owned by this topology; further keyword arguments are those of `status`."""
    pod = above(uid, "node-1", ending=ending, **words)
    return {**pod, "metadata": {**pod["metadata"], "labels": {OWNER: MARK}, "annotations": {UPPER_UID: upper}}}


def record(verb: str, resource: str = "pods", name: str = "one", code: int = 201, agent: str = "tensile/1") -> Manifest:
    """Make an audit record; a subresource follows its resource after a slash."""
    kind, _, subresource = resource.partition("/")
    about = {"resource": kind, "namespace": "default", "name": name}
    about |= {"subresource": subresource} if subresource else {}
    return {"verb": verb, "userAgent": agent, "objectRef": about, "responseStatus": {"code": code}}
