"""Tests of the identity of pods at an apiserver: an account of the lower cluster, or a token of the upper cluster."""

import asyncio
import json
import ssl
import sys
from base64 import b64decode
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest
import pytest_asyncio
from enginekit import (
    UPPER,
    A,
    B,
    CommandResult,
    Edit,
    EngineHarness,
    advertised,
    edit_lower,
    run_command,
    running_engine,
    with_fields,
)
from plankit import without_capacity_changes
from sitekit import Manifest, is_ready

from tensile.names import OWNER, TOKEN_TERM
from tensile.sandbox.sandbox import Sandbox

pytestmark = [pytest.mark.real, pytest.mark.asyncio(loop_scope="module")]

RBAC = "apis/rbac.authorization.k8s.io/v1"
LONG_AGO = "2026-01-01T00:00:00Z/PT3600S"
SOON = 60.0
READS = [{"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list"]}]
EVERYTHING_BUT_ESCALATION = [
    {"apiGroups": ["*"], "resources": ["*"], "verbs": ["get", "list", "watch", "create", "update", "patch", "delete"]},
    {"nonResourceURLs": ["*"], "verbs": ["get"]},
]


def edits(sandbox: Sandbox) -> tuple[Edit, ...]:
    """Return edits that set identity `lower` in lower-a and `upper` in lower-b, and mirror rights."""
    server = advertised(sandbox)
    return (
        with_fields(controllers=["ServiceAccount", "RBAC"]),
        edit_lower(B, serviceAccounts={"identity": "upper"}),
        lambda file: file["upper"].update(advertiseURL=server),
    )


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def harness(sandbox: Sandbox, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[EngineHarness]:
    """Start an engine with one identity per lower, and an account that may list pods."""
    async with running_engine(sandbox, tmp_path_factory.mktemp("identity"), *edits(sandbox)) as harness:
        meta = {"metadata": {"name": "robot"}}
        await harness.upper.create(harness.path("serviceaccounts"), meta)
        await harness.upper.create(harness.path("roles", api=RBAC), {"metadata": {"name": "reads"}, "rules": READS})
        await bind_role(harness, "reads", "Role", "reads")
        yield harness


async def bind_role(harness: EngineHarness, name: str, kind: str, role: str) -> Manifest:
    """Bind an upper role to the account `robot`, and to a group that contains other members in a lower cluster."""
    subjects = [
        {"kind": "ServiceAccount", "namespace": harness.namespace, "name": "robot"},
        {"kind": "Group", "apiGroup": "rbac.authorization.k8s.io", "name": "system:authenticated"},
    ]
    role_ref = {"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": role}
    body = {"metadata": {"name": name}, "roleRef": role_ref, "subjects": subjects}
    return await harness.upper.create(harness.path("rolebindings", api=RBAC), body)


async def runs(harness: EngineHarness, name: str, lower: str, **spec: Any) -> tuple[Manifest, Manifest]:
    """Bind a pod of the account `robot`, wait until it is ready, and return it with its lower pod."""
    pod = await harness.run_pod(name, {"serviceAccountName": "robot", **spec}, lower)
    return pod, await harness.sites[lower].read(harness.pod_path(name))


async def listed(harness: EngineHarness, cluster: str, token: str, authority: str = "", server: str = "") -> int:
    """List pods of the namespace with a token, and return the status code."""
    tls = ssl.create_default_context(cadata=authority or authority_of(harness, cluster))
    connector = aiohttp.TCPConnector(ssl=tls)
    url = (server or harness.sandbox.clusters[cluster].server) + harness.path("pods")
    headers = {"Authorization": f"Bearer {token}"}
    async with aiohttp.ClientSession(connector=connector, headers=headers) as session, session.get(url) as answer:
        return answer.status


def authority_of(harness: EngineHarness, cluster: str) -> str:
    """Return the CA certificate of a cluster."""
    return (harness.sandbox.clusters[cluster].audit_log.parent / "pki" / "ca.crt").read_text()


def claims(token: str) -> Manifest:
    """Return the claims of a token."""
    body = token.split(".")[1]
    found: Manifest = json.loads(b64decode(body + "=" * (-len(body) % 4), altchars="-_"))
    return found


def mounted(pod: Manifest, path: str = "/var/run/secrets/kubernetes.io/serviceaccount") -> list[Manifest]:
    """Return the sources of the volume that the first container of a pod mounts at a path."""
    (name,) = (one["name"] for one in pod["spec"]["containers"][0]["volumeMounts"] if one["mountPath"] == path)
    (volume,) = (one for one in pod["spec"]["volumes"] if one["name"] == name)
    sources: list[Manifest] = volume["projected"]["sources"]
    return sources


def contents(secret: Manifest) -> dict[str, str]:
    """Decode a Secret's data."""
    return {name: b64decode(value).decode() for name, value in secret["data"].items()}


def secret_of(pod: Manifest) -> str:
    """Return the name of the Secret with an upper pod's tokens."""
    return f"upper-token-{pod['metadata']['uid']}"


async def test_with_identity_lower_the_account_is_mirrored_before_the_pod(harness: EngineHarness) -> None:
    """The pod keeps its token volume, and a token of the lower account lists pods in the lower cluster alone."""
    pod, lower_object = await runs(harness, "home", A)
    site = harness.sites[A]
    account = await site.read(harness.path("serviceaccounts", "robot"))
    assert account["metadata"]["labels"][OWNER] == harness.owner.mark
    assert lower_object["spec"]["serviceAccountName"] == "robot"
    assert lower_object["spec"]["volumes"] == pod["spec"]["volumes"]
    assert "serviceAccountToken" in mounted(lower_object)[0]
    binding = await site.until(harness.path("rolebindings", "reads", api=RBAC), bool)
    assert binding["subjects"] == [{"kind": "ServiceAccount", "namespace": harness.namespace, "name": "robot"}]
    token = await token_below(harness, "robot")
    assert await listed(harness, A, token) == 200
    assert await listed(harness, UPPER, token) == 401


async def token_below(harness: EngineHarness, account: str) -> str:
    """Create a token of an account in lower-a, as the kubelet there does."""
    answer = await harness.sites[A].create(f"{harness.path('serviceaccounts', account)}/token", {"spec": {}})
    return str(answer["status"]["token"])


async def test_mirrored_rights_follow_the_upper_ones_and_are_deleted_with_the_last_pod(harness: EngineHarness) -> None:
    """Upper edits are carried down, and edits in the lower cluster are reverted."""
    await harness.upper.until(harness.pod_path("home"), is_ready)
    site, role = harness.sites[A], harness.path("roles", "reads", api=RBAC)
    only = [{**READS[0], "verbs": ["list"]}]
    await harness.upper.patch(role, {"rules": only})
    await site.until(role, lambda found: found["rules"] == only)
    await site.patch(role, {"rules": []})
    await site.until(role, lambda found: found["rules"] == only)
    await site.patch(harness.path("serviceaccounts", "robot"), {"automountServiceAccountToken": False})
    await site.until(harness.path("serviceaccounts", "robot"), lambda found: found["automountServiceAccountToken"])
    await harness.end_pods("home")
    await site.gone(harness.path("serviceaccounts", "robot"), role, harness.path("rolebindings", "reads", api=RBAC))


VAULT = {
    "containers": [{"name": "main", "image": "app:1", "volumeMounts": [{"name": "vault", "mountPath": "/vault"}]}],
    "volumes": [
        {
            "name": "vault",
            "projected": {
                "sources": [{"serviceAccountToken": {"path": "t", "audience": "vault", "expirationSeconds": 1200}}]
            },
        }
    ],
}


async def test_with_identity_upper_every_token_is_issued_by_the_upper_cluster(harness: EngineHarness) -> None:
    """Each token has its own audience and lifetime, is bound to the upper pod, and is mounted at the pod's paths."""
    pod, lower_object = await runs(harness, "away", B, **VAULT)
    secret = await harness.sites[B].read(harness.path("secrets", secret_of(pod)))
    data, token_files, vault_files = contents(secret), mounted(lower_object), mounted(lower_object, "/vault")
    assert {one["secret"]["name"] for one in (*token_files, *vault_files)} == {secret["metadata"]["name"]}
    files = {item["path"]: item["key"] for one in token_files for item in one["secret"]["items"]}
    assert files == {"token": "token", "ca.crt": "ca.crt", "namespace": "namespace"}
    assert lower_object["spec"]["automountServiceAccountToken"] is False
    assert data["namespace"] == harness.namespace
    (item,) = vault_files[0]["secret"]["items"]
    for token, seconds in ((data["token"], 3600), (data[item["key"]], 1200)):
        token_claims = claims(token)
        assert token_claims["exp"] - token_claims["iat"] == seconds, "3607 would give a year"
        assert token_claims["kubernetes.io"]["pod"]["uid"] == pod["metadata"]["uid"]
        assert token_claims["sub"] == f"system:serviceaccount:{harness.namespace}:robot"
    assert (item["path"], claims(data[item["key"]])["aud"]) == ("t", ["vault"])
    await harness.end_pods("away")


async def test_with_identity_upper_a_pod_lists_upper_pods_over_two_renewals(harness: EngineHarness) -> None:
    """It needs only the mounted address, authority and token; each new token works, and none is valid after the pod."""
    pod, lower_object = await runs(harness, "caller", B)
    site, path = harness.sites[B], harness.path("secrets", secret_of(pod))
    environment = {one["name"]: one["value"] for one in lower_object["spec"]["containers"][0]["env"]}
    server = f"https://{environment['KUBERNETES_SERVICE_HOST']}:{environment['KUBERNETES_SERVICE_PORT']}"
    assert server == advertised(harness.sandbox)
    data = contents(await site.read(path))
    tokens = [data["token"]]
    assert await listed(harness, UPPER, data["token"], data["ca.crt"], server) == 200
    for _ in range(2):
        await site.patch(path, {"metadata": {"annotations": {TOKEN_TERM: LONG_AGO}}})
        data = contents(await site.until(path, lambda found: contents(found)["token"] not in tokens))
        tokens.append(data["token"])
        assert await listed(harness, UPPER, data["token"], data["ca.crt"], server) == 200
    await site.delete(path)
    data = contents(await site.until(path, lambda found: bool(found) and contents(found)["token"] not in tokens))
    await harness.end_pods("caller")
    await site.gone(path, limit=SOON)
    await refused_soon(harness, data["token"], data["ca.crt"], server)


async def refused_soon(harness: EngineHarness, token: str, authority: str, server: str) -> None:
    """Wait until the upper cluster rejects a token, which no watch reports."""
    async with asyncio.timeout(SOON):
        while await listed(harness, UPPER, token, authority, server) != 401:  # noqa: ASYNC110 - no watch reports it
            await asyncio.sleep(0.2)


async def test_a_plan_redacts_tokens_and_shows_no_renewal(harness: EngineHarness) -> None:
    """The plan of a new pod lists the keys of its Secret, and the plan of a pod with an expired token has no change."""
    await harness.stop()
    await harness.bind("planned", {"serviceAccountName": "robot"}, B)
    done = await planned(harness)
    assert done.code == 2, done
    (secret,) = (one for one in json.loads(done.out)["changes"] if one["kind"] == "Secret")
    (operation,) = secret["operations"]
    assert operation["value"]["data"] == dict.fromkeys(("ca.crt", "namespace", "token"), "(redacted)")
    await harness.start(*edits(harness.sandbox))
    pod = await harness.upper.until(harness.pod_path("planned"), is_ready)
    await harness.wait_idle()
    await harness.stop()
    path = harness.path("secrets", secret_of(pod))
    await harness.sites[B].patch(path, {"metadata": {"annotations": {TOKEN_TERM: LONG_AGO}}})
    done = await planned(harness)
    changes = without_capacity_changes(json.loads(done.out)["changes"])
    assert [(one["action"], one["kind"], one["name"]) for one in changes] == []
    await harness.start(*edits(harness.sandbox))
    await harness.sites[B].until(path, lambda found: found["metadata"]["annotations"][TOKEN_TERM] != LONG_AGO)
    await harness.end_pods("planned")


async def planned(harness: EngineHarness) -> CommandResult:
    """Run `tensile plan` on the engine's topology."""
    path = harness.save(*edits(harness.sandbox))
    return await run_command([sys.executable, "-m", "tensile", "plan", "-f", str(path), "-o", "json"])


async def test_with_identity_none_a_pod_runs_as_default_without_a_token(harness: EngineHarness) -> None:
    """The volume of admission is removed, and the token source is removed from the pod's own volume."""
    none = edit_lower(A, serviceAccounts={"identity": "none"})
    await harness.reload(*edits(harness.sandbox), none)
    sources = [{"serviceAccountToken": {"path": "t"}}, {"configMap": {"name": "kube-root-ca.crt"}}]
    _, lower_object = await runs(harness, "nobody", A, volumes=[{"name": "own", "projected": {"sources": sources}}])
    assert lower_object["spec"]["serviceAccountName"] == "default"
    assert [one["name"] for one in lower_object["spec"]["volumes"]] == ["own"]
    assert lower_object["spec"]["volumes"][0]["projected"]["sources"] == sources[1:]
    assert "volumeMounts" not in lower_object["spec"]["containers"][0]
    assert await harness.sites[A].read(harness.path("serviceaccounts", "robot")) == {}
    await harness.end_pods("nobody")
    await harness.reload(*edits(harness.sandbox))


async def test_an_account_of_another_owner_is_not_used_and_not_touched(harness: EngineHarness) -> None:
    """The upper pod reports the conflict, and runs once the account is deleted."""
    site = harness.sites[A]
    await harness.run_pod("first", {}, A)
    foreign = await site.create(harness.path("serviceaccounts"), {"metadata": {"name": "robot"}})
    made = await harness.bind("second", {"serviceAccountName": "robot"}, A)
    assert "ServiceAccount" in await harness.wait_for_event(made, "NameConflict")
    found = await site.read(harness.path("serviceaccounts", "robot"))
    assert found["metadata"]["resourceVersion"] == foreign["metadata"]["resourceVersion"]
    assert await site.read(harness.pod_path("second")) == {}
    await site.delete(harness.path("serviceaccounts", "robot"))
    await harness.upper.until(harness.pod_path("second"), is_ready)
    await harness.end_pods("first")
    await harness.end_pods("second")


async def test_rights_that_the_engine_may_not_grant_are_reported_and_not_retried_at_once(
    harness: EngineHarness,
) -> None:
    """An engine without the right to escalate runs the pod, reports the refusal on it, and grants the other rights."""
    user, site = f"{harness.user}-modest", harness.sites[A]
    name = harness.namespace
    collections = {"clusterroles": {"rules": EVERYTHING_BUT_ESCALATION}}
    role_ref = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name}
    subject = {"kind": "User", "apiGroup": "rbac.authorization.k8s.io", "name": user}
    collections["clusterrolebindings"] = {"roleRef": role_ref, "subjects": [subject]}  # type: ignore[dict-item]
    for plural, body in collections.items():
        await site.create(f"/{RBAC}/{plural}", {"metadata": {"name": name}, **body})
    (harness.directory / "modest.kubeconfig").write_text(harness.kubeconfig(A, user, ()))
    try:
        await harness.reload(*edits(harness.sandbox), edit_lower(A, kubeconfig="modest.kubeconfig"))
        rules = [{"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}]
        await harness.upper.create(harness.path("roles", api=RBAC), {"metadata": {"name": "king"}, "rules": rules})
        await bind_role(harness, "king", "Role", "king")
        pod, _ = await runs(harness, "modest", A)
        message = await harness.wait_for_event(pod, "Forbidden")
        assert message.startswith(f"Role {harness.namespace}/king is not mirrored to lower cluster {A}: ")
        assert "not currently held" in message
        await site.until(harness.path("rolebindings", "reads", api=RBAC), bool)
        assert await site.read(harness.path("rolebindings", "king", api=RBAC)) == {}
        tries = [one for one in harness.loop_recorder.problems if one[0].rule == "rights"]
        assert len(tries) == 1
        await harness.end_pods("modest")
        for plural in ("rolebindings", "roles"):
            await harness.upper.delete(harness.path(plural, "king", api=RBAC))
    finally:
        await harness.reload(*edits(harness.sandbox))
        for plural in collections:
            await site.delete(f"/{RBAC}/{plural}/{name}")
