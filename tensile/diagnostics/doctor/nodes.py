"""Checks whether each lower is a different cluster with a Node of ours, and whether its kubelet API is reachable."""

from collections.abc import Iterator
from http import HTTPStatus
from shlex import quote

from tensile.diagnostics.doctor.facts import (
    NODES,
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
    node_named,
    owner,
    port_of,
    shown,
    strays,
)
from tensile.names import LOWER_UID, NOWHERE, OWNER, OWNER_NAME
from tensile.objects import UPPER, Manifest, annotations, labels
from tensile.reconcile.ownership import is_ours

_CERTIFICATE = ("x509", "certificate", "tls:")


def identified(side: ClusterFacts, facts: Facts) -> Iterator[Finding]:
    """Yield a finding on whether a cluster differs from all previous ones, and is the one its Node was created for."""
    if not side.identity:
        return
    place = facts.sides().index(side)
    twin = next((one for one in facts.sides()[:place] if one.identity == side.identity), None)
    if twin is not None:
        origin = side.contact.way.origin if side.contact else ""
        what = f"it is the same cluster as {shown(twin.name)} (kube-system {side.identity})"
        advice = f"put another cluster into {origin}, or remove one of the two from the topology"
        yield Finding(side.name, "identity", Level.FAIL, what, advice)
        return
    known = _noted(side, facts)
    if known not in ("", side.identity):
        what = f"another cluster answers than that of its Node (kube-system {side.identity}, not {known})"
        advice = "correct the address, or add the new cluster to the topology under another name"
        yield Finding(side.name, "identity", Level.FAIL, what, advice)
        return
    yield Finding(side.name, "identity", Level.OK, f"kube-system {side.identity}")


def _noted(side: ClusterFacts, facts: Facts) -> str:
    """Return the identity of the lower cluster that is recorded on its Node, "" for none."""
    if side.name == UPPER:
        return ""
    node = node_named(facts.upper, facts.spec(side.name).node.name)
    return annotations(node).get(LOWER_UID, "") if node and is_ours(node, owner(facts.upper, facts.topology)) else ""


def noded(side: ClusterFacts, facts: Facts) -> Iterator[Finding]:
    """Yield a finding on whether a lower's Node exists and is ours, and whether an engine renews its lease."""
    upper = facts.upper
    if NODES not in upper.answers or upper.value(NODES) is None or not upper.identity:
        return
    if side.name == UPPER:
        yield from _others(upper, facts)
        return
    name = facts.spec(side.name).node.name
    node = node_named(upper, name)
    if node is None:
        yield Finding(side.name, "node", Level.SKIP, f"there is no Node {name} yet: the engine creates it")
    elif not is_ours(node, owner(upper, facts.topology)):
        yield Finding(side.name, "node", Level.FAIL, *_foreign(name, node))
    elif is_renewed(upper, name, facts.now):
        yield Finding(side.name, "node", Level.OK, f"Node {name} exists, and an engine renews its lease")
    else:
        yield Finding(side.name, "node", Level.SKIP, f"Node {name} exists, but no engine renews its lease")


def _foreign(name: str, node: Manifest) -> tuple[str, str]:
    """Return whose Node has the name of ours, and what to do."""
    if labels(node).get(OWNER):
        whose = f"topology {annotations(node).get(OWNER_NAME, 'unknown')}'s ({OWNER}={labels(node)[OWNER]})"
    else:
        whose = "not created by tensile"
    advice = (
        "give the lower another node.name in the topology, or, if nobody needs that Node: "
        f"kubectl delete node {quote(name)}"
    )
    return f"the name is taken: Node {name} is {whose}, and the engine does not change it", advice


def _others(upper: ClusterFacts, facts: Facts) -> Iterator[Finding]:
    """Yield Nodes with this topology's marks that are not in it; another engine with another file may renew them."""
    name = facts.topology.name
    for node in strays(upper, facts.topology):
        if is_renewed(upper, node, facts.now):
            what = f"an engine keeps Node {node} for topology {name}, which has no such lower cluster here"
            advice = "check whether a second engine runs a topology of that name; if so, rename one of them"
        else:
            what = f"Node {node} is of topology {name}, which no longer has such a lower cluster"
            advice = "run the engine, which deletes it when no pod is bound to it"
        yield Finding(UPPER, "node", Level.WARN, what, advice)


def called(side: ClusterFacts, facts: Facts) -> Iterator[Finding]:
    """Yield a finding on whether the upper apiserver reaches the kubelet API of a lower's Node."""
    upper = facts.upper
    if side.name == UPPER or not upper.is_in:
        return
    name = facts.spec(side.name).node.name
    node, answer = node_named(upper, name), upper.answers.get(port_of(name))
    local = _loopback(facts)
    if local:
        yield Finding(side.name, "kubelet", Level.FAIL, *local)
    elif node is None or not is_renewed(upper, name, facts.now):
        what = "not checked: no engine serves it" if lease_of(name) in upper.answers else "not checked"
        yield Finding(side.name, "kubelet", Level.SKIP, what)
    elif endpoint_of(node)[1] in (0, NOWHERE):
        what = f"Node {name} has no kubelet port: the engine cannot serve it, so logs and exec fail"
        yield Finding(side.name, "kubelet", Level.FAIL, what, "see the engine's log for what uses its port")
    elif answer is None:
        what = (
            "not checked: this needs the permission to get nodes/proxy, which the engine does not need; as an "
            f"administrator: kubectl get --raw /api/v1/nodes/{name}/proxy/healthz"
        )
        yield Finding(side.name, "kubelet", Level.SKIP, what)
    else:
        yield _answered(side.name, name, node, answer)


def _loopback(facts: Facts) -> tuple[str, str] | None:
    """Return the error that nodes publish a loopback address to an apiserver elsewhere, None if they do not."""
    contact = facts.upper.contact
    if contact is None or not is_loopback(facts.address) or is_loopback(contact.way.host):
        return None
    what = f"nodes publish {facts.address}, which is the upper apiserver itself and not the engine"
    return what, "set kubelet.nodeAddress to an IP address of this machine that the apiserver reaches"


def _answered(lower: str, name: str, node: Manifest, answer: QueryAnswer) -> Finding:
    address, port = endpoint_of(node)
    where = f"Node {name} at {f'[{address}]' if ':' in address else address}:{port}"
    if isinstance(answer.value, ContactResult):
        if answer.value.stage == Stage.DONE:
            return Finding(lower, "kubelet", Level.OK, f"{where} is reachable from here")
        return Finding(
            lower, "kubelet", Level.FAIL, f"{where} is not reachable ({answer.value.error})", _unreached(port)
        )
    if answer.value:
        return Finding(lower, "kubelet", Level.OK, f"the upper's apiserver reaches {where}")
    what = f"the upper's apiserver does not reach {where} (HTTP {answer.status or '-'}: {answer.error})"
    return Finding(lower, "kubelet", Level.FAIL, what, _remedy(answer, port))


def _remedy(answer: QueryAnswer, port: int) -> str:
    """Return advice for an error of the apiserver, or of the kubelet API itself."""
    words = answer.error.lower()
    if answer.status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
        return (
            "permit the apiserver's kubelet client: kubectl create clusterrolebinding kubelet-api-admin "
            "--clusterrole=system:kubelet-api-admin --user=kube-apiserver-kubelet-client (or whom its "
            "--kubelet-client-certificate names), and see that kubelet.clientCAFile is the CA that signed that"
        )
    if any(sign in words for sign in _CERTIFICATE):
        return (
            "the apiserver's --kubelet-certificate-authority has to hold the CA of the serving certificate, and that "
            "has to name the address: approve the request for it (kubectl get csr), or set kubelet.tlsCertFile"
        )
    return _unreached(port)


def _unreached(port: int) -> str:
    return (
        f"let the upper's apiserver through to port {port} of the engine (firewall, NetworkPolicy, kubelet.bind), and "
        "set kubelet.nodeAddress to the address at which it reaches the engine"
    )
