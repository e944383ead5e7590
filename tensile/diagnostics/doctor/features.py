"""Checks of features that pods use in lower clusters: the metrics API and storage."""

import json
from collections.abc import Iterator
from http import HTTPStatus

from tensile.diagnostics.doctor.facts import CLASSES, METRICS, WAITING, ClusterFacts, Facts, Finding, Level
from tensile.names import PROVISIONER
from tensile.objects import UPPER, annotations, metadata

_DEFAULT_CLASS = "storageclass.kubernetes.io/is-default-class"
_IMMEDIATE = "unbound immediate PersistentVolumeClaims"
"""The message of kube-scheduler about a pod whose claims must be bound before it looks for a node."""
_NAMED = 3
_INSTALL = "kubectl apply -f https://github.com/kubernetes-sigs/metrics-server/releases/latest/download/components.yaml"

_CLASS = {
    "apiVersion": "storage.k8s.io/v1",
    "kind": "StorageClass",
    "metadata": {"name": "tensile"},
    "provisioner": PROVISIONER,
    "volumeBindingMode": "WaitForFirstConsumer",
    "allowVolumeExpansion": True,
}
_MAKE = f"echo '{json.dumps(_CLASS)}' | kubectl apply -f -"


def measured(side: ClusterFacts, _facts: Facts) -> Iterator[Finding]:
    """Yield a finding on whether a lower cluster serves the metrics API."""
    answer = side.answers.get(METRICS)
    if side.name == UPPER or answer is None:
        return
    if not answer.error:
        yield Finding(side.name, "metrics", Level.OK, "the metrics API answers")
    elif answer.status == HTTPStatus.NOT_FOUND:
        what = "it has no metrics API (metrics.k8s.io): kubectl top and autoscaling do not work for its pods"
        yield Finding(side.name, "metrics", Level.WARN, what, f"install metrics-server there: {_INSTALL}")
    elif answer.status == HTTPStatus.FORBIDDEN:
        yield Finding(side.name, "metrics", Level.SKIP, "not checked: listing node metrics is not permitted")
    else:
        advice = "inspect it: kubectl get apiservice v1beta1.metrics.k8s.io -o yaml"
        yield Finding(side.name, "metrics", Level.WARN, f"the metrics API fails ({answer.error})", advice)


def stored(side: ClusterFacts, facts: Facts) -> Iterator[Finding]:
    """Yield findings on the StorageClasses in the upper cluster and in the lower ones."""
    if "PV" not in facts.topology.enabled or not side.is_in:
        return
    if side.value(CLASSES) is None:
        error = side.answers[CLASSES].error if CLASSES in side.answers else "no answer in time"
        yield Finding(side.name, "storage", Level.SKIP, f"not checked: storage classes cannot be read ({error})")
    elif side.name == UPPER:
        yield from _above(side)
    elif "PV" in facts.spec(side.name).controllers:
        yield from _below(side, facts)


def _above(upper: ClusterFacts) -> Iterator[Finding]:
    """Yield findings on the StorageClasses of the upper cluster.

    Those whose volumes are created in lower clusters must bind with WaitForFirstConsumer: the upper scheduler has to
    choose the node first.
    """
    classes = [one for one in upper.items(CLASSES) if one.get("provisioner") == PROVISIONER]
    for one in classes:
        if one.get("volumeBindingMode") != "WaitForFirstConsumer":
            name = metadata(one)["name"]
            what = f"StorageClass {name} binds before a node is chosen: pods with its claims never start"
            advice = f"recreate it with volumeBindingMode WaitForFirstConsumer: kubectl delete storageclass {name}"
            yield Finding(UPPER, "storage", Level.FAIL, what, advice)
    yield from _unbound(upper)
    default = next((one for one in upper.items(CLASSES) if annotations(one).get(_DEFAULT_CLASS) == "true"), None)
    if default is not None and default not in classes:
        name = metadata(default)["name"]
        what = (
            f"the default StorageClass {name} is not tensile's: claims that name none cannot be used on virtual nodes"
        )
        advice = (
            "use a class whose provisioner is tensile-kube.io/lower in claims for virtual nodes, or make it the default"
        )
        yield Finding(UPPER, "storage", Level.WARN, what, advice)
    if classes:
        names = ", ".join(metadata(one)["name"] for one in classes)
        yield Finding(UPPER, "storage", Level.OK, f"these classes create volumes in lower clusters: {names}")
    else:
        yield Finding(UPPER, "storage", Level.SKIP, *_none())


def _unbound(upper: ClusterFacts) -> Iterator[Finding]:
    """Yield a warning for pods that the scheduler's VolumeBinding plugin blocks.

    Only such pods show that the plugin is enabled.
    """
    kept = [one["name"] for one in upper.items(WAITING) if _IMMEDIATE in one["message"]]
    if kept:
        more = f" and {len(kept) - _NAMED} more" if len(kept) > _NAMED else ""
        what = f"the scheduler waits for claims that bind before a node is chosen, of {', '.join(kept[:_NAMED])}"
        advice = f"for virtual nodes, use a StorageClass of {PROVISIONER}; to make one: {_MAKE}"
        yield Finding(UPPER, "storage", Level.WARN, what + more, advice)


def _none() -> tuple[str, str]:
    what = (
        "no StorageClass creates volumes in lower clusters: a scheduler with VolumeBinding, such as the stock one, "
        "leaves pods with unbound claims of other classes Pending"
    )
    return what, f"for pods with claims on virtual nodes: {_MAKE}"


def _below(side: ClusterFacts, facts: Facts) -> Iterator[Finding]:
    """Yield each upper StorageClass that has no counterpart in a lower cluster."""
    there = {metadata(one)["name"] for one in side.items(CLASSES)}
    mapped = facts.spec(side.name).storage_classes
    ours = [one for one in facts.upper.items(CLASSES) if one.get("provisioner") == PROVISIONER]
    wanted = {**{metadata(one)["name"]: metadata(one)["name"] for one in ours}, **mapped}
    missing = {above: below for above, below in wanted.items() if below not in there}
    for above, below in missing.items():
        what = f"upper StorageClass {above} is {below} here, which does not exist: its claims stay Pending"
        has = ", ".join(sorted(there)) or "none"
        advice = f"create it, or set storageClasses: {{{above}: NAME}} for {side.name} (there are: {has})"
        yield Finding(side.name, "storage", Level.WARN, what, advice)
    if wanted and not missing:
        yield Finding(side.name, "storage", Level.OK, "every class of the upper cluster has one here")
