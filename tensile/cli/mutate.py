"""`tensile mutate`: how the webhook would mutate a pod, and which lower pod the engine would create. Works offline.

It calls the functions that the webhook and the engine call. A value that only a cluster knows, such as the pod's UID,
is printed as a placeholder. The labels of the real lower nodes are unknown here.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import orjson

from tensile import yaml_document
from tensile.diagnostics.podfile import sources, template_pod
from tensile.errors import TensileError
from tensile.kubelet.node.rule import own_labels
from tensile.kubelet.pods.lower_context import LowerContext, same_name
from tensile.kubelet.pods.projection import notes, to_lower_pod
from tensile.kubelet.pods.rule import excluded
from tensile.names import Owner, prefixed
from tensile.objects import POD, Manifest, metadata
from tensile.policy.webhook.admission import FIELDS, CannotMutate, demand_small, prepared, terms_of
from tensile.reconcile.pods.pod_schema import Found, demand, flaws, stored
from tensile.reconcile.pods.scheduling import meets, taints_of
from tensile.reconcile.rules.services import server_of
from tensile.topology import Lower, Topology, parse
from tensile.yaml_document import YAMLNode, find

_PLACEHOLDER = "set-when-created"
_NAME_SUFFIX = "xxxxx"
_WELL_KNOWN = ("kubernetes.io", "k8s.io")
_DEFAULT_TOPOLOGY = """\
apiVersion: tensile-kube.io/v1alpha1
kind: Topology
name: example
lowers:
- {name: lower, kubeconfig: none}
"""


class Mutation(NamedTuple):
    """A pod as given, as mutated by the webhook, and as created in the lower cluster (None: no lower pod is created).

    `messages` are warnings and notes for people.
    """

    pod: Manifest
    mutated: Manifest
    lower: Manifest | None
    messages: tuple[str, ...]


def default_topology() -> Topology:
    """Return the topology to use when none is given: one lower cluster, and the default of every other field."""
    return parse(_DEFAULT_TOPOLOGY)


def mutation(pod: Manifest, topology: Topology) -> Mutation:
    """Return the mutation of a pod under a topology."""
    mutated, webhook_messages = _mutated(pod, topology)
    namespace = metadata(pod).get("namespace") or "default"
    bound = _stored(mutated, namespace)
    objection = excluded(bound, topology.exclude_namespaces)
    if objection is not None or not topology.lowers:
        reason = objection.message if objection else "the topology has no lower clusters"
        return Mutation(pod, mutated, None, (*webhook_messages, f"no lower pod: {reason}"))
    lower, lower_messages = _lower_of(bound, topology)
    context = _lower_context(lower, topology, namespace)
    pod_messages = tuple(f"{note.reason}: {note.message}" for note in notes(bound))
    return Mutation(pod, mutated, to_lower_pod(bound, context), (*webhook_messages, *lower_messages, *pod_messages))


def _mutated(pod: Manifest, topology: Topology) -> tuple[Manifest, tuple[str, ...]]:
    """Return the pod as the webhook mutates it; if the webhook would leave it unchanged, also why."""
    spec = pod["spec"]
    try:
        demand_small({field: orjson.dumps(spec[field]) if field in spec else b"" for field in FIELDS})
        return prepared(pod, terms_of(topology)), ()
    except CannotMutate as error:
        return pod, (f"the webhook does not change it: {error}",)


def read_pods(data: bytes, name: str) -> list[Manifest]:
    """Read the Pods of YAML or JSON, and the pods that controllers would create from other objects; at least one.

    Raises TensileError, with the position in the file `name`, for an object without a valid pod.
    """
    return [
        template_pod(source, name) if source.body else _read_pod(source.root, name) for source in sources(data, name)
    ]


def _read_pod(root: YAMLNode, name: str) -> Manifest:
    found: Manifest = stored(root)
    if found.get("apiVersion") != POD.api:
        raise TensileError(f"{name}: {found.get('apiVersion', 'no apiVersion')}: a Pod has apiVersion: {POD.api}")
    demand(root, [*flaws(root, "Pod"), *_missing_name(root)], name)
    return found


def messages(found: Sequence[Mutation]) -> Iterator[str]:
    """Yield the warnings and notes of mutations, with the pod's name if there are several."""
    for one in found:
        meta = metadata(one.pod)
        prefix = f"{meta.get('name') or meta.get('generateName')}: " if len(found) > 1 else ""
        yield from (prefix + line for line in one.messages)


def written(found: Sequence[Mutation], output: str) -> str:
    """Render mutations as "yaml" or "json": each an object with `pod`, `mutated` and `lower`.

    Several are YAML documents, or the `items` of one JSON object.
    """
    rendered = [{"pod": one.pod, "mutated": one.mutated, "lower": one.lower} for one in found]
    if output == "json":
        document = rendered[0] if len(rendered) == 1 else {"items": rendered}
        return orjson.dumps(document, option=orjson.OPT_INDENT_2).decode()
    return "---\n".join(map(yaml_document.document, rendered)).rstrip("\n")


def _missing_name(root: YAMLNode) -> Iterator[Found]:
    """Yield a problem if a pod has neither `name` nor `generateName`."""
    names = (find(root, ("metadata", field)) for field in ("name", "generateName"))
    if not any(name.value for name in names if name):
        yield ("metadata",), "name is missing; add it"


def _stored(pod: Manifest, namespace: str) -> Manifest:
    """Return the pod as the upper apiserver would store it, as far as the lower pod depends on that."""
    meta = metadata(pod)
    name = meta.get("name") or f"{meta['generateName']}{_NAME_SUFFIX}"
    return {**pod, "metadata": {"uid": _PLACEHOLDER, **meta, "name": name, "namespace": namespace}}


def _lower_of(pod: Manifest, topology: Topology) -> tuple[Lower, tuple[str, ...]]:
    """Return the lower cluster to show the pod in, with a note if that is only an example.

    It is the cluster behind the node that the pod is bound to, else the first whose virtual node matches the pod's node
    selection, else the first of the topology.
    """
    bound = pod["spec"].get("nodeName")
    for lower in topology.lowers:
        if lower.node.name == bound or (not bound and meets(pod["spec"], lower.node.name, own_labels(lower))):
            return lower, ()
    first = topology.lowers[0]
    reason = f"{bound} is not a virtual node" if bound else "no virtual node matches the pod's selector"
    return first, (f"{reason}: the lower pod is shown as it would be in {first.name}",)


def _lower_context(lower: Lower, topology: Topology, namespace: str) -> LowerContext:
    """Return the context of the pod in the lower cluster, as far as the topology alone defines it.

    A label that the topology sets on the virtual node is assumed to be missing on the lower nodes, unless it is a
    well-known label of Kubernetes.
    """

    def lower_namespace(upper_namespace: str) -> str:
        """Return the lower cluster's name for an upper namespace."""
        return prefixed(topology.name, upper_namespace)

    namespace_of = lower_namespace if lower.namespaces.mapping == "prefix" else same_name
    return LowerContext(
        Owner(_PLACEHOLDER, topology.name, _PLACEHOLDER),
        lower.node.name,
        namespace_of(namespace),
        _PLACEHOLDER,
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
    """Report whether a label key is a well-known one of Kubernetes, which real nodes have too."""
    return key.partition("/")[0].endswith(_WELL_KNOWN)
