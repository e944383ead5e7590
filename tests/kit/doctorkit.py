"""Facts for tests of doctor: two healthy clusters, and what tests merge over them."""

from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import orjson
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from tensile.diagnostics.doctor.facts import (
    AUTHORITY,
    CLASSES,
    METRICS,
    NAMESPACES,
    NODES,
    PODS_BY_NAMESPACE,
    POLICIES,
    RANGES,
    ClusterFacts,
    ContactResult,
    Facts,
    Finding,
    Level,
    QueryAnswer,
    ServerEndpoint,
    Stage,
)
from tensile.names import FIELD_MANAGER, OWNER, OWNER_NAME, UPPER_UID, owner_of
from tensile.objects import UPPER, Manifest
from tensile.sandbox.credentials import Authority, authority
from tensile.topology import Topology, parse

NOW = datetime(2026, 6, 1, 12, tzinfo=UTC)
LOWER = "lower-a"
UPPER_ID, LOWER_ID = "uid-of-the-upper", "uid-of-the-lower"
CA = authority("cluster-ca", NOW)
OWNER_OF = owner_of(UPPER_ID, "demo")


def der(pem: bytes) -> bytes:
    """Return a certificate in DER, as a TLS peer presents it."""
    return x509.load_pem_x509_certificate(pem).public_bytes(Encoding.DER)


def signed_by(signer: Authority = CA, *, ago: timedelta = timedelta(), **names: Any) -> bytes:
    """Return a certificate of "engine" in the group "masters", signed so long before now."""
    return replace(signer, now=NOW - ago).issue("engine", ("masters",), **names).certificate


def topology(**fields: Any) -> Topology:
    """Make a topology of one lower; `lower` holds fields of that lower."""
    lower = {"name": LOWER, "kubeconfig": "lower-a", **fields.pop("lower", {})}
    lowers = fields.pop("lowers", [lower])
    file = {"apiVersion": "tensile-kube.io/v1alpha1", "kind": "Topology", "name": "demo", "lowers": lowers, **fields}
    return parse(orjson.dumps(file).decode(), name="topology.yaml")


def server_endpoint(host: str = "192.0.2.1", **fields: Any) -> ServerEndpoint:
    """Make a server endpoint with a valid certificate and CA."""
    basis = ServerEndpoint("kubeconfigs/it", f"https://{host}:6443", host, 6443, host, CA.pair.certificate, signed_by())
    return basis._replace(**{"flags": "--kubeconfig kubeconfigs/it --context b", **fields})


def contact(stage: Stage = Stage.DONE, error: str = "", **fields: Any) -> ContactResult:
    """Make the result of a contact that reached this stage."""
    shown = der(signed_by(addresses=("192.0.2.1",)))
    return ContactResult(server_endpoint(), stage, error, shown, "v1.36.3", 0.2)._replace(**fields)


def real_node(ready: str = "True", **spec: Any) -> Manifest:
    """Make a node of a lower."""
    return {"metadata": {"name": "n1"}, "spec": spec, "status": {"conditions": [{"type": "Ready", "status": ready}]}}


def cluster_facts(name: str = LOWER, **fields: Any) -> ClusterFacts:
    """Make the facts of a healthy cluster; `fields` replace its own, and `answers` are merged over the usual ones.

    A lower has one node that is Ready.
    """
    usual: dict[str, Any] = {NODES: [], CLASSES: [], RANGES: [], NAMESPACES: [], PODS_BY_NAMESPACE: [], POLICIES: []}
    usual |= (
        {AUTHORITY: {"data": {"client-ca-file": CA.pair.certificate.decode()}}}
        if name == UPPER
        else {METRICS: None, NODES: [real_node()]}
    )
    answers = {key: QueryAnswer(value) for key, value in usual.items()} | fields.pop("answers", {})
    known = UPPER_ID if name == UPPER else LOWER_ID
    own = contact(endpoint=server_endpoint("192.0.2.3")) if name == UPPER else contact()
    made = ClusterFacts(name, contact=own, user="engine", identity=known, missing=[], answers=answers)
    for field, value in fields.items():
        setattr(made, field, value)
    return made


def facts(upper: ClusterFacts | None = None, *lowers: ClusterFacts, **fields: Any) -> Facts:
    """Make the facts of all clusters; without lowers given, one healthy lower."""
    found = {one.name: one for one in lowers or (cluster_facts(),)}
    named = fields.pop("topology", None) or topology()
    basis = Facts(named, upper or cluster_facts(UPPER), found, {}, "192.0.2.9", NOW)
    return replace(basis, **fields)


def node(name: str, *, ours: bool = True, port: int = 10350, address: str = "192.0.2.9", **spec: Any) -> Manifest:
    """Make a Node, of this topology or without an owner."""
    meta: Manifest = {"name": name, "labels": {}, "annotations": {}}
    if ours:
        marks = {f"f:{UPPER_UID}": {}}
        written = {
            "manager": FIELD_MANAGER,
            "operation": "Update",
            "fieldsV1": {"f:metadata": {"f:annotations": marks}},
        }
        meta["labels"] = {OWNER: OWNER_OF.mark, "type": "virtual-kubelet"}
        meta["annotations"] = {OWNER_NAME: "demo", UPPER_UID: UPPER_ID}
        meta["managedFields"] = [written]
    status = {
        "addresses": [{"type": "InternalIP", "address": address}],
        "daemonEndpoints": {"kubeletEndpoint": {"Port": port}},
    }
    return {"metadata": meta, "spec": spec, "status": status}


def lease(ago: float = 1.0) -> QueryAnswer:
    """Make the lease of a node that was renewed so many seconds ago."""
    return QueryAnswer({"spec": {"renewTime": (NOW - timedelta(seconds=ago)).strftime("%Y-%m-%dT%H:%M:%S.%fZ")}})


def only_finding(found: Iterable[Finding]) -> Finding:
    """Return the one finding."""
    (finding,) = found
    return finding


def levels(found: Iterable[Finding]) -> list[Level]:
    """Return the levels of findings."""
    return [finding.level for finding in found]


def findings_at(found: Iterable[Finding], level: Level) -> list[Finding]:
    """Return the findings of a level."""
    return [finding for finding in found if finding.level == level]
