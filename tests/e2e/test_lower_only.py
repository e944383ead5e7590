"""Tests that no upper pod reaches an object that exists in a lower cluster alone, however its spec refers to it."""

from base64 import b64encode
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from enginekit import A, B, Ground, edit_lower, standing
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
async def ground(sandbox: Sandbox, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Ground]:
    """Start an engine, with its namespace in both lowers; pods of lower-b get tokens of the upper cluster."""
    identity = edit_lower(B, serviceAccounts={"identity": "upper"})
    async with standing(sandbox, tmp_path_factory.mktemp("lower-only"), identity) as made:
        for lower in (A, B):
            await made.make_namespace(lower, made.namespace)
        yield made


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


def says(reason: str, words: str = "") -> Any:
    """Return the predicate that a pod is not mirrored for a reason."""

    def holds(pod: Manifest) -> bool:
        """Report whether the pod has this condition."""
        said = condition_of(pod, MIRRORED)
        return said.get("reason") == reason and words in said["message"]

    return holds


async def held(ground: Ground, plural: str, name: str) -> Manifest:
    """Wait until a name is held in lower-a, and return the object that holds it."""
    return await ground.sites[A].until(
        ground.path(plural, name), lambda one: one["metadata"].get("annotations", {}).get(UPPER_UID) == NO_ORIGINAL
    )


async def absent(ground: Ground, path: str, lower: str = A) -> None:
    """Assert that no object exists at a path of a lower cluster once the engine is idle."""
    await ground.calm()
    assert await ground.sites[lower].read(path) == {}


@pytest.mark.parametrize(("way", "spec"), WAYS.values(), ids=WAYS)
async def test_a_pod_with_an_optional_reference_to_a_lower_only_object_is_not_mirrored(
    ground: Ground, request: pytest.FixtureRequest, way: str, spec: Any
) -> None:
    """The upper pod reports the conflict, and the lower object is not touched.

    Once it is deleted, the engine holds the name by an empty object, and the pod runs.
    """
    name, site = request.node.callspec.id, ground.sites[A]
    path = ground.path(way, name)
    before = await site.create(ground.path(way), {"metadata": {"name": name}, **KINDS[way]})
    pod = await ground.bind(name, spec(name))
    await ground.upper.until(
        ground.pod_path(name), says("NameConflict", f"{ground.namespace}/{name} exists in lower cluster {A}")
    )
    assert "the upper cluster has no such object" in await ground.told(pod, "NameConflict")
    await absent(ground, ground.pod_path(name))
    assert (await site.read(path))["metadata"]["resourceVersion"] == before["metadata"]["resourceVersion"]
    await site.delete(path)
    made = await held(ground, way, name)
    assert not made.get("data")
    assert made["metadata"]["labels"] == {OWNER: ground.owner.mark}
    await ground.upper.until(ground.pod_path(name), is_ready)
    await ground.end_pods(name)
    await site.gone(path)


async def test_a_pod_reaches_no_token_secret_of_a_lower_account(ground: Ground) -> None:
    """This holds also if the upper cluster has a token Secret of that name, because such Secrets are never copied."""
    site, secrets = ground.sites[A], ground.path("secrets")
    await site.create(ground.path("serviceaccounts"), {"metadata": {"name": "privileged"}})
    token = {
        "metadata": {"name": "its-token", "annotations": {"kubernetes.io/service-account.name": "privileged"}},
        "type": "kubernetes.io/service-account-token",
    }
    await site.create(secrets, token)
    await site.until(ground.path("secrets", "its-token"), lambda one: "token" in (one.get("data") or {}))
    spec = volume({"secret": {"secretName": "its-token", "optional": True}})
    await ground.bind("thief", spec)
    await ground.upper.until(ground.pod_path("thief"), says("NameConflict"))
    await ground.upper.create(ground.path("serviceaccounts"), {"metadata": {"name": "privileged"}})
    await ground.upper.create(secrets, token)
    await ground.bind("second", spec)
    await ground.upper.until(ground.pod_path("second"), says("NameConflict"))
    for name in ("thief", "second"):
        await absent(ground, ground.pod_path(name))
        await ground.end_pods(name)


async def test_a_missing_optional_name_is_held_until_the_upper_object_is_created(ground: Ground) -> None:
    """Pods run during that time, as on any node.

    A pull secret replaces the empty Secret with its own type, and is replaced by it again after its deletion.
    """
    site, path = ground.sites[A], ground.path("secrets", "registry")
    await ground.run_pod("pulling", {"imagePullSecrets": [{"name": "registry"}]})
    assert (await held(ground, "secrets", "registry"))["type"] == "Opaque"
    config = b64encode(b'{"auths":{}}').decode()
    body = {"type": "kubernetes.io/dockerconfigjson", "data": {".dockerconfigjson": config}}
    await ground.upper.create(ground.path("secrets"), {"metadata": {"name": "registry"}, **body})
    copy = await site.until(path, lambda one: one.get("data") == body["data"])
    assert copy["type"] == body["type"]
    await ground.upper.delete(path)
    assert not (await held(ground, "secrets", "registry")).get("data")
    await ground.end_pods("pulling")
    await site.gone(path)


async def test_the_name_of_a_deleted_secret_stays_held_for_running_pods(ground: Ground) -> None:
    """Otherwise the next Secret of that name in the lower cluster would be mounted into their volumes."""
    await ground.upper.create(ground.path("secrets"), {"metadata": {"name": "shifted"}, **THEIRS})
    await ground.run_pod("shifting", volume({"secret": {"secretName": "shifted"}}))
    await ground.upper.delete(ground.path("secrets", "shifted"))
    await held(ground, "secrets", "shifted")
    await ground.end_pods("shifting")
    await ground.sites[A].gone(ground.path("secrets", "shifted"))


async def test_a_debug_container_is_added_only_once_its_optional_names_are_held(ground: Ground) -> None:
    """Until then, the condition of the upper pod reports the conflict."""
    site = ground.sites[A]
    await site.create(ground.path("secrets"), {"metadata": {"name": "debugging"}, **THEIRS})
    await ground.run_pod("debugged")
    debug = {"name": "debug", "image": "app:1", "envFrom": [{"secretRef": optional("debugging")}]}
    patch = {"spec": {"ephemeralContainers": [debug]}}
    await ground.upper.patch(f"{ground.pod_path('debugged')}/ephemeralcontainers", patch, "strategic")
    pod = await ground.upper.until(
        ground.pod_path("debugged"), lambda one: "NameConflict" in str(one["status"].get("conditions"))
    )
    await ground.engine.loop.wait_idle()
    assert "ephemeralContainers" not in (await site.read(ground.pod_path("debugged")))["spec"]
    await site.delete(ground.path("secrets", "debugging"))
    await held(ground, "secrets", "debugging")
    await site.until(ground.pod_path("debugged"), lambda one: one["spec"].get("ephemeralContainers"))
    assert pod["metadata"]["name"] == "debugged"
    await ground.end_pods("debugged")


async def test_a_volume_with_the_name_of_an_admission_volume_gets_the_same_checks(ground: Ground) -> None:
    """The Secret in it has to exist in the upper cluster, as in any other volume."""
    await ground.sites[A].create(ground.path("secrets"), {"metadata": {"name": "hidden"}, **THEIRS})
    source = {"projected": {"sources": [{"secret": {"name": "hidden"}}]}}
    await ground.bind("hiding", volume(source, "kube-api-access-abcde"))
    await ground.upper.until(ground.pod_path("hiding"), says("SecretNotFound"))
    await absent(ground, ground.pod_path("hiding"))
    await ground.end_pods("hiding")


ORIGIN = {"kind": "PersistentVolumeClaim", "name": "origin"}
SOURCES = {
    "clone": {"dataSource": ORIGIN},
    "snapshot": {"dataSource": {"kind": "VolumeSnapshot", "apiGroup": "snapshot.storage.k8s.io", "name": "origin"}},
}


@pytest.mark.parametrize(("name", "source"), SOURCES.items(), ids=SOURCES)
async def test_a_claim_with_a_lower_only_data_source_is_not_mirrored(
    ground: Ground, name: str, source: Manifest
) -> None:
    """A claim that exists in the lower cluster alone is no valid source; pod and claim report the reason."""
    site, claims = ground.sites[A], ground.path("persistentvolumeclaims")
    asked: Manifest = {
        "accessModes": ["ReadWriteOnce"],
        "storageClassName": f"none-{ground.mark}",
        "resources": {"requests": {"storage": "1Gi"}},
    }
    if await site.read(f"{claims}/origin") == {}:
        await site.create(claims, {"metadata": {"name": "origin"}, "spec": asked})
    await ground.upper.create(claims, {"metadata": {"name": name}, "spec": {**asked, **source}})
    await ground.bind(name, volume({"persistentVolumeClaim": {"claimName": name}}))
    await ground.upper.until(ground.pod_path(name), says("ClaimNotMirrored", "has the data source"))
    await ground.upper.until(f"{claims}/{name}", lambda one: condition_of(one, MIRRORED))
    await absent(ground, f"{claims}/{name}")
    await ground.end_pods(name)
    await ground.upper.delete(f"{claims}/{name}")
    await ground.upper.gone(f"{claims}/{name}")


async def test_a_lower_claim_is_not_used_if_the_controller_pv_is_disabled(ground: Ground) -> None:
    """A lower claim of that name belongs to another owner, even if the topology does not mirror storage."""
    without = ("Service", "ServiceAccount")
    await ground.reload(
        edit_lower(A, controllers=without), edit_lower(B, serviceAccounts={"identity": "upper"}, controllers=without)
    )
    asked = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    claims = ground.path("persistentvolumeclaims")
    for site in (ground.upper, ground.sites[A]):
        await site.create(claims, {"metadata": {"name": "theirs"}, "spec": {**asked, "storageClassName": ground.mark}})
    await ground.bind("mounting", volume({"persistentVolumeClaim": {"claimName": "theirs"}}))
    await ground.upper.until(ground.pod_path("mounting"), says("ClaimNotMirrored", "controller PV is not enabled"))
    await absent(ground, ground.pod_path("mounting"))
    await ground.end_pods("mounting")
    await ground.upper.delete(f"{claims}/theirs")
    await ground.upper.gone(f"{claims}/theirs")
    await ground.reload(edit_lower(B, serviceAccounts={"identity": "upper"}))


async def test_pull_secrets_of_an_account_are_held_in_the_lower_cluster_first(ground: Ground) -> None:
    """Lower admission would add them to a pod that names none and is older than its account's reference."""
    site, accounts = ground.sites[A], ground.path("serviceaccounts")
    await site.create(ground.path("secrets"), {"metadata": {"name": "theirs"}, **THEIRS})
    await ground.upper.create(accounts, {"metadata": {"name": "puller"}})
    spec = {"serviceAccountName": "puller", **container(envFrom=[{"configMapRef": {"name": "gate"}}])}
    await ground.bind("pulled", spec)
    await ground.upper.until(ground.pod_path("pulled"), says("ConfigMapNotFound"))
    await ground.upper.patch(f"{accounts}/puller", {"imagePullSecrets": [{"name": "theirs"}]})
    await ground.upper.create(ground.path("configmaps"), {"metadata": {"name": "gate"}, **PLAIN})
    await ground.upper.until(ground.pod_path("pulled"), says("NameConflict", "theirs"))
    await absent(ground, ground.pod_path("pulled"))
    await site.delete(ground.path("secrets", "theirs"))
    await ground.upper.until(ground.pod_path("pulled"), is_ready)
    below = await site.read(ground.pod_path("pulled"))
    assert below["spec"]["imagePullSecrets"] == [{"name": "theirs"}]
    assert (await held(ground, "secrets", "theirs"))["type"] == "Opaque"
    await ground.end_pods("pulled")


async def test_upper_tokens_are_issued_only_when_nothing_else_is_missing(ground: Ground) -> None:
    """The lower cluster has no credential of a pod that waits for a ConfigMap."""
    site, secrets = ground.sites[B], ground.path("secrets")
    pod = await ground.bind("late", container(envFrom=[{"configMapRef": {"name": "late"}}]), B)
    await ground.upper.until(ground.pod_path("late"), says("ConfigMapNotFound"))
    name = f"upper-token-{pod['metadata']['uid']}"
    await absent(ground, f"{secrets}/{name}", B)
    await ground.upper.create(ground.path("configmaps"), {"metadata": {"name": "late"}, **PLAIN})
    await ground.upper.until(ground.pod_path("late"), is_ready)
    assert "token" in (await site.read(f"{secrets}/{name}"))["data"]
    await ground.end_pods("late")


@asynccontextmanager
async def called_as(ground: Ground, account: Manifest, directory: Path) -> AsyncIterator[None]:
    """Let the engine use lower-a as an account there that may do everything."""
    site, where = ground.sites[A], account["metadata"]
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
    ground = Ground(sandbox, directory)
    try:
        await ground.open()
        own = f"{ground.namespace}-engine"
        await ground.make_namespace(A, own)
        await ground.make_namespace("upper", own)
        account = await ground.sites[A].create(
            ground.path("serviceaccounts", namespace=own), {"metadata": {"name": "engine"}}
        )
        async with called_as(ground, account, directory):
            await ground.start()
            await ground.upper.create(ground.path("pods", namespace=own), ground.pod("guest", volume(
                {"secret": {"secretName": "engine-token", "optional": True}})))  # fmt: skip
            pod = await ground.upper.until(ground.path("pods", "guest", namespace=own), says("NamespaceExcluded"))
            words = f"namespace {own} of {A} has the engine's own ServiceAccount: nothing in {own} is mirrored"
            assert condition_of(pod, MIRRORED)["message"] == words
            await ground.run_pod("neighbour")
            await ground.engine.loop.wait_idle()
            for plural in ("pods", "secrets"):
                assert (await ground.sites[A].read(ground.path(plural, namespace=own)))["items"] == []
            await ground.upper.delete(ground.path("pods", "guest", namespace=own))
            await ground.upper.gone(ground.path("pods", "guest", namespace=own))
            await ground.clear()
    finally:
        for cluster in ("upper", A):
            await ground.sites[cluster].delete(f"/api/v1/namespaces/{own}")
        await ground.close()
    assert ground.heard.defects == []
