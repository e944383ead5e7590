"""Tests of the list of rights: an engine with these rights and no others works, and doctor reports a missing one."""

import shlex
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import orjson
import pytest
import pytest_asyncio
from enginekit import LOWERS, UPPER, A, B, CommandResult, Edit, EngineHarness, edit_lower, run_command, with_fields
from sitekit import Manifest, is_ready

from bench.kit import audit
from bench.kit.rbac import grant, roles_of, wait_until_effective
from tensile.sandbox.sandbox import Sandbox

pytestmark = [pytest.mark.real, pytest.mark.asyncio(loop_scope="module")]

LOOKS = {"get", "list"}
ASKS = {"selfsubjectreviews", "selfsubjectaccessreviews"}
"""What doctor creates: access reviews, which are not stored."""
EDITS: tuple[Edit, ...] = (
    with_fields(controllers=["PV", "Service", "RBAC", "ServiceAccount"]),
    edit_lower(B, serviceAccounts={"identity": "upper"}),
)


class UngrantedEngineHarness(EngineHarness):
    """A harness whose engine's user has no rights until they are granted."""

    async def grant_roles(self) -> None:
        """Grant no rights."""

    async def limit(self, *edits: Edit, without: str = "") -> None:
        """Grant the user exactly the roles of a topology, without the rules on one resource."""
        self.roles = roles_of(self.topology(*edits), self.engine_namespace, self.configmap)
        for name, found in self.roles.items():
            for role in (one for one in found if "rules" in one):
                role["rules"] = [one for one in role["rules"] if one["resources"] != [without]]
            await grant(self.sites[name], found, self.user)

    async def doctor(self) -> tuple[int, list[dict[str, Any]]]:
        """Run doctor on the engine's topology, and return the exit code and all findings that fail."""
        result: CommandResult = await run_command(
            [sys.executable, "-m", "tensile", "doctor", "-o", "json", "-f", str(self.save(*EDITS))]
        )
        found = [
            {"cluster": cluster["name"], **one}
            for cluster in orjson.loads(result.out)["clusters"]
            for one in cluster["findings"]
        ]
        return result.code, [one for one in found if one["level"] == "fail"]

    def records(self, cluster: str, start: int = 0) -> list[audit.Record]:
        """Return the requests of the user in a cluster's audit log."""
        found = audit.read(self.sites[cluster].audit_log, start)
        return [one for one in found if one["user"].get("username") == self.user]


@pytest_asyncio.fixture(loop_scope="module")
async def limited(sandbox: Sandbox, tmp_path: Path) -> AsyncIterator[UngrantedEngineHarness]:
    """Return a harness on which no engine runs yet."""
    harness = UngrantedEngineHarness(sandbox, tmp_path)
    try:
        await harness.open()
        yield harness
    finally:
        await harness.close()


async def test_an_engine_with_exactly_the_listed_rights_is_denied_nothing(limited: UngrantedEngineHarness) -> None:
    """It runs pods with their references, Services, accounts and tokens, changes, exec and logs, and deletes all of it.

    No cluster denies any of its requests.
    """
    harness = limited
    await harness.limit(*EDITS)
    await harness.start(*EDITS)
    await _populate(harness)
    for lower in LOWERS:
        name = f"web-{lower[-1]}"
        await harness.run_pod(name, _pod(), lower, labels={"app": "web"})
        assert (await harness.kubectl("exec", name, "--", "true")).code == 0
        assert (await harness.kubectl("logs", name)).code == 0
        await harness.sites[lower].until(harness.path("services", "web"), bool)
    patch = {"data": {"colour": "green"}}
    await harness.upper.patch(harness.path("configmaps", "settings"), patch)
    await harness.sites[A].until(harness.path("configmaps", "settings"), lambda one: one["data"] == patch["data"])
    await harness.clear()
    assert [one["requestURI"] for name in harness.sites for one in harness.records(name) if _is_denied(one)] == []
    assert harness.loop_recorder.defects == []


async def test_without_controllers_fewer_rights_suffice_for_engine_and_plan(limited: UngrantedEngineHarness) -> None:
    """The plan reads lower ServiceAccounts one by one, and neither the plan nor the engine is denied anything."""
    little = with_fields(controllers=[])
    await limited.limit(little)
    await limited.bind("web", {"terminationGracePeriodSeconds": 0})
    planned = await run_command([sys.executable, "-m", "tensile", "plan", "-f", str(limited.save(little))])
    assert (planned.code, planned.err) == (2, ""), planned
    assert f"{limited.namespace}/web" in planned.out
    await limited.start(little)
    await limited.upper.until(limited.pod_path("web"), is_ready)
    await limited.clear()
    assert [one["requestURI"] for name in limited.sites for one in limited.records(name) if _is_denied(one)] == []


async def test_doctor_names_a_missing_right_and_its_commands_grant_it(limited: UngrantedEngineHarness) -> None:
    """An administrator runs the printed commands unchanged, and then no check fails. Doctor itself changes nothing."""
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
        requests = [one for name, start in starts.items() for one in limited.records(name, start)]
        verbs = {(one["verb"], one["objectRef"]["resource"]) for one in requests if "objectRef" in one}
        assert {resource for verb, resource in verbs if verb not in LOOKS} == ASKS
    finally:
        await _revoke(limited, failing)


async def _granted(harness: UngrantedEngineHarness) -> tuple[int, list[dict[str, Any]]]:
    """Wait until the apiservers apply the grants, and run doctor again."""
    slices = {"verb": "list", "group": "discovery.k8s.io", "resource": "endpointslices"}
    for site in harness.sites.values():
        await wait_until_effective(site, harness.user, slices)
    return await harness.doctor()


async def _revoke(harness: UngrantedEngineHarness, failing: list[dict[str, Any]]) -> None:
    """Delete the objects that the commands created."""
    for one in failing:
        for command in one["advice"][1:]:
            kind, name = shlex.split(command)[2:4]
            await harness.kubectl("delete", kind, name, cluster=one["cluster"] or UPPER)


def _is_denied(record: audit.Record) -> bool:
    """Report whether a request was denied for a missing right.

    Requests for webhook configurations are left out, because the webhook is disabled.
    """
    resource = record.get("objectRef", {}).get("resource")
    return record.get("responseStatus", {}).get("code") == 403 and resource != "mutatingwebhookconfigurations"


async def _populate(harness: EngineHarness) -> None:
    """Create all objects that the pods refer to."""
    await harness.upper.create(
        harness.path("configmaps"), {"metadata": {"name": "settings"}, "data": {"colour": "red"}}
    )
    await harness.upper.create(harness.path("secrets"), {"metadata": {"name": "key"}, "stringData": {"key": "k"}})
    await harness.upper.create(harness.path("serviceaccounts"), {"metadata": {"name": "robot"}})
    service = {"selector": {"app": "web"}, "ports": [{"port": 80}]}
    await harness.upper.create(harness.path("services"), {"metadata": {"name": "web"}, "spec": service})


def _pod() -> Manifest:
    """Return a pod that refers to these objects."""
    sources = [{"configMapRef": {"name": "settings"}}, {"secretRef": {"name": "key"}}]
    main = {"name": "main", "image": "app:1", "envFrom": sources}
    return {"containers": [main], "serviceAccountName": "robot", "terminationGracePeriodSeconds": 0}
