"""Tests of RBAC objects with forged marks: no tenant gets a lower Role or binding by objects that he writes himself.

A lower tenant may create pods, accounts and, as far as his own rights allow, Roles and bindings in his namespace. He
knows names and UIDs of the upper cluster.
"""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from enginekit import A, B, EngineHarness, running_engine, with_fields
from forgerkit import HOLD, create_forged_object, create_forged_pod, forged_metadata, remove_finalizers
from sitekit import Manifest

from tensile.sandbox.sandbox import Sandbox

pytestmark = [pytest.mark.real, pytest.mark.asyncio(loop_scope="module")]

RBAC = "apis/rbac.authorization.k8s.io/v1"
READS = [{"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]}]
GROUP = "rbac.authorization.k8s.io"
PAYER = {"serviceAccountName": "payer"}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def harness(sandbox: Sandbox, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[EngineHarness]:
    """Start an engine that mirrors RBAC, with an upper account that has rights, and a lower namespace of that name."""
    controllers = with_fields(controllers=["ServiceAccount", "RBAC"], serviceAccounts={"identity": "lower"})
    async with running_engine(sandbox, tmp_path_factory.mktemp("rights"), controllers) as harness:
        await harness.make_namespace(A, harness.namespace)
        role = {"apiGroup": GROUP, "kind": "Role", "name": "pays"}
        wanted: list[tuple[str, str, Manifest]] = [
            ("api/v1", "serviceaccounts", {"metadata": {"name": "payer"}}),
            (RBAC, "roles", {"metadata": {"name": "pays"}, "rules": READS}),
            (RBAC, "rolebindings", {"metadata": {"name": "pays"}, "roleRef": role, "subjects": [subject(harness)]}),
        ]
        for api, plural, body in wanted:
            await harness.upper.create(harness.path(plural, api=api), body)
        yield harness


def subject(harness: EngineHarness, name: str = "payer") -> Manifest:
    """Return an account of the namespace as a binding's subject; names are the same in all clusters."""
    return {"kind": "ServiceAccount", "namespace": harness.namespace, "name": name}


async def rights_in(harness: EngineHarness, lower: str) -> dict[str, Manifest]:
    """Return the Roles and bindings of the namespace in a lower cluster, by collection and name."""
    found = {}
    for plural in ("roles", "rolebindings"):
        listed = await harness.sites[lower].read(harness.path(plural, api=RBAC))
        found |= {f"{plural}/{one['metadata']['name']}": one for one in listed["items"]}
    return found


async def upper_uid(harness: EngineHarness, plural: str, name: str, api: str = "api/v1") -> str:
    """Return the UID of an object of the upper cluster."""
    return str((await harness.upper.read(harness.path(plural, name, api)))["metadata"]["uid"])


async def test_forged_pods_and_a_forged_account_cause_no_roles_or_bindings(harness: EngineHarness) -> None:
    """This holds for an unknown UID and for the UID of a pod that runs with that account in the other lower cluster."""
    site = harness.sites[A]
    real = await harness.run_pod("real", PAYER, lower=B)
    await harness.sites[B].until(harness.path("rolebindings", "pays", RBAC), bool)
    account = await upper_uid(harness, "serviceaccounts", "payer")
    await site.create(harness.path("serviceaccounts"), {"metadata": {"name": "payer"}})
    await create_forged_pod(harness, site, harness.namespace, "bait", "nobody", spec=PAYER, finalizers=[HOLD])
    await create_forged_pod(
        harness, site, harness.namespace, "real", real["metadata"]["uid"], spec=PAYER, finalizers=[HOLD]
    )
    await site.patch(harness.path("serviceaccounts", "payer"), {"metadata": forged_metadata(harness, account)})
    await harness.run_pod("witness")
    await harness.wait_idle()
    assert await rights_in(harness, A) == {}
    assert set(await rights_in(harness, B)) == {"roles/pays", "rolebindings/pays"}
    for name in ("bait", "real"):
        await remove_finalizers(site, harness.pod_path(name))
        await site.delete(harness.pod_path(name), 0)
    await site.delete(harness.path("serviceaccounts", "payer"))
    await harness.end_pods("real", "witness")


async def test_forged_roles_and_bindings_are_replaced_with_those_of_the_upper_cluster(harness: EngineHarness) -> None:
    """Once a pod uses the account, rules and subjects are those of the upper objects, and later edits are reverted."""
    site = harness.sites[A]
    role, binding = (harness.path(plural, "pays", RBAC) for plural in ("roles", "rolebindings"))
    more = [{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["delete"]}]
    uid = await upper_uid(harness, "roles", "pays", RBAC)
    await create_forged_object(harness, site, harness.path("roles", api=RBAC), uid, {"rules": more}, name="pays")
    body = {"roleRef": {"apiGroup": GROUP, "kind": "Role", "name": "pays"}, "subjects": [subject(harness, "forger")]}
    uid = await upper_uid(harness, "rolebindings", "pays", RBAC)
    await create_forged_object(harness, site, harness.path("rolebindings", api=RBAC), uid, body, name="pays")
    await harness.run_pod("asks", PAYER)
    await site.until(role, lambda one: one["rules"] == READS)
    await site.until(binding, lambda one: one["subjects"] == [subject(harness)])
    await site.patch(binding, {"subjects": [subject(harness), subject(harness, "forger")]})
    await site.until(binding, lambda one: one["subjects"] == [subject(harness)])
    await harness.upper.delete(harness.path("rolebindings", "pays", RBAC))
    await site.gone(binding, role)
    await harness.end_pods("asks")
