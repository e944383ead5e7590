"""Which pods on a virtual node are not mirrored, and what they are told.

A DaemonSet that tolerates everything lands on every node, virtual ones too: network plugins, node exporters. Run below
they would be a second one on each real node, with its privileges; so they stay here unless their author asked.
"""

from collections.abc import Collection

from tensile.kubelet.statuspatch import conditions_of
from tensile.names import MIRRORED, VIRTUAL_POD
from tensile.objects import Manifest, metadata
from tensile.reconcile.podfacts import is_daemon
from tensile.world import Problem


def excluded(upper_pod: Manifest, namespaces: Collection[str]) -> Problem | None:
    """Say why a pod is not mirrored, None when it is; `namespaces` are those that the topology excludes."""
    namespace = metadata(upper_pod)["namespace"]
    if namespace in namespaces:
        return Problem("NamespaceExcluded", f"pods of namespace {namespace} are not mirrored (excludeNamespaces)")
    if is_daemon(upper_pod):
        return Problem("DaemonSet", f'pods of DaemonSets are mirrored only with the label {VIRTUAL_POD}: "true"')
    return None


def is_kept_out(upper_pod: Manifest, namespaces: Collection[str]) -> bool:
    """Say whether a pod is not mirrored and was told so: then nothing of it can be below.

    One that was mirrored before it came to be excluded was never told, or says something else since.
    """
    objection = excluded(upper_pod, namespaces)
    said = conditions_of(upper_pod).get(MIRRORED) or {}
    return objection is not None and (said.get("status"), said.get("reason")) == ("False", objection.reason)
