"""`tensile mutate`: what the webhook makes of a pod, and what the engine makes of that below, without any cluster.

Both are the functions that run in the webhook and in the engine. What only a cluster knows, such as the pod's UID, is
written as such; which labels the real nodes of a lower cluster have is not known either.
"""

from collections.abc import Iterator
from typing import NamedTuple

import orjson

from tensile import yaml_document
from tensile.errors import TensileError
from tensile.kubelet.node.rule import own_labels
from tensile.kubelet.pods.placement_context import Placement, same_name
from tensile.kubelet.pods.projection import lower_pod, notes
from tensile.kubelet.pods.rule import excluded
from tensile.names import Owner, prefixed
from tensile.objects import POD, Manifest, metadata
from tensile.policy.webhook.admission import FIELDS, Unprepared, demand_small, prepared, terms_of
from tensile.reconcile.pods.pod_schema import Found, composed, demand, flaws, stored
from tensile.reconcile.pods.scheduling import meets, taints_of
from tensile.reconcile.rules.services import server_of
from tensile.topology import Lower, Topology, parse
from tensile.yaml_document import Node, find

OUTPUTS = ("yaml", "json")
_LATER = "set-when-created"
_SUFFIX = "xxxxx"
_WELL_KNOWN = ("kubernetes.io", "k8s.io")
_NO_TOPOLOGY = """\
apiVersion: tensile-kube.io/v1alpha1
kind: Topology
name: example
lowers:
- {name: lower, kubeconfig: none}
"""


class Mutation(NamedTuple):
    """A pod as given, as the webhook makes it, and the lower pod (None where none is made); `told` is for people."""

    pod: Manifest
    mutated: Manifest
    lower: Manifest | None
    told: tuple[str, ...]


def default_topology() -> Topology:
    """Return the topology to use where none is given: one lower cluster, and everything else as by default."""
    return parse(_NO_TOPOLOGY)


def mutation(pod: Manifest, topology: Topology) -> Mutation:
    """Return what becomes of a pod."""
    mutated, unprepared = _mutated(pod, topology)
    namespace = metadata(pod).get("namespace") or "default"
    bound = _stored(mutated, namespace)
    objection = excluded(bound, topology.exclude_namespaces)
    if objection is not None or not topology.lowers:
        why = objection.message if objection else "the topology has no lower clusters"
        return Mutation(pod, mutated, None, (*unprepared, f"no lower pod: {why}"))
    lower, told = _lower_of(bound, topology)
    place = _place(lower, topology, namespace)
    said = tuple(f"{note.reason}: {note.message}" for note in notes(bound, place))
    return Mutation(pod, mutated, lower_pod(bound, place), (*unprepared, *told, *said))


def _mutated(pod: Manifest, topology: Topology) -> tuple[Manifest, tuple[str, ...]]:
    """Return the pod as the webhook makes it; where it leaves it as it is, also what it warns of."""
    spec = pod["spec"]
    try:
        demand_small({field: orjson.dumps(spec[field]) if field in spec else b"" for field in FIELDS})
        return prepared(pod, terms_of(topology)), ()
    except Unprepared as error:
        return pod, (f"not prepared for virtual nodes: {error}",)


def read_pod(data: bytes, name: str) -> Manifest:
    """Read a pod from YAML or JSON; raises TensileError, with the place in the file `name`, for anything else."""
    root = composed(data, name)
    found = stored(root)
    said: Manifest = found if isinstance(found, dict) else {}
    if (said.get("apiVersion"), said.get("kind")) != (POD.api, POD.name):
        what = " ".join(str(said[field]) for field in ("apiVersion", "kind") if field in said)
        raise TensileError(f"{name}: {what or 'no object'}: give one Pod (apiVersion: v1, kind: Pod)")
    demand(root, [*flaws(root, "Pod"), *_nameless(root)], name)
    return said


def written(found: Mutation, output: str) -> str:
    """Write what became of a pod, as "yaml" or "json": an object with `pod`, `mutated` and `lower`."""
    document = {"pod": found.pod, "mutated": found.mutated, "lower": found.lower}
    if output == "json":
        return orjson.dumps(document, option=orjson.OPT_INDENT_2).decode()
    return yaml_document.document(document).rstrip("\n")


def _nameless(root: Node) -> Iterator[Found]:
    """Find that a pod has neither a name nor the beginning of one."""
    names = (find(root, ("metadata", field)) for field in ("name", "generateName"))
    if not any(name.value for name in names if name):
        yield ("metadata",), "name is missing; add it"


def _stored(pod: Manifest, namespace: str) -> Manifest:
    """Return the pod as a cluster would have stored it, as far as that matters below."""
    meta = metadata(pod)
    name = meta.get("name") or f"{meta['generateName']}{_SUFFIX}"
    return {**pod, "metadata": {"uid": _LATER, **meta, "name": name, "namespace": namespace}}


def _lower_of(pod: Manifest, topology: Topology) -> tuple[Lower, tuple[str, ...]]:
    """Choose the lower whose pod is shown: where the pod is bound to, else the first that the pod may be bound to."""
    bound = pod["spec"].get("nodeName")
    for lower in topology.lowers:
        if lower.node.name == bound or (not bound and meets(pod["spec"], lower.node.name, own_labels(lower))):
            return lower, ()
    first = topology.lowers[0]
    why = f"{bound} is no virtual node" if bound else "no virtual node has what the pod asks for"
    return first, (f"{why}: the lower pod is shown as it would be in {first.name}",)


def _place(lower: Lower, topology: Topology, namespace: str) -> Placement:
    """Return where a pod goes, as far as the topology tells.

    A label that the topology gives the node is taken not to be on lower nodes, unless it is one of Kubernetes' own.
    """

    def below(upper_namespace: str) -> str:
        """Return the lower name of a namespace."""
        return prefixed(topology.name, upper_namespace)

    namespace_of = below if lower.namespaces.mapping == "prefix" else same_name
    return Placement(
        Owner(_LATER, topology.name, _LATER),
        lower.node.name,
        namespace_of(namespace),
        _LATER,
        identity=lower.service_accounts.identity,
        ignore_labels=frozenset(lower.ignore_labels),
        node_label_keys=frozenset(key for key in lower.node.labels if not _is_well_known(key)),
        node_labels=own_labels(lower),
        ignore_selector_keys=frozenset(topology.webhook.ignore_selector_keys),
        virtual_nodes=frozenset(one.node.name for one in topology.lowers),
        taints=taints_of(topology.lowers),
        storage_classes=lower.storage_classes,
        namespace_of=namespace_of,
        upper_server=server_of(topology.upper.advertise_url, None),
    )


def _is_well_known(key: str) -> bool:
    """Report whether a label key is one of Kubernetes' own, which real nodes have."""
    return key.partition("/")[0].endswith(_WELL_KNOWN)
