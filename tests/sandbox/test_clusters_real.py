"""Tests that a sandbox's control planes behave as Kubernetes does in production, if this project relies on it."""

import base64
import json
import uuid
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from sandbox_waiting import until

from bench.kit import audit
from tensile.sandbox.sandbox import Sandbox

pytestmark = pytest.mark.real

LOWER = "lower-b"
CLUSTERS = ("upper", "lower-a", "lower-b")
OUTCOME = "sandbox.tensile-kube.io/outcome"


@pytest.fixture
def space(sandbox: Sandbox) -> Iterator[str]:
    """A new namespace in the upper cluster and in a lower one, with the service account that pods need."""
    name = f"test-{uuid.uuid4().hex[:8]}"
    for cluster in ("upper", LOWER):
        assert sandbox.kubectl("create", "namespace", name, cluster=cluster).returncode == 0
    for cluster in ("upper", LOWER):
        until(partial(get, sandbox, "serviceaccount/default", name, cluster), "the account", 20)
    yield name
    for cluster in ("upper", LOWER):
        sandbox.kubectl("delete", "namespace", name, "--wait=false", cluster=cluster)


def get(sandbox: Sandbox, what: str, space: str = "default", cluster: str = LOWER) -> dict[str, Any]:
    """Return an object, or nothing if there is none."""
    completed = sandbox.kubectl("get", what, f"--namespace={space}", "-o", "json", cluster=cluster)
    return json.loads(completed.stdout) if completed.returncode == 0 else {}


def apply(sandbox: Sandbox, manifest: dict[str, Any], cluster: str = LOWER) -> None:
    """Create an object."""
    done = sandbox.kubectl("create", "-f", "-", cluster=cluster, stdin=json.dumps(manifest))
    assert done.returncode == 0, done.stderr


def pod(space: str, outcome: str | None = None, **spec: Any) -> dict[str, Any]:
    """Return a pod `p` with one container."""
    annotations = {OUTCOME: outcome} if outcome else {}
    container = {"name": "c", "image": "none"}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "p", "namespace": space, "annotations": annotations},
        "spec": {"containers": [container], "restartPolicy": "Never", **spec},
    }


def writes(log: Path, start: int, agent: str, space: str) -> list[audit.Record]:
    """Return the writes of a program in a namespace.

    Other tests share the cluster, and write outside of namespaces.
    """
    return [one for one in audit.writes(audit.read(log, start), agent) if one["objectRef"].get("namespace") == space]


def condition(one: dict[str, Any], kind: str) -> str:
    """Return the status of a condition."""
    found = [entry["status"] for entry in one["status"].get("conditions", []) if entry["type"] == kind]
    return found[0] if found else ""


@pytest.mark.parametrize("cluster", CLUSTERS)
def test_every_cluster_has_the_version_that_was_built(sandbox: Sandbox, cluster: str) -> None:
    """Server and client report the same version."""
    versions = json.loads(sandbox.kubectl("version", "-o", "json", cluster=cluster).stdout)
    assert versions["serverVersion"]["gitVersion"] == versions["clientVersion"]["gitVersion"] == "v1.36.3"


@pytest.mark.parametrize("cluster", CLUSTERS)
def test_the_authority_of_clients_is_published(sandbox: Sandbox, cluster: str) -> None:
    """A kubelet API finds the authority of its callers in the ConfigMap in which Kubernetes publishes it."""
    published = get(sandbox, "configmap/extension-apiserver-authentication", "kube-system", cluster)
    authority = sandbox.clusters[cluster].audit_log.parent / "pki" / "ca.crt"
    assert published["data"]["client-ca-file"].strip() == authority.read_text().strip()


def test_a_node_may_not_set_restricted_labels_of_itself(sandbox: Sandbox) -> None:
    """NodeRestriction lets a node annotate itself, but not set labels by which node selectors choose it."""
    who = ("--overwrite", "--as=system:node:lower-b-node-1", "--as-group=system:nodes")
    noted = sandbox.kubectl("annotate", "node", "lower-b-node-1", "x=y", *who, cluster=LOWER)
    assert noted.returncode == 0, noted.stderr
    labelled = sandbox.kubectl("label", "node", "lower-b-node-1", "kubernetes.io/role=agent", *who, cluster=LOWER)
    assert labelled.returncode != 0
    assert "is not allowed to modify labels" in labelled.stderr


def test_a_user_without_a_role_is_forbidden(sandbox: Sandbox) -> None:
    """RBAC denies the user's request to list pods."""
    tried = sandbox.kubectl("get", "pods", "--as=somebody", cluster=LOWER)
    assert tried.returncode != 0
    assert "Forbidden" in tried.stderr


def test_writes_of_kubectl_are_in_the_audit_log(sandbox: Sandbox, space: str) -> None:
    """The record has the user, the program, the verb and the object; a read is no write."""
    log = sandbox.clusters["upper"].audit_log
    start = audit.position(log)
    sandbox.kubectl("get", "configmaps", f"--namespace={space}")
    sandbox.kubectl("create", "configmap", "seen", f"--namespace={space}")

    until(lambda: writes(log, start, "kubectl/", space), "the record of the write")
    (record,) = writes(log, start, "kubectl/", space)
    assert (record["verb"], record["objectRef"]["name"]) == ("create", "seen")
    assert record["user"]["username"] == "kubernetes-admin"
    assert record["responseStatus"]["code"] == 201


def test_the_audit_log_has_no_content_of_objects(sandbox: Sandbox, space: str) -> None:
    """The write of a Secret is recorded, its content is not."""
    log = sandbox.clusters["upper"].audit_log
    start = audit.position(log)
    sandbox.kubectl("create", "secret", "generic", "s", "--from-literal=k=hidden-words", f"--namespace={space}")
    until(lambda: [one for one in audit.read(log, start) if one.get("objectRef", {}).get("name") == "s"], "the record")
    assert b"hidden-words" not in log.read_bytes()


def test_a_pod_runs_in_a_lower_cluster(sandbox: Sandbox, space: str) -> None:
    """It is scheduled, gets an address of its cluster's range, and becomes Ready."""
    apply(sandbox, pod(space))
    until(lambda: condition(get(sandbox, "pod/p", space), "Ready") == "True", "the pod")
    one = get(sandbox, "pod/p", space)
    assert one["spec"]["nodeName"].startswith("lower-b-node-")
    assert one["status"]["podIP"].startswith("10.162.")
    assert one["status"]["containerStatuses"][0]["ready"]


@pytest.mark.parametrize(
    ("outcome", "phase", "end"),
    [("succeed", "Succeeded", (0, "Completed", False)), ("fail", "Failed", (3, "Error", False))],
)
def test_a_pod_ends_as_its_annotation_defines(
    sandbox: Sandbox, space: str, outcome: str, phase: str, end: tuple[int, str, bool]
) -> None:
    """Its container has the exit code and the reason of that outcome."""
    apply(sandbox, pod(space, outcome))
    until(lambda: get(sandbox, "pod/p", space)["status"]["phase"] == phase, phase)
    (container,) = get(sandbox, "pod/p", space)["status"]["containerStatuses"]
    ended = container["state"]["terminated"]
    assert (ended["exitCode"], ended["reason"], container["ready"]) == end


def test_a_pod_with_the_outcome_wait_stays_pending(sandbox: Sandbox, space: str) -> None:
    """It is scheduled and stays Pending, while a pod that was created later becomes Ready."""
    apply(sandbox, pod(space, "wait"))
    until(lambda: condition(get(sandbox, "pod/p", space), "PodScheduled") == "True", "the schedule")
    later = pod(space)
    later["metadata"]["name"] = "later"
    apply(sandbox, later)
    until(lambda: condition(get(sandbox, "pod/later", space), "Ready") == "True", "the later pod")
    assert get(sandbox, "pod/p", space)["status"]["phase"] == "Pending"


def test_sidecars_run_and_init_containers_have_terminated(sandbox: Sandbox, space: str) -> None:
    """Both kinds of init containers have the states that they have on a real node."""
    inits = [{"name": "once", "image": "none"}, {"name": "always", "image": "none", "restartPolicy": "Always"}]
    apply(sandbox, pod(space, initContainers=inits))
    until(lambda: condition(get(sandbox, "pod/p", space), "Ready") == "True", "the pod")
    states = {
        one["name"]: list(one["state"]) for one in get(sandbox, "pod/p", space)["status"]["initContainerStatuses"]
    }
    assert states == {"once": ["terminated"], "always": ["running"]}


def test_a_readiness_gate_is_not_opened(sandbox: Sandbox, space: str) -> None:
    """A pod whose gate no controller opens runs without being Ready."""
    apply(sandbox, pod(space, readinessGates=[{"conditionType": "example.org/gate"}]))
    until(lambda: get(sandbox, "pod/p", space)["status"]["phase"] == "Running", "the pod")
    one = get(sandbox, "pod/p", space)
    assert (condition(one, "ContainersReady"), condition(one, "Ready")) == ("True", "False")


def test_a_job_completes_when_its_pods_do(sandbox: Sandbox, space: str) -> None:
    """The controllers in the lower cluster work with the states of simulated pods."""
    template = {"metadata": {"annotations": {OUTCOME: "succeed"}}, "spec": pod(space)["spec"]}
    job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "j", "namespace": space}}
    apply(sandbox, {**job, "spec": {"completions": 2, "template": template}})
    until(lambda: condition(get(sandbox, "job/j", space), "Complete") == "True", "the job")
    assert get(sandbox, "job/j", space)["status"]["succeeded"] == 2


def test_a_deleted_pod_is_removed_by_one_request(sandbox: Sandbox, space: str) -> None:
    """Kwok deletes each pod once, because a second request could delete a new pod of the same name."""
    log = sandbox.clusters[LOWER].audit_log
    start = audit.position(log)
    names = ("p", "later")
    for name in names:
        one = pod(space)
        one["metadata"]["name"] = name
        apply(sandbox, one)
        until(lambda one=name: condition(get(sandbox, f"pod/{one}", space), "Ready") == "True", "the pod")
        assert sandbox.kubectl("delete", "pod", name, f"--namespace={space}", cluster=LOWER).returncode == 0
        assert get(sandbox, f"pod/{name}", space) == {}

    def deletions() -> list[str]:
        mine = writes(log, start, "kwok/", space)
        return [one["objectRef"]["name"] for one in mine if one["verb"] == "delete"]

    until(lambda: "later" in deletions(), "the record of the last deletion")
    assert sorted(deletions()) == sorted(names)


def test_a_finalizer_keeps_a_pod(sandbox: Sandbox, space: str) -> None:
    """A deleted pod keeps its finalizer until a client removes it."""
    held = pod(space)
    held["metadata"]["finalizers"] = ["example.org/hold"]
    apply(sandbox, held)
    until(lambda: condition(get(sandbox, "pod/p", space), "Ready") == "True", "the pod")
    sandbox.kubectl("delete", "pod", "p", f"--namespace={space}", "--wait=false", cluster=LOWER)
    until(lambda: get(sandbox, "pod/p", space)["metadata"].get("deletionTimestamp"), "the mark of the deletion")
    assert get(sandbox, "pod/p", space)["metadata"]["finalizers"] == ["example.org/hold"]
    release = ("patch", "pod", "p", f"--namespace={space}", "--type=json")
    sandbox.kubectl(*release, '--patch=[{"op": "remove", "path": "/metadata/finalizers"}]', cluster=LOWER)
    until(lambda: not get(sandbox, "pod/p", space), "the end of the pod")


def test_garbage_is_collected_in_the_upper_cluster(sandbox: Sandbox, space: str) -> None:
    """The ReplicaSet is deleted with its Deployment, although the upper cluster has no nodes."""
    sandbox.kubectl("create", "deployment", "d", "--image=none", "--replicas=2", f"--namespace={space}")
    until(lambda: len(get(sandbox, "pods", space, "upper")["items"]) == 2, "the pods")
    sandbox.kubectl("delete", "deployment", "d", f"--namespace={space}")
    until(lambda: not get(sandbox, "replicasets", space, "upper")["items"], "the end of the ReplicaSet")


def test_a_pod_in_the_upper_cluster_waits_for_a_node(sandbox: Sandbox, space: str) -> None:
    """Without virtual nodes no pod can be scheduled in the upper cluster."""
    apply(sandbox, pod(space), "upper")
    until(lambda: condition(get(sandbox, "pod/p", space, "upper"), "PodScheduled") == "False", "the verdict")
    assert get(sandbox, "pod/p", space, "upper")["status"]["phase"] == "Pending"


def test_a_namespace_can_be_deleted(sandbox: Sandbox) -> None:
    """A deleted namespace is removed together with its content."""
    name = f"short-{uuid.uuid4().hex[:8]}"
    sandbox.kubectl("create", "namespace", name, cluster=LOWER)
    sandbox.kubectl("create", "configmap", "c", f"--namespace={name}", cluster=LOWER)
    assert sandbox.kubectl("delete", "namespace", name, "--timeout=60s", cluster=LOWER).returncode == 0
    assert get(sandbox, f"namespace/{name}") == {}


def test_a_kubelet_can_request_its_certificate(sandbox: Sandbox) -> None:
    """An approved request is signed by the authority by which the apiserver verifies kubelets."""
    name = f"csr-{uuid.uuid4().hex[:8]}"
    subject = [(NameOID.ORGANIZATION_NAME, "system:nodes"), (NameOID.COMMON_NAME, "system:node:virtual")]
    csr = x509.CertificateSigningRequestBuilder(x509.Name([x509.NameAttribute(*one) for one in subject]))
    csr = csr.add_extension(x509.SubjectAlternativeName([x509.DNSName("virtual")]), critical=False)
    pem = csr.sign(ec.generate_private_key(ec.SECP256R1()), hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
    spec = {
        "request": base64.b64encode(pem).decode(),
        "signerName": "kubernetes.io/kubelet-serving",
        "usages": ["digital signature", "server auth"],
    }
    meta = {"apiVersion": "certificates.k8s.io/v1", "kind": "CertificateSigningRequest", "metadata": {"name": name}}
    made = sandbox.kubectl(
        "create",
        "-f",
        "-",
        "--as=system:node:virtual",
        "--as-group=system:nodes",
        stdin=json.dumps({**meta, "spec": spec}),
    )
    assert made.returncode == 0, made.stderr
    sandbox.kubectl("certificate", "approve", name)
    until(lambda: get(sandbox, f"csr/{name}", cluster="upper")["status"].get("certificate"), "the certificate")
    signed = base64.b64decode(get(sandbox, f"csr/{name}", cluster="upper")["status"]["certificate"])
    authority = (sandbox.clusters["upper"].audit_log.parent / "pki" / "ca.crt").read_bytes()
    x509.load_pem_x509_certificate(signed).verify_directly_issued_by(x509.load_pem_x509_certificate(authority))
    sandbox.kubectl("delete", "csr", name)
