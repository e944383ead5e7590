"""Tests that no upper pod reaches an object that exists in a lower cluster alone, however its spec refers to it."""

from base64 import b64encode
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from enginekit import A, B, EngineHarness, edit_lower, running_engine
from sitekit import Manifest, condition_of, is_ready

from tensile.names import MIRRORED, NO_ORIGINAL, OWNER, UPPER_UID
from tensile.sandbox.sandbox import Sandbox

pytestmark = [pytest.mark.real, pytest.mark.asyncio(loop_scope="module")]

RBAC = "/apis/rbac.authorization.k8s.io/v1"
THEIRS = {"data": {"key": "bG93ZXItb25seQ=="}}
PLAIN = {"data": {"key": "lower-only"}}
KINDS = {"secrets": THEIRS, "configmaps": PLAIN}
ADMISSION: list[Manifest] = [
    {"serviceAccountToken": {"expirationSeconds": 3607, "path": "token"}},
    {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
    {"downwardAPI": {"items": [{"path": "namespace", "fieldRef": {"fieldPath": "metadata.namespace"}}]}},
]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def harness(sandbox: Sandbox, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[EngineHarness]:
    """Start an engine, with its namespace in both lowers; pods of lower-b get tokens of the upper cluster."""
    identity = edit_lower(B, serviceAccounts={"identity": "upper"})
    async with running_engine(sandbox, tmp_path_factory.mktemp("lower-only"), identity) as harness:
        for lower in (A, B):
            await harness.make_namespace(lower, harness.namespace)
        yield harness


def container(**fields: Any) -> Manifest:
    """Return a spec with one container."""
    return {"containers": [{"name": "main", "image": "app:1", **fields}]}


def volume(source: Manifest, name: str = "content") -> Manifest:
    """Return a spec with one volume."""
    return {"volumes": [{"name": name, **source}]}


def optional(name: str, **more: Any) -> Manifest:
    """Return an optional reference to a name."""
    return {"name": name, "optional": True, **more}


WAYS = {
    "secret-variable": ("secrets", lambda n: container(env=[{"name": "A", "valueFrom": {
        "secretKeyRef": optional(n, key="key")}}])),
    "secret-variables": ("secrets", lambda n: container(envFrom=[{"secretRef": optional(n)}])),
    "secret-volume": ("secrets", lambda n: volume({"secret": {"secretName": n, "optional": True}})),
    "secret-projected": ("secrets", lambda n: volume({"projected": {"sources": [{"secret": optional(n)}]}})),
    "secret-like-a-token": ("secrets", lambda n: volume(
        {"projected": {"sources": [*ADMISSION, {"secret": optional(n)}]}}, "kube-api-access-abcde")),
    "pull-secret": ("secrets", lambda n: {"imagePullSecrets": [{"name": n}]}),
    "configmap-variable": ("configmaps", lambda n: container(env=[{"name": "A", "valueFrom": {
        "configMapKeyRef": optional(n, key="key")}}])),
    "configmap-variables": ("configmaps", lambda n: container(envFrom=[{"configMapRef": optional(n)}])),
    "configmap-volume": ("configmaps", lambda n: volume({"configMap": optional(n)})),
    "configmap-projected": ("configmaps", lambda n: volume({"projected": {"sources": [{"configMap": optional(n)}]}})),
}  # fmt: skip


def is_not_mirrored(reason: str, message: str = "") -> Any:
    """Return the predicate that a pod is not mirrored for a reason."""

    def holds(pod: Manifest) -> bool:
        """Report whether the pod has this condition."""
        condition = condition_of(pod, MIRRORED)
        return condition.get("reason") == reason and message in condition["message"]

    return holds


async def held(harness: EngineHarness, plural: str, name: str) -> Manifest:
    """Wait until a name is held in lower-a, and return the object that holds it."""
    return await harness.sites[A].until(
        harness.path(plural, name), lambda one: one["metadata"].get("annotations", {}).get(UPPER_UID) == NO_ORIGINAL
    )


async def absent(harness: EngineHarness, path: str, lower: str = A) -> None:
    """Assert that no object exists at a path of a lower cluster once the engine is idle."""
    await harness.wait_idle()
    assert await harness.sites[lower].read(path) == {}


@pytest.mark.parametrize(("way", "spec"), WAYS.values(), ids=WAYS)
async def test_a_pod_with_an_optional_reference_to_a_lower_only_object_is_not_mirrored(
    harness: EngineHarness, request: pytest.FixtureRequest, way: str, spec: Any
) -> None:
    """The upper pod reports the conflict, and the lower object is not touched.

    Once it is deleted, the engine holds the name by an empty object, and the pod runs.
    """
    name, site = request.node.callspec.id, harness.sites[A]
    path = harness.path(way, name)
    before = await site.create(harness.path(way), {"metadata": {"name": name}, **KINDS[way]})
    pod = await harness.bind(name, spec(name))
    await harness.upper.until(
        harness.pod_path(name),
        is_not_mirrored("NameConflict", f"{harness.namespace}/{name} exists in lower cluster {A}"),
    )
    assert "the upper cluster has no such object" in await harness.wait_for_event(pod, "NameConflict")
    await absent(harness, harness.pod_path(name))
    assert (await site.read(path))["metadata"]["resourceVersion"] == before["metadata"]["resourceVersion"]
    await site.delete(path)
    made = await held(harness, way, name)
    assert not made.get("data")
    assert made["metadata"]["labels"] == {OWNER: harness.owner.mark}
    await harness.upper.until(harness.pod_path(name), is_ready)
    await harness.end_pods(name)
    await site.gone(path)


async def test_a_pod_reaches_no_token_secret_of_a_lower_account(harness: EngineHarness) -> None:
    """This holds also if the upper cluster has a token Secret of that name, because such Secrets are never copied."""
    site, secrets = harness.sites[A], harness.path("secrets")
    await site.create(harness.path("serviceaccounts"), {"metadata": {"name": "privileged"}})
    token = {
        "metadata": {"name": "its-token", "annotations": {"kubernetes.io/service-account.name": "privileged"}},
        "type": "kubernetes.io/service-account-token",
    }
    await site.create(secrets, token)
    await site.until(harness.path("secrets", "its-token"), lambda one: "token" in (one.get("data") or {}))
    spec = volume({"secret": {"secretName": "its-token", "optional": True}})
    await harness.bind("thief", spec)
    await harness.upper.until(harness.pod_path("thief"), is_not_mirrored("NameConflict"))
    await harness.upper.create(harness.path("serviceaccounts"), {"metadata": {"name": "privileged"}})
    await harness.upper.create(secrets, token)
    await harness.bind("second", spec)
    await harness.upper.until(harness.pod_path("second"), is_not_mirrored("NameConflict"))
    for name in ("thief", "second"):
        await absent(harness, harness.pod_path(name))
        await harness.end_pods(name)


async def test_a_missing_optional_name_is_held_until_the_upper_object_is_created(harness: EngineHarness) -> None:
    """Pods run during that time, as on any node.

    A pull secret replaces the empty Secret with its own type, and is replaced by it again after its deletion.
    """
    site, path = harness.sites[A], harness.path("secrets", "registry")
    await harness.run_pod("pulling", {"imagePullSecrets": [{"name": "registry"}]})
    assert (await held(harness, "secrets", "registry"))["type"] == "Opaque"
    config = b64encode(b'{"auths":{}}').decode()
    body = {"type": "kubernetes.io/dockerconfigjson", "data": {".dockerconfigjson": config}}
    await harness.upper.create(harness.path("secrets"), {"metadata": {"name": "registry"}, **body})
    copy = await site.until(path, lambda one: one.get("data") == body["data"])
    assert copy["type"] == body["type"]
    await harness.upper.delete(path)
    assert not (await held(harness, "secrets", "registry")).get("data")
    await harness.end_pods("pulling")
    await site.gone(path)


async def test_the_name_of_a_deleted_secret_stays_held_for_running_pods(harness: EngineHarness) -> None:
    """Otherwise the next Secret of that name in the lower cluster would be mounted into their volumes."""
    await harness.upper.create(harness.path("secrets"), {"metadata": {"name": "shifted"}, **THEIRS})
    await harness.run_pod("shifting", volume({"secret": {"secretName": "shifted"}}))
    await harness.upper.delete(harness.path("secrets", "shifted"))
    await held(harness, "secrets", "shifted")
    await harness.end_pods("shifting")
    await harness.sites[A].gone(harness.path("secrets", "shifted"))


async def test_a_debug_container_is_added_only_once_its_optional_names_are_held(harness: EngineHarness) -> None:
    """Until then, the condition of the upper pod reports the conflict."""
    site = harness.sites[A]
    await site.create(harness.path("secrets"), {"metadata": {"name": "debugging"}, **THEIRS})
    await harness.run_pod("debugged")
    debug = {"name": "debug", "image": "app:1", "envFrom": [{"secretRef": optional("debugging")}]}
    patch = {"spec": {"ephemeralContainers": [debug]}}
    await harness.upper.patch(f"{harness.pod_path('debugged')}/ephemeralcontainers", patch, "strategic")
    pod = await harness.upper.until(
        harness.pod_path("debugged"), lambda one: "NameConflict" in str(one["status"].get("conditions"))
    )
    await harness.engine.loop.wait_idle()
    assert "ephemeralContainers" not in (await site.read(harness.pod_path("debugged")))["spec"]
    await site.delete(harness.path("secrets", "debugging"))
    await held(harness, "secrets", "debugging")
    await site.until(harness.pod_path("debugged"), lambda one: one["spec"].get("ephemeralContainers"))
    assert pod["metadata"]["name"] == "debugged"
    await harness.end_pods("debugged")


async def test_a_volume_with_the_name_of_an_admission_volume_gets_the_same_checks(harness: EngineHarness) -> None:
    """The Secret in it has to exist in the upper cluster, as in any other volume."""
    await harness.sites[A].create(harness.path("secrets"), {"metadata": {"name": "hidden"}, **THEIRS})
    source = {"projected": {"sources": [{"secret": {"name": "hidden"}}]}}
    await harness.bind("hiding", volume(source, "kube-api-access-abcde"))
    await harness.upper.until(harness.pod_path("hiding"), is_not_mirrored("SecretNotFound"))
    await absent(harness, harness.pod_path("hiding"))
    await harness.end_pods("hiding")


ORIGIN = {"kind": "PersistentVolumeClaim", "name": "origin"}
SOURCES = {
    "clone": {"dataSource": ORIGIN},
    "snapshot": {"dataSource": {"kind": "VolumeSnapshot", "apiGroup": "snapshot.storage.k8s.io", "name": "origin"}},
}


@pytest.mark.parametrize(("name", "source"), SOURCES.items(), ids=SOURCES)
async def test_a_claim_with_a_lower_only_data_source_is_not_mirrored(
    harness: EngineHarness, name: str, source: Manifest
) -> None:
    """A claim that exists in the lower cluster alone is no valid source; pod and claim report the reason."""
    site, claims = harness.sites[A], harness.path("persistentvolumeclaims")
    claim_spec: Manifest = {
        "accessModes": ["ReadWriteOnce"],
        "storageClassName": f"none-{harness.mark}",
        "resources": {"requests": {"storage": "1Gi"}},
    }
    if await site.read(f"{claims}/origin") == {}:
        await site.create(claims, {"metadata": {"name": "origin"}, "spec": claim_spec})
    await harness.upper.create(claims, {"metadata": {"name": name}, "spec": {**claim_spec, **source}})
    await harness.bind(name, volume({"persistentVolumeClaim": {"claimName": name}}))
    await harness.upper.until(harness.pod_path(name), is_not_mirrored("ClaimNotMirrored", "has the data source"))
    await harness.upper.until(f"{claims}/{name}", lambda one: condition_of(one, MIRRORED))
    await absent(harness, f"{claims}/{name}")
    await harness.end_pods(name)
    await harness.upper.delete(f"{claims}/{name}")
    await harness.upper.gone(f"{claims}/{name}")


async def test_a_lower_claim_is_not_used_if_the_controller_pv_is_disabled(harness: EngineHarness) -> None:
    """A lower claim of that name belongs to another owner, even if the topology does not mirror storage."""
    without = ("Service", "ServiceAccount")
    await harness.reload(
        edit_lower(A, controllers=without), edit_lower(B, serviceAccounts={"identity": "upper"}, controllers=without)
    )
    claim_spec = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    claims = harness.path("persistentvolumeclaims")
    for site in (harness.upper, harness.sites[A]):
        await site.create(
            claims, {"metadata": {"name": "theirs"}, "spec": {**claim_spec, "storageClassName": harness.mark}}
        )
    await harness.bind("mounting", volume({"persistentVolumeClaim": {"claimName": "theirs"}}))
    await harness.upper.until(
        harness.pod_path("mounting"), is_not_mirrored("ClaimNotMirrored", "controller PV is not enabled")
    )
    await absent(harness, harness.pod_path("mounting"))
    await harness.end_pods("mounting")
    await harness.upper.delete(f"{claims}/theirs")
    await harness.upper.gone(f"{claims}/theirs")
    await harness.reload(edit_lower(B, serviceAccounts={"identity": "upper"}))


async def test_pull_secrets_of_an_account_are_held_in_the_lower_cluster_first(harness: EngineHarness) -> None:
    """Lower admission would add them to a pod that names none and is older than its account's reference."""
    site, accounts = harness.sites[A], harness.path("serviceaccounts")
    await site.create(harness.path("secrets"), {"metadata": {"name": "theirs"}, **THEIRS})
    await harness.upper.create(accounts, {"metadata": {"name": "puller"}})
    spec = {"serviceAccountName": "puller", **container(envFrom=[{"configMapRef": {"name": "gate"}}])}
    await harness.bind("pulled", spec)
    await harness.upper.until(harness.pod_path("pulled"), is_not_mirrored("ConfigMapNotFound"))
    await harness.upper.patch(f"{accounts}/puller", {"imagePullSecrets": [{"name": "theirs"}]})
    await harness.upper.create(harness.path("configmaps"), {"metadata": {"name": "gate"}, **PLAIN})
    await harness.upper.until(harness.pod_path("pulled"), is_not_mirrored("NameConflict", "theirs"))
    await absent(harness, harness.pod_path("pulled"))
    await site.delete(harness.path("secrets", "theirs"))
    await harness.upper.until(harness.pod_path("pulled"), is_ready)
    lower_object = await site.read(harness.pod_path("pulled"))
    assert lower_object["spec"]["imagePullSecrets"] == [{"name": "theirs"}]
    assert (await held(harness, "secrets", "theirs"))["type"] == "Opaque"
    await harness.end_pods("pulled")


async def test_upper_tokens_are_issued_only_when_nothing_else_is_missing(harness: EngineHarness) -> None:
    """The lower cluster has no credential of a pod that waits for a ConfigMap."""
    site, secrets = harness.sites[B], harness.path("secrets")
    pod = await harness.bind("late", container(envFrom=[{"configMapRef": {"name": "late"}}]), B)
    await harness.upper.until(harness.pod_path("late"), is_not_mirrored("ConfigMapNotFound"))
    name = f"upper-token-{pod['metadata']['uid']}"
    await absent(harness, f"{secrets}/{name}", B)
    await harness.upper.create(harness.path("configmaps"), {"metadata": {"name": "late"}, **PLAIN})
    await harness.upper.until(harness.pod_path("late"), is_ready)
    assert "token" in (await site.read(f"{secrets}/{name}"))["data"]
    await harness.end_pods("late")


@asynccontextmanager
async def called_as(harness: EngineHarness, account: Manifest, directory: Path) -> AsyncIterator[None]:
    """Let the engine use lower-a as an account there that may do everything."""
    site, where = harness.sites[A], account["metadata"]
    subject = {"kind": "ServiceAccount", "namespace": where["namespace"], "name": where["name"]}
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"}
    bindings, name = f"{RBAC}/clusterrolebindings", f"{where['namespace']}-{where['name']}"
    await site.create(bindings, {"metadata": {"name": name}, "roleRef": role, "subjects": [subject]})
    path = f"/api/v1/namespaces/{where['namespace']}/serviceaccounts/{where['name']}/token"
    token = (await site.create(path, {"spec": {}}))["status"]["token"]
    lines = (directory / f"{A}.kubeconfig").read_text().splitlines()
    kept = [line for line in lines if "client-" not in line]
    kept.insert(kept.index("  user:") + 1, f"    token: {token}")
    (directory / f"{A}.kubeconfig").write_text("\n".join(kept))
    try:
        yield
    finally:
        await site.delete(f"{bindings}/{name}")


async def test_nothing_is_mirrored_into_the_namespace_of_the_engines_lower_account(
    sandbox: Sandbox, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Other users could create an upper namespace of that name; its pods report why they are not mirrored."""
    directory = tmp_path_factory.mktemp("own")
    harness = EngineHarness(sandbox, directory)
    try:
        await harness.open()
        own = f"{harness.namespace}-engine"
        await harness.make_namespace(A, own)
        await harness.make_namespace("upper", own)
        account = await harness.sites[A].create(
            harness.path("serviceaccounts", namespace=own), {"metadata": {"name": "engine"}}
        )
        async with called_as(harness, account, directory):
            await harness.start()
            await harness.upper.create(harness.path("pods", namespace=own), harness.pod("guest", volume(
                {"secret": {"secretName": "engine-token", "optional": True}})))  # fmt: skip
            pod = await harness.upper.until(
                harness.path("pods", "guest", namespace=own), is_not_mirrored("NamespaceExcluded")
            )
            message = f"namespace {own} of {A} has the engine's own ServiceAccount: nothing in {own} is mirrored"
            assert condition_of(pod, MIRRORED)["message"] == message
            await harness.run_pod("neighbour")
            await harness.engine.loop.wait_idle()
            for plural in ("pods", "secrets"):
                assert (await harness.sites[A].read(harness.path(plural, namespace=own)))["items"] == []
            await harness.upper.delete(harness.path("pods", "guest", namespace=own))
            await harness.upper.gone(harness.path("pods", "guest", namespace=own))
            await harness.clear()
    finally:
        for cluster in ("upper", A):
            await harness.sites[cluster].delete(f"/api/v1/namespaces/{own}")
        await harness.close()
    assert harness.loop_recorder.defects == []
