"""Tests of RBAC objects with forged marks: no tenant gets a lower Role or binding by objects that he writes himself.

A lower tenant may create pods, accounts and, as far as his own rights allow, Roles and bindings in his namespace. He
knows names and UIDs of the upper cluster.
"""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from enginekit import A, B, Ground, standing, with_fields
from forgerkit import HOLD, forge, forged, marked, release
from sitekit import Manifest

from tensile.sandbox.sandbox import Sandbox

pytestmark = [pytest.mark.real, pytest.mark.asyncio(loop_scope="module")]

RBAC = "apis/rbac.authorization.k8s.io/v1"
READS = [{"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]}]
GROUP = "rbac.authorization.k8s.io"
PAYER = {"serviceAccountName": "payer"}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def ground(sandbox: Sandbox, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Ground]:
    """Start an engine that mirrors RBAC, with an upper account that has rights, and a lower namespace of that name."""
    controllers = with_fields(controllers=["ServiceAccount", "RBAC"], serviceAccounts={"identity": "lower"})
    async with standing(sandbox, tmp_path_factory.mktemp("rights"), controllers) as made:
        await made.make_namespace(A, made.namespace)
        role = {"apiGroup": GROUP, "kind": "Role", "name": "pays"}
        wanted: list[tuple[str, str, Manifest]] = [
            ("api/v1", "serviceaccounts", {"metadata": {"name": "payer"}}),
            (RBAC, "roles", {"metadata": {"name": "pays"}, "rules": READS}),
            (RBAC, "rolebindings", {"metadata": {"name": "pays"}, "roleRef": role, "subjects": [subject(made)]}),
        ]
        for api, plural, body in wanted:
            await made.upper.create(made.path(plural, api=api), body)
        yield made


def subject(ground: Ground, name: str = "payer") -> Manifest:
    """Return an account of the namespace as a binding's subject; names are the same in all clusters."""
    return {"kind": "ServiceAccount", "namespace": ground.namespace, "name": name}


async def rights_in(ground: Ground, lower: str) -> dict[str, Manifest]:
    """Return the Roles and bindings of the namespace in a lower cluster, by collection and name."""
    found = {}
    for plural in ("roles", "rolebindings"):
        listed = await ground.sites[lower].read(ground.path(plural, api=RBAC))
        found |= {f"{plural}/{one['metadata']['name']}": one for one in listed["items"]}
    return found


async def upper_uid(ground: Ground, plural: str, name: str, api: str = "api/v1") -> str:
    """Return the UID of an object of the upper cluster."""
    return str((await ground.upper.read(ground.path(plural, name, api)))["metadata"]["uid"])


async def test_forged_pods_and_a_forged_account_cause_no_roles_or_bindings(ground: Ground) -> None:
    """This holds for an unknown UID and for the UID of a pod that runs with that account in the other lower cluster."""
    site = ground.sites[A]
    real = await ground.run_pod("real", PAYER, lower=B)
    await ground.sites[B].until(ground.path("rolebindings", "pays", RBAC), bool)
    account = await upper_uid(ground, "serviceaccounts", "payer")
    await site.create(ground.path("serviceaccounts"), {"metadata": {"name": "payer"}})
    await forge(ground, site, ground.namespace, "bait", "nobody", spec=PAYER, finalizers=[HOLD])
    await forge(ground, site, ground.namespace, "real", real["metadata"]["uid"], spec=PAYER, finalizers=[HOLD])
    await site.patch(ground.path("serviceaccounts", "payer"), {"metadata": marked(ground, account)})
    await ground.run_pod("witness")
    await ground.calm()
    assert await rights_in(ground, A) == {}
    assert set(await rights_in(ground, B)) == {"roles/pays", "rolebindings/pays"}
    for name in ("bait", "real"):
        await release(site, ground.pod_path(name))
        await site.delete(ground.pod_path(name), 0)
    await site.delete(ground.path("serviceaccounts", "payer"))
    await ground.end_pods("real", "witness")


async def test_forged_roles_and_bindings_are_replaced_with_those_of_the_upper_cluster(ground: Ground) -> None:
    """Once a pod uses the account, rules and subjects are those of the upper objects, and later edits are reverted."""
    site = ground.sites[A]
    role, binding = (ground.path(plural, "pays", RBAC) for plural in ("roles", "rolebindings"))
    more = [{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["delete"]}]
    uid = await upper_uid(ground, "roles", "pays", RBAC)
    await forged(ground, site, ground.path("roles", api=RBAC), uid, {"rules": more}, name="pays")
    body = {"roleRef": {"apiGroup": GROUP, "kind": "Role", "name": "pays"}, "subjects": [subject(ground, "forger")]}
    uid = await upper_uid(ground, "rolebindings", "pays", RBAC)
    await forged(ground, site, ground.path("rolebindings", api=RBAC), uid, body, name="pays")
    await ground.run_pod("asks", PAYER)
    await site.until(role, lambda one: one["rules"] == READS)
    await site.until(binding, lambda one: one["subjects"] == [subject(ground)])
    await site.patch(binding, {"subjects": [subject(ground), subject(ground, "forger")]})
    await site.until(binding, lambda one: one["subjects"] == [subject(ground)])
    await ground.upper.delete(ground.path("rolebindings", "pays", RBAC))
    await site.gone(binding, role)
    await ground.end_pods("asks")
