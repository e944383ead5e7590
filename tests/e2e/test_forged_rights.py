"""Rights with forged marks: nobody gets a Role or a binding below by what he may write there himself.

A lower tenant may make pods, accounts and, as far as his own rights go, Roles and bindings in his namespace. He knows
names and UIDs of the upper cluster.
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
    """An engine that carries rights down, an account above that has some, and a namespace below of that name."""
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


async def test_a_forged_pod_and_a_forged_account_draw_no_rights(ground: Ground) -> None:
    """Neither alone nor together, whether the UID is of nobody or of a pod that runs elsewhere as that account."""
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


async def test_a_forged_binding_gives_nobody_what_the_upper_one_does_not(ground: Ground) -> None:
    """Once a pod asks for the account, subjects and rules are those of the upper cluster, and stay so."""
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
