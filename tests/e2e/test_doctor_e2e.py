"""The list of rights, tried: an engine with these and no others does all its work, and doctor says what one lacks."""

import shlex
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import orjson
import pytest
import pytest_asyncio
from enginekit import LOWERS, UPPER, A, B, Done, Edit, Ground, edit_lower, ran, with_fields
from sitekit import Manifest, is_ready

from bench.kit import audit
from bench.kit.granting import effective, grant, roles_of
from tensile.sandbox.sandbox import Sandbox

pytestmark = [pytest.mark.real, pytest.mark.asyncio(loop_scope="module")]

LOOKS = {"get", "list"}
ASKS = {"selfsubjectreviews", "selfsubjectaccessreviews"}
"""What doctor creates: questions, which nobody stores."""
EDITS: tuple[Edit, ...] = (
    with_fields(controllers=["PV", "Service", "RBAC", "ServiceAccount"]),
    edit_lower(B, serviceAccounts={"identity": "upper"}),
)


class Limited(Ground):
    """A ground whose engine's user has no rights until it is given them."""

    async def allow(self) -> None:
        """Grant no rights."""

    async def limit(self, *edits: Edit, without: str = "") -> None:
        """Grant the user the roles of a topology, without the rules on a resource, and nothing else."""
        self.roles = roles_of(self.topology(*edits), self.home, self.configmap)
        for name, found in self.roles.items():
            for role in (one for one in found if "rules" in one):
                role["rules"] = [one for one in role["rules"] if one["resources"] != [without]]
            await grant(self.sites[name], found, self.user)

    async def doctor(self) -> tuple[int, list[dict[str, Any]]]:
        """Ask doctor about the topology as the engine has it, and return the exit code and all that fails."""
        told: Done = await ran([sys.executable, "-m", "tensile", "doctor", "-o", "json", "-f", str(self.save(*EDITS))])
        found = [
            {"cluster": cluster["name"], **one}
            for cluster in orjson.loads(told.out)["clusters"]
            for one in cluster["findings"]
        ]
        return told.code, [one for one in found if one["level"] == "fail"]

    def records(self, cluster: str, start: int = 0) -> list[audit.Record]:
        """Return what the user asked of a cluster."""
        found = audit.read(self.sites[cluster].audit_log, start)
        return [one for one in found if one["user"].get("username") == self.user]


@pytest_asyncio.fixture(loop_scope="module")
async def limited(sandbox: Sandbox, tmp_path: Path) -> AsyncIterator[Limited]:
    """A ground on which nothing runs yet."""
    ground = Limited(sandbox, tmp_path)
    try:
        await ground.open()
        yield ground
    finally:
        await ground.close()


async def test_an_engine_with_these_rights_alone_does_its_work(limited: Limited) -> None:
    """Pods with all that they refer to, Services, accounts and tokens, changes, exec, logs, and the end of it all.

    Nothing that it asks for is denied, in any cluster.
    """
    ground = limited
    await ground.limit(*EDITS)
    await ground.start(*EDITS)
    await _populate(ground)
    for lower in LOWERS:
        name = f"web-{lower[-1]}"
        await ground.run_pod(name, _pod(), lower, labels={"app": "web"})
        assert (await ground.kubectl("exec", name, "--", "true")).code == 0
        assert (await ground.kubectl("logs", name)).code == 0
        await ground.sites[lower].until(ground.path("services", "web"), bool)
    patch = {"data": {"colour": "green"}}
    await ground.upper.patch(ground.path("configmaps", "settings"), patch)
    await ground.sites[A].until(ground.path("configmaps", "settings"), lambda one: one["data"] == patch["data"])
    await ground.clear()
    assert [one["requestURI"] for name in ground.sites for one in ground.records(name) if _is_denied(one)] == []
    assert ground.heard.defects == []


async def test_without_controllers_less_is_enough_for_engine_and_plan(limited: Limited) -> None:
    """The plan of a pod looks at its account below one by one; nothing is denied to either."""
    little = with_fields(controllers=[])
    await limited.limit(little)
    await limited.bind("web", {"terminationGracePeriodSeconds": 0})
    planned = await ran([sys.executable, "-m", "tensile", "plan", "-f", str(limited.save(little))])
    assert (planned.code, planned.err) == (2, ""), planned
    assert f"{limited.namespace}/web" in planned.out
    await limited.start(little)
    await limited.upper.until(limited.pod_path("web"), is_ready)
    await limited.clear()
    assert [one["requestURI"] for name in limited.sites for one in limited.records(name) if _is_denied(one)] == []


async def test_doctor_names_a_missing_right_and_its_commands_grant_it(limited: Limited) -> None:
    """What it prints is run as it stands, by an administrator; then nothing fails any more. It writes nothing."""
    await limited.limit(*EDITS, without="endpointslices")
    starts = {name: audit.position(site.audit_log) for name, site in limited.sites.items()}
    code, failing = await limited.doctor()
    assert (code, {(one["cluster"], one["check"]) for one in failing}) == (1, {(n, "rights") for n in (None, *LOWERS)})
    for one in failing:
        assert "endpointslices.discovery.k8s.io (controller Service)" in one["what"]
        who, *commands = one["advice"]
        assert who.startswith("as an administrator of ")
        for command in commands:
            done = await limited.kubectl(*shlex.split(command)[1:], cluster=one["cluster"] or UPPER)
            assert done.code == 0, done
    try:
        assert await _granted(limited) == (0, [])
        asked = [one for name, start in starts.items() for one in limited.records(name, start)]
        verbs = {(one["verb"], one["objectRef"]["resource"]) for one in asked if "objectRef" in one}
        assert {resource for verb, resource in verbs if verb not in LOOKS} == ASKS
    finally:
        await _revoke(limited, failing)


async def _granted(ground: Limited) -> tuple[int, list[dict[str, Any]]]:
    """Ask doctor again, until the apiservers have heard of the grants."""
    slices = {"verb": "list", "group": "discovery.k8s.io", "resource": "endpointslices"}
    for site in ground.sites.values():
        await effective(site, ground.user, slices)
    return await ground.doctor()


async def _revoke(ground: Limited, failing: list[dict[str, Any]]) -> None:
    """Take away what the commands made."""
    for one in failing:
        for command in one["advice"][1:]:
            kind, name = shlex.split(command)[2:4]
            await ground.kubectl("delete", kind, name, cluster=one["cluster"] or UPPER)


def _is_denied(record: audit.Record) -> bool:
    """Report whether a right was lacking; a registration that it may not see is none of a webhook that is off."""
    resource = record.get("objectRef", {}).get("resource")
    return record.get("responseStatus", {}).get("code") == 403 and resource != "mutatingwebhookconfigurations"


async def _populate(ground: Ground) -> None:
    """Make all that the pods refer to."""
    await ground.upper.create(ground.path("configmaps"), {"metadata": {"name": "settings"}, "data": {"colour": "red"}})
    await ground.upper.create(ground.path("secrets"), {"metadata": {"name": "key"}, "stringData": {"key": "k"}})
    await ground.upper.create(ground.path("serviceaccounts"), {"metadata": {"name": "robot"}})
    service = {"selector": {"app": "web"}, "ports": [{"port": 80}]}
    await ground.upper.create(ground.path("services"), {"metadata": {"name": "web"}, "spec": service})


def _pod() -> Manifest:
    """Make a pod that refers to them."""
    sources = [{"configMapRef": {"name": "settings"}}, {"secretRef": {"name": "key"}}]
    main = {"name": "main", "image": "app:1", "envFrom": sources}
    return {"containers": [main], "serviceAccountName": "robot", "terminationGracePeriodSeconds": 0}
