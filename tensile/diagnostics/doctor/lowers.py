"""Checks of each lower cluster: its identity, its virtual node, what pods find there, and who else runs pods there.

A lower must be a different cluster from all others and have a Node of ours, whose kubelet API is reachable. Pods there
use its metrics API and its storage.

The defaults assume a lower cluster of one's own: a namespace of the same name belongs to the same tenant, and whoever
may read there may read the copies. Pods of others in those namespaces are the visible sign that this may be wrong.
"""

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from http import HTTPStatus
from shlex import quote
from typing import Any

from tensile.diagnostics.doctor.facts import (
    CLASSES,
    METRICS,
    NAMESPACES,
    NODES,
    PODS_BY_NAMESPACE,
    POLICIES,
    WAITING,
    ClusterFacts,
    ContactResult,
    Facts,
    Finding,
    Level,
    QueryAnswer,
    Stage,
    endpoint_of,
    is_loopback,
    is_renewed,
    lease_of,
    local_report,
    node_named,
    orphaned_nodes,
    owner,
    port_of,
    shown,
)
from tensile.diagnostics.explain import BLOCKED, ONE_ENGINE, REMOVED_LOWER, START, blocked_deletions
from tensile.engine.status.query import LEASE_SECONDS, NO_START, not_active, restart_needed, sharing, unrenewed
from tensile.kubelet.pods.conditions import conditions_of
from tensile.names import (
    CLUSTER_ID,
    ENGINE,
    IN_TOPOLOGY,
    LOWER_UID,
    NOWHERE,
    OWNER,
    OWNER_NAME,
    PROVISIONER,
    Owner,
    prefixed,
)
from tensile.objects import UPPER, Manifest, annotations, labels, metadata
from tensile.policy.placement.volume_checks import default_class
from tensile.reconcile.ownership import is_ours, other_topology, rename_advice
from tensile.text import listed
from tensile.topology import Lower, Topology

_CERTIFICATE = ("x509", "certificate", "tls:")
_IMMEDIATE = "unbound immediate PersistentVolumeClaims"
"""The message of kube-scheduler about a pod whose claims must be bound before it looks for a node."""
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
MOST = 20
"""The largest number of a lower's namespaces that are inspected; each takes a query of its own."""
_MOST_LISTED = 5
_ACCOUNT = "system:serviceaccount:"
_NOT_LISTENING = f"{START}; a Node's lease stays valid for {LEASE_SECONDS:g} s after its engine has stopped"
"""Advice for a kubelet port of this machine that nothing listens on."""


def check_identity(cluster: ClusterFacts, facts: Facts) -> Iterator[Finding]:
    """Yield a finding on whether a cluster differs from all previous ones, and is the one its Node was created for."""
    if not cluster.identity:
        return
    known = _recorded_identity(cluster, facts)
    before = facts.clusters()[: facts.clusters().index(cluster)]
    duplicate = next((one for one in before if one.identity == cluster.identity), None)
    if duplicate is not None and not (
        known == cluster.identity and _recorded_identity(duplicate, facts) not in ("", cluster.identity)
    ):
        origin = cluster.contact.endpoint.origin if cluster.contact else ""
        what = f"it is the same cluster as {shown(duplicate.name)} (kube-system {cluster.identity})"
        advice = f"use the kubeconfig of another cluster than {origin}"
        advice += ", or remove a lower cluster of the two" if known in ("", cluster.identity) else ""
        yield Finding(cluster.name, "identity", Level.FAIL, what, advice)
        return
    former_node = _node_of_former_name(cluster, facts)
    if former_node is not None:
        yield _renamed(cluster, former_node)
        return
    if known not in ("", cluster.identity):
        what = f"another cluster answers than that of its Node (kube-system {cluster.identity}, not {known})"
        advice = "correct the address, or add the new cluster to the topology under another name"
        holders = (one.name for one in facts.lowers.values() if _recorded_identity(one, facts) == cluster.identity)
        if holder := next(holders, ""):
            what, advice = f"{what}: that of lower {holder}", f"use the kubeconfig of the cluster of {cluster.name}"
        yield Finding(cluster.name, "identity", Level.FAIL, what, advice)
        return
    yield Finding(cluster.name, "identity", Level.OK, f"kube-system {cluster.identity}")


def _recorded_identity(cluster: ClusterFacts, facts: Facts) -> str:
    """Return the identity of the lower cluster that is recorded on its Node, "" for none."""
    if cluster.name == UPPER:
        return ""
    node = node_named(facts.upper, facts.spec(cluster.name).node.name)
    return annotations(node).get(LOWER_UID, "") if node and is_ours(node, owner(facts.upper, facts.topology)) else ""


def _node_of_former_name(cluster: ClusterFacts, facts: Facts) -> Manifest | None:
    """Return the Node of no lower in the file that was made for the same cluster: the lower was renamed."""
    nodes = (node_named(facts.upper, name) or {} for name in orphaned_nodes(facts.upper, facts.topology))
    return next((one for one in nodes if annotations(one).get(LOWER_UID) == cluster.identity), None)


def _renamed(cluster: ClusterFacts, former_node: Manifest) -> Finding:
    """Return the finding on a lower that was renamed. The Node of its former name stays as long as pods use it."""
    former_name = metadata(former_node)["name"]
    keep_advice = f"write node: {{name: {former_name}}} for lower {cluster.name}"
    if is_removed(former_node):
        what = f"it is the cluster of removed node {former_name}, which still has pods"
        return Finding(cluster.name, "identity", Level.FAIL, what, f"to keep them, {keep_advice}; or delete these pods")
    what = f"it is the cluster of Node {former_name}, which is no lower of this file"
    return Finding(cluster.name, "identity", Level.WARN, what, f"to keep the pods of that node, {keep_advice}")


def check_node(cluster: ClusterFacts, facts: Facts) -> Iterator[Finding]:
    """Yield a finding on whether a lower's Node exists and is ours, and whether an engine renews its lease."""
    upper = facts.upper
    if NODES not in upper.answers or upper.value(NODES) is None or not upper.identity:
        return
    if cluster.name == UPPER:
        yield from _others(upper, facts)
        yield from _pending_changes(local_report(upper, facts.topology))
        return
    name = facts.spec(cluster.name).node.name
    node = node_named(upper, name)
    if node is None:
        yield Finding(cluster.name, "node", Level.SKIP, f"there is no Node {name} yet: the engine creates it")
    elif not is_ours(node, owner(upper, facts.topology)):
        yield Finding(cluster.name, "node", Level.FAIL, *_foreign(name, node, owner(upper, facts.topology)))
    else:
        yield _renewal(cluster, node, upper.value(lease_of(name)), facts.now)
        blocked = blocked_deletions(node)
        if blocked:
            yield Finding(cluster.name, "node", Level.WARN, f"the guard blocks changes: {blocked}", BLOCKED)
        if _recorded_identity(cluster, facts) in ("", cluster.identity):
            yield from _unusable(cluster, name)


def _unusable(cluster: ClusterFacts, name: str) -> Iterator[Finding]:
    """Yield a finding if no node of a lower can run a new pod."""
    nodes = cluster.items(NODES)
    if cluster.value(NODES) is None or any(_is_usable(node) for node in nodes):
        return
    problem = f"none of its {len(nodes)} nodes is Ready and schedulable" if nodes else "it has no nodes"
    advice = "uncordon or repair a node there" if nodes else "add a node there"
    yield Finding(cluster.name, "node", Level.WARN, f"{problem}, so Node {name} takes no new pods", advice)


def _is_usable(node: Manifest) -> bool:
    if (node.get("spec") or {}).get("unschedulable") or "deletionTimestamp" in metadata(node):
        return False
    return (conditions_of(node).get("Ready") or {}).get("status") == "True"


def _pending_changes(report: Mapping[str, Any]) -> Iterator[Finding]:
    """Yield what the engine on this machine does not use yet; the webhook has a check of its own."""
    for message in restart_needed(report):
        advice = "restart the engine, or undo the change"
        if NO_START in message:
            advice = "correct the change, or undo it, before you restart the engine"
        yield Finding(UPPER, "node", Level.WARN, f"not in force: {message}", advice)
    for message in (one for one in not_active(report) if "extender" in one):
        what, _, advice = message.rpartition(": ")
        yield Finding(UPPER, "node", Level.WARN, what, advice)


def _renewal(cluster: ClusterFacts, node: Manifest, lease: Manifest | None, now: datetime) -> Finding:
    """Return a finding on whether an engine renews the lease of a Node of ours; None for a lease that was not read."""
    name = metadata(node)["name"]
    if not lease:
        return Finding(cluster.name, "node", Level.SKIP, f"Node {name} exists, but no engine has renewed its lease yet")
    unrenewed_for = unrenewed(lease, node, now)
    if unrenewed_for:
        what = f"Node {name} exists, but no engine has renewed its lease {unrenewed_for}: logs, exec and new pods wait"
        return Finding(cluster.name, "node", Level.WARN, what, START)
    if shared := sharing(lease, f"the lease of Node {name}"):
        return Finding(cluster.name, "node", Level.WARN, shared, ONE_ENGINE)
    engine = annotations(lease).get(ENGINE)
    engine_text = f"engine {engine}" if engine else "an engine"
    return Finding(cluster.name, "node", Level.OK, f"Node {name} exists, and {engine_text} renews its lease")


def _foreign(name: str, node: Manifest, own_owner: Owner) -> tuple[str, str]:
    """Return whose Node has the name of ours, and what to do."""
    topology = other_topology(node, own_owner)
    if topology:
        return f"Node {name} belongs to topology {topology}, and the engine does not change it", rename_advice(topology)
    if labels(node).get(OWNER):
        owner_text = f"topology {annotations(node).get(OWNER_NAME, 'unknown')}'s ({OWNER}={labels(node)[OWNER]})"
    else:
        owner_text = "not created by tensile"
    advice = (
        "give the lower another node.name in the topology, or, if that Node is not needed: "
        f"kubectl delete node {quote(name)}"
    )
    return f"the name is taken: Node {name} is {owner_text}, and the engine does not change it", advice


def _others(upper: ClusterFacts, facts: Facts) -> Iterator[Finding]:
    """Yield Nodes with this topology's marks that are not in it; another engine with another file may renew them."""
    name = facts.topology.name
    declared = {spec.name for spec in facts.topology.lowers}
    for node in orphaned_nodes(upper, facts.topology):
        lower = labels(node_named(upper, node) or {}).get(CLUSTER_ID)
        if lower in declared:
            reason = "its `node.name` was changed while pods were bound to it"
            what = f"Node {node} is the former one of lower {lower}: {reason}"
            advice = f"write node: {{name: {node}}} for lower {lower} again"
        elif is_removed(node_named(upper, node) or {}):
            what = f"Node {node} is of a lower cluster that was removed from the topology while pods are bound to it"
            advice = REMOVED_LOWER
        elif is_renewed(upper, node, facts.now):
            what = f"an engine keeps Node {node} for topology {name}, which has no such lower cluster here"
            advice = (
                "if this file is not active yet, see `tensile plan`; otherwise a second engine may run a topology of "
                "that name: rename one of them"
            )
        else:
            what = f"Node {node} is of topology {name}, which no longer has such a lower cluster"
            advice = "run the engine, which deletes it when no pod is bound to it"
        yield Finding(UPPER, "node", Level.WARN, what, advice)


def is_removed(node: Manifest) -> bool:
    """Report whether an engine says on a Node that its topology no longer has the lower cluster."""
    return (conditions_of(node).get(IN_TOPOLOGY) or {}).get("status") == "False"


def check_kubelet(cluster: ClusterFacts, facts: Facts) -> Iterator[Finding]:
    """Yield a finding on whether the upper apiserver reaches the kubelet API of a lower's Node."""
    upper = facts.upper
    if cluster.name == UPPER or not upper.is_accessible:
        return
    name = facts.spec(cluster.name).node.name
    node, answer = node_named(upper, name), upper.answers.get(port_of(name))
    local = _loopback(facts)
    if local:
        yield Finding(cluster.name, "kubelet", Level.FAIL, *local)
    elif node is None or not is_renewed(upper, name, facts.now):
        what = "not checked: no engine serves it" if lease_of(name) in upper.answers else "not checked"
        yield Finding(cluster.name, "kubelet", Level.SKIP, what)
    elif endpoint_of(node)[1] in (0, NOWHERE):
        what = f"Node {name} has no kubelet port: the engine cannot serve it, so logs and exec fail"
        unserved = f"kubelet API of node {name} "
        reports = (message for message in not_active(local_report(upper, facts.topology)) if unserved in message)
        report, _, advice = next(reports, ": see the engine's log for what uses its port").rpartition(": ")
        yield Finding(cluster.name, "kubelet", Level.FAIL, report or what, advice)
    elif answer is None:
        what = (
            "not checked: this needs the permission to get nodes/proxy, which the engine does not need; as an "
            f"administrator: kubectl get --raw /api/v1/nodes/{name}/proxy/healthz"
        )
        yield Finding(cluster.name, "kubelet", Level.SKIP, what)
    else:
        yield _kubelet_finding(cluster.name, name, node, answer, runs=bool(local_report(upper, facts.topology)))


def _loopback(facts: Facts) -> tuple[str, str] | None:
    """Return the error that nodes publish a loopback address to an apiserver elsewhere, None if they do not."""
    contact = facts.upper.contact
    if contact is None or not is_loopback(facts.address) or is_loopback(contact.endpoint.host):
        return None
    what = f"nodes publish {facts.address}, which is the upper apiserver itself and not the engine"
    return what, "set kubelet.nodeAddress to an IP address of this machine that the apiserver reaches"


def _kubelet_finding(lower: str, name: str, node: Manifest, answer: QueryAnswer, *, runs: bool) -> Finding:
    """Return the finding on an answer of a Node's kubelet port; `runs`: an engine of the topology runs here."""
    address, port = endpoint_of(node)
    location = f"Node {name} at {f'[{address}]' if ':' in address else address}:{port}"
    if isinstance(answer.value, ContactResult):
        contact = answer.value
        if contact.stage == Stage.DONE:
            return Finding(lower, "kubelet", Level.OK, f"{location} is reachable from here")
        if contact.stage == Stage.TLS and not contact.is_silent:
            what = f"another program than the engine listens at {location} ({contact.error})"
            return Finding(lower, "kubelet", Level.FAIL, what, "stop it, or set another kubelet port for the lower")
        advice = (
            f"the engine runs, but not at {address}: correct kubelet.nodeAddress and kubelet.bind"
            if runs
            else _NOT_LISTENING
        )
        return Finding(lower, "kubelet", Level.FAIL, f"{location} is not reachable ({contact.error})", advice)
    if answer.value:
        return Finding(lower, "kubelet", Level.OK, f"the upper's apiserver reaches {location}")
    what = f"the upper's apiserver does not reach {location} (HTTP {answer.status or '-'}: {answer.error})"
    advice = _remedy(answer, port)
    if "connection refused" in answer.error:
        advice = f"check that the engine runs, by its log or with `tensile status`; if it does, {advice}"
    return Finding(lower, "kubelet", Level.FAIL, what, advice)


def _remedy(answer: QueryAnswer, port: int) -> str:
    """Return advice for an error of the apiserver, or of the kubelet API itself."""
    error = answer.error.lower()
    if answer.status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
        return (
            "permit the apiserver's kubelet client: kubectl create clusterrolebinding kubelet-api-admin "
            "--clusterrole=system:kubelet-api-admin --user=kube-apiserver-kubelet-client (or whom its "
            "--kubelet-client-certificate names), and see that kubelet.clientCAFile is the CA that signed that"
        )
    if any(sign in error for sign in _CERTIFICATE):
        return (
            "the apiserver's --kubelet-certificate-authority has to hold the CA of the serving certificate, and that "
            "has to name the address: approve the request for it (kubectl get csr), or set kubelet.tlsCertFile"
        )
    return _unreached(port)


def _unreached(port: int) -> str:
    return (
        f"let the upper's apiserver through to port {port} of the engine (firewall, NetworkPolicy, kubelet.bind); "
        "set kubelet.nodeAddress to the address at which it reaches the engine"
    )


def check_metrics(cluster: ClusterFacts, _facts: Facts) -> Iterator[Finding]:
    """Yield a finding on whether a lower cluster serves the metrics API."""
    answer = cluster.answers.get(METRICS)
    if cluster.name == UPPER or answer is None:
        return
    if not answer.error:
        yield Finding(cluster.name, "metrics", Level.OK, "the metrics API answers")
    elif answer.status == HTTPStatus.NOT_FOUND:
        what = "it has no metrics API (metrics.k8s.io): kubectl top and autoscaling do not work for its pods"
        yield Finding(cluster.name, "metrics", Level.WARN, what, f"install metrics-server there: {_INSTALL}")
    elif answer.status == HTTPStatus.FORBIDDEN:
        yield Finding(cluster.name, "metrics", Level.SKIP, "not checked: listing node metrics is not permitted")
    else:
        advice = "inspect it: kubectl get apiservice v1beta1.metrics.k8s.io -o yaml"
        yield Finding(cluster.name, "metrics", Level.WARN, f"the metrics API fails ({answer.error})", advice)


def check_storage(cluster: ClusterFacts, facts: Facts) -> Iterator[Finding]:
    """Yield findings on the StorageClasses in the upper cluster and in the lower ones."""
    if "PV" not in facts.topology.enabled or not cluster.is_accessible:
        return
    if cluster.value(CLASSES) is None:
        error = cluster.answers[CLASSES].error if CLASSES in cluster.answers else "no answer in time"
        yield Finding(cluster.name, "storage", Level.SKIP, f"not checked: storage classes cannot be read ({error})")
    elif cluster.name == UPPER:
        yield from _upper_classes(cluster, facts.topology)
    elif "PV" in facts.spec(cluster.name).controllers:
        yield from _lower_classes(cluster, facts)


def _upper_classes(upper: ClusterFacts, topology: Topology) -> Iterator[Finding]:
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
    late = [metadata(one)["name"] for one in classes if one.get("volumeBindingMode") == "WaitForFirstConsumer"]
    yield from _blocked_claims(upper, late)
    default = default_class(upper.items(CLASSES))
    name = metadata(default).get("name", "")
    unmapped = [one.name for one in topology.lowers if "PV" in one.controllers and name not in one.storage_classes]
    if default and default not in classes and unmapped:
        what = (
            f"the default StorageClass {name} is not tensile's: claims that name none cannot be used in "
            f"{listed(unmapped)}"
        )
        advice = (
            "use a class whose provisioner is tensile-kube.io/lower in claims for virtual nodes, make it the default, "
            f"or map {name} (`storageClasses`)"
        )
        yield Finding(UPPER, "storage", Level.WARN, what, advice)
    if classes:
        names = ", ".join(metadata(one)["name"] for one in classes)
        yield Finding(UPPER, "storage", Level.OK, f"these classes create volumes in lower clusters: {names}")
    else:
        yield Finding(UPPER, "storage", Level.SKIP, *_no_class())


def _blocked_claims(upper: ClusterFacts, classes: list[str]) -> Iterator[Finding]:
    """Yield a warning for pods that the scheduler's VolumeBinding plugin blocks; `classes` are for virtual nodes.

    Only such pods show that the plugin is enabled.
    """
    waiting_pods = [one["name"] for one in upper.items(WAITING) if _IMMEDIATE in one["message"]]
    if waiting_pods:
        what = f"the scheduler waits for unbound claims of {listed(waiting_pods)}"
        make_advice = f"make a StorageClass that each lower cluster has too, or maps (storageClasses): {_MAKE}"
        use_advice = f"use StorageClass {' or '.join(classes)}" if classes else make_advice
        advice = (
            "see `tensile explain claim`: their StorageClass is missing, or binds before a node is chosen\n"
            f"for virtual nodes, {use_advice}"
        )
        yield Finding(UPPER, "storage", Level.WARN, what, advice)


def _no_class() -> tuple[str, str]:
    what = (
        "no StorageClass creates volumes in lower clusters: a scheduler with VolumeBinding, such as the stock one, "
        "leaves pods with unbound claims of other classes Pending"
    )
    return what, f"for pods with claims on virtual nodes: {_MAKE}"


def _lower_classes(cluster: ClusterFacts, facts: Facts) -> Iterator[Finding]:
    """Yield each upper StorageClass that has no counterpart in a lower cluster."""
    existing = {metadata(one)["name"] for one in cluster.items(CLASSES)}
    mapped = facts.spec(cluster.name).storage_classes
    tensile_classes = [one for one in facts.upper.items(CLASSES) if one.get("provisioner") == PROVISIONER]
    wanted = {**{metadata(one)["name"]: metadata(one)["name"] for one in tensile_classes}, **mapped}
    missing = {upper_class: lower_class for upper_class, lower_class in wanted.items() if lower_class not in existing}
    for upper_class, lower_class in missing.items():
        what = f"upper StorageClass {upper_class} is {lower_class} here, which does not exist: its claims stay Pending"
        existing_text = ", ".join(sorted(existing)) or "none"
        mapping_advice = f"set storageClasses: {{{upper_class}: NAME}} for {cluster.name} (there are: {existing_text})"
        advice = f"create it, or {mapping_advice}, and create its claims again"
        yield Finding(cluster.name, "storage", Level.WARN, what, advice)
    if wanted and not missing:
        yield Finding(cluster.name, "storage", Level.OK, "every class of the upper cluster has one here")


def mirrored_namespaces(
    spec: Lower, topology: Topology, upper_namespaces: Iterable[str], lower_namespaces: Iterable[str]
) -> dict[str, str]:
    """Return the lower namespaces that mirrored pods run in, by upper namespace."""
    existing = set(lower_namespaces)
    names = sorted(set(upper_namespaces) - set(topology.exclude_namespaces))
    is_prefixed = spec.namespaces.mapping == "prefix"
    found = {name: prefixed(topology.name, name) if is_prefixed else name for name in names}
    return {upper: lower for upper, lower in found.items() if lower in existing}


def check_tenants(cluster: ClusterFacts, facts: Facts) -> Iterator[Finding]:
    """Yield a finding on whether others run pods in the namespaces of mirrored pods.

    If they do, also yield the settings that assume that they do not. Pods of the topology that the lower's Node belongs
    to are no others: it may be this one under its former name, which the check of the Node says.
    """
    if cluster.name == UPPER or not cluster.is_accessible:
        return
    spec, upper = facts.spec(cluster.name), facts.upper
    answers = [
        cluster_facts.answers.get(NAMESPACES, QueryAnswer(error="no answer in time"))
        for cluster_facts in (upper, cluster)
    ]
    if (
        any(one.error for one in answers)
        or PODS_BY_NAMESPACE not in cluster.answers
        or cluster.value(PODS_BY_NAMESPACE) is None
    ):
        why = next(
            (one.error for one in (*answers, cluster.answers.get(PODS_BY_NAMESPACE, QueryAnswer())) if one.error),
            "not in time",
        )
        yield Finding(cluster.name, "tenants", Level.SKIP, f"not checked: namespaces and pods cannot be read ({why})")
        return
    namespaces = mirrored_namespaces(spec, facts.topology, upper.items(NAMESPACES), cluster.items(NAMESPACES))
    topology_owner, node = owner(upper, facts.topology), node_named(upper, spec.node.name)
    marks = {
        topology_owner.mark,
        labels(node).get(OWNER) if node and other_topology(node, topology_owner) else topology_owner.mark,
    }
    foreign_pods = Counter(namespace for namespace, mark in cluster.items(PODS_BY_NAMESPACE) if mark not in marks)
    yield from _engine_namespace(cluster, namespaces)
    shared = {name: foreign_pods[name] for name in sorted(namespaces.values()) if foreign_pods[name]}
    if not shared:
        extent = f"in {MOST} of {len(namespaces)}" if len(namespaces) > MOST else "in the"
        what = f"no pods of others are {extent} namespaces that pods from the upper cluster go to"
        yield Finding(cluster.name, "tenants", Level.OK, what)
        return
    yield from _shared(spec, _listed(shared))


def check_network_policies(cluster: ClusterFacts, facts: Facts) -> Iterator[Finding]:
    """Yield NetworkPolicies of the upper cluster, which do not apply to its pods in a lower cluster."""
    if cluster.name == UPPER or not cluster.is_accessible:
        return
    upper = facts.upper
    namespaces = mirrored_namespaces(
        facts.spec(cluster.name), facts.topology, upper.items(NAMESPACES), cluster.items(NAMESPACES)
    )
    policies = Counter(namespace for namespace in upper.items(POLICIES) if namespace in namespaces)
    if policies:
        named = _listed(dict(sorted(policies.items())))
        what = f"NetworkPolicies of the upper cluster are not mirrored, and do not apply to its pods here: {named}"
        advice = f"create equivalent policies in {cluster.name}, in the namespaces where these pods run"
        yield Finding(cluster.name, "network", Level.WARN, what, advice)


def _shared(spec: Lower, names: str) -> Iterator[Finding]:
    """Yield each setting that assumes that others do not use these namespaces."""
    if spec.namespaces.mapping == "same":
        what = f"others run pods in namespaces that pods from the upper cluster go to, and count as one tenant: {names}"
        advice = (
            "where they are another tenant's: give the lower namespaces: {mapping: prefix}, once no mirrored pod is "
            "left there, or keep those namespaces out by excludeNamespaces"
        )
    else:
        what = f"others run pods in namespaces that were made for pods from the upper cluster: {names}"
        advice = "revoke the permission to create pods there from their creators"
    yield Finding(spec.name, "tenants", Level.WARN, what, advice)
    if spec.service_accounts.identity == "upper":
        what = f"tokens of the upper cluster are where others can read them (serviceAccounts.identity: upper): {names}"
        advice = f"give {spec.name} serviceAccounts: {{identity: lower}} unless its pods call the upper cluster"
        yield Finding(spec.name, "tenants", Level.WARN, what, advice)
    if "RBAC" in spec.controllers:
        what = f"accounts have permissions where others can run pods as them (controllers: RBAC): {names}"
        advice = f"leave RBAC out of controllers of {spec.name} unless its pods call the lower cluster"
        yield Finding(spec.name, "tenants", Level.WARN, what, advice)


def _engine_namespace(cluster: ClusterFacts, namespaces: dict[str, str]) -> Iterator[Finding]:
    """Yield upper namespaces that map to the lower namespace of the engine's own account."""
    namespace = cluster.user.removeprefix(_ACCOUNT).partition(":")[0] if cluster.user.startswith(_ACCOUNT) else ""
    for upper in (upper for upper, lower in namespaces.items() if namespace and lower == namespace):
        what = f"namespace {upper} of the upper cluster maps to {namespace}, which has the engine's own account"
        advice = "the engine mirrors nothing of it: run its pods in another namespace, or give the account its own"
        yield Finding(cluster.name, "tenants", Level.WARN, what, advice)


def _listed(shared: dict[str, int]) -> str:
    """Return namespaces with their counts, cut off after the first ones."""
    return listed((f"{name} ({count})" for name, count in shared.items()), _MOST_LISTED)
