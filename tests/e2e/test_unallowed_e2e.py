"""Tests of an edit that enables a controller without its rights: the next engine works except for that controller."""

import sys
from collections.abc import AsyncIterator

import aiohttp
import orjson
import pytest
import pytest_asyncio
from enginekit import A, run_command, with_fields
from mapkit import MapProgram
from programkit import running_program
from sitekit import Manifest, is_true

from bench.kit.rbac import enable_all_features, roles_of
from tensile.sandbox.sandbox import Sandbox

pytestmark = [pytest.mark.real, pytest.mark.asyncio(loop_scope="module")]

WITH_RIGHTS = ["PV", "Service", "RBAC", "ServiceAccount"]


def as_it_was(file: Manifest) -> None:
    """Make a topology enable everything but the RBAC controller."""
    enable_all_features(file)
    file["controllers"] = [one for one in WITH_RIGHTS if one != "RBAC"]


class UnpermittedProgram(MapProgram):
    """A program that starts with the edit, but with the roles of the former topology."""

    def rendered(self) -> dict[str, list[Manifest]]:
        """Return the roles of the topology before the edit."""
        return roles_of(self.topology(as_it_was), self.engine_namespace, self.configmap)

    def file(self, *edits: object) -> Manifest:
        """Return the topology with the edit."""
        return super().file(with_fields(controllers=WITH_RIGHTS), *edits)  # type: ignore[arg-type]

    def warnings(self) -> list[tuple[str, str]]:
        """Return cluster and kind of each denial in the log."""
        lines = (orjson.loads(line) for line in self.log.read_text().splitlines() if line.startswith("{"))
        return [(one["cluster"], one["kind"]) for one in lines if one["event"] == "permission denied"]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def program(sandbox: Sandbox, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[UnpermittedProgram]:
    """Start the program, whose lowers have their kubeconfigs in Secrets, and wait until their nodes accept pods."""
    async with running_program(sandbox, tmp_path_factory.mktemp("edited"), UnpermittedProgram) as harness:
        yield harness


async def test_every_lower_is_connected_without_the_rights_of_one_controller(program: UnpermittedProgram) -> None:
    """The kubeconfigs are read from Secrets, the nodes are LowerReachable, and pods run."""
    for node in program.nodes.values():
        assert is_true(await program.upper.read(f"/api/v1/nodes/{node}"), "LowerReachable")
    await program.run_pod("web")


async def test_the_log_names_each_denied_kind_once(program: UnpermittedProgram) -> None:
    """Each cluster's kinds are logged with the advice to run doctor, and retries are not logged again."""
    await program.wait_for_log("tensile doctor")
    await program.run_pod("later")
    warnings = program.warnings()
    assert {("upper", "Role"), ("upper", "RoleBinding"), (A, "Role")} <= set(warnings)
    assert sorted(warnings) == sorted(set(warnings))


async def test_a_plan_fails_and_names_the_kinds_that_it_may_not_list(program: UnpermittedProgram) -> None:
    """A plan from incomplete data would be wrong; the cluster is not reported as out of reach."""
    path = program.directory / "by-secret.yaml"
    path.write_text(program.text(lambda file: file.update(upper={"kubeconfig": "upper.kubeconfig"})))
    done = await run_command([sys.executable, "-m", "tensile", "plan", "-f", str(path)])
    assert (done.code, "out of reach" in done.err) == (1, False), done
    assert "upper: list Role: denied: " in done.err
    assert "`tensile doctor` lists the missing permissions" in done.err


async def test_the_engine_is_ready_without_the_rights_of_one_controller(program: UnpermittedProgram) -> None:
    """Otherwise one controller would take the webhook and everything else out of service in every replica."""
    url = f"http://127.0.0.1:{program.file()['telemetry']['port']}/readyz"
    async with aiohttp.ClientSession() as session, session.get(url) as answer:
        assert (answer.status, await answer.text()) == (200, "ok\n")
