"""Tests of `tensile apply` on real clusters: it converges in one run, and reports its changes and its problems."""

import asyncio
import re
from typing import Any

import orjson
import pytest
from clikit import PROGRAM, lines
from enginekit import LOWERS, UPPER, A, CommandResult, Edit, EngineHarness, run_command, with_fields
from plankit import without_capacity_changes
from programkit import Program
from sitekit import is_ready

from tensile.names import OWNER

pytestmark = pytest.mark.real

NOTHING = "Applied: 0 to add, 0 to change, 0 to delete (no changes)\n"
ROOM = re.compile(r"Applied: 0 to add, [12] to change, 0 to delete \(upper: [12] to change\)\n$")
"""The output of apply if another test has changed the capacity of nodes, and no other change is needed."""
CONTENT = "YXBwbGllZC1zZWNyZXQ="
TIGHT = with_fields(guard={"maxDeletes": 1, "maxDeletePercent": 1})


async def applied(harness: EngineHarness, *arguments: str, edits: tuple[Edit, ...] = ()) -> CommandResult:
    """Save the file and run `tensile apply` on it."""
    done = await run_command([PROGRAM, "apply", "-f", str(harness.save(*edits)), *arguments])
    assert "Traceback" not in done.err
    assert CONTENT not in done.out + done.err
    assert "applied-secret" not in done.out + done.err
    return done


async def left_below(harness: EngineHarness, name: str) -> list[str]:
    """Return the names of the pods and Secrets of this topology in a lower."""
    found: list[Any] = []
    for plural in ("pods", "secrets"):
        found += (await harness.sites[name].read(f"/api/v1/{plural}?labelSelector={OWNER}={harness.owner.mark}"))[
            "items"
        ]
    return sorted(one["metadata"]["name"] for one in found)


async def test_apply_converges_and_then_changes_nothing(harness: EngineHarness) -> None:
    """A problem gives exit code 1; after its fix the rest is applied, and `plan` has no changes left."""
    await harness.upper.create(harness.path("secrets"), {"metadata": {"name": "key"}, "data": {"key": CONTENT}})
    await harness.bind("whole", {"volumes": [{"name": "key", "secret": {"secretName": "key"}}]})
    await harness.bind("stuck", {"volumes": [{"name": "lost", "configMap": {"name": "lost"}}]})
    partly = await applied(harness, "--log-format", "text")
    assert partly.code == 1
    assert partly.out.splitlines()[-2].startswith("Plan: 5 to add, "), "the plan is shown before"
    lost = f"ConfigMap {harness.namespace}/lost does not exist in the upper cluster"
    assert f"\n! pod {harness.namespace}/stuck on {A}: ConfigMapNotFound: {lost}\n" in partly.err
    assert partly.err.splitlines()[-1].startswith("Applied in part: 5 to add, ")
    await harness.sites[A].until(harness.pod_path("whole"), is_ready)
    await harness.upper.create(harness.path("configmaps"), {"metadata": {"name": "lost"}, "data": {"found": "again"}})
    mended = await applied(harness, "--log-level", "debug")
    assert mended.code == 0, mended.err
    assert re.search(  # the pod, and up to two Nodes if another test has changed the capacity of nodes
        r"\nApplied: 2 to add, [123] to change, 0 to delete \(upper: [123] to change; lower-a: 2 to add\)\n$",
        mended.out,
    )
    assert {"Pod created", "ConfigMap created"} <= {one["event"] for one in lines(mended.err)}
    await harness.sites[A].until(harness.pod_path("stuck"), is_ready)
    again, plan = await asyncio.gather(
        applied(harness, "--log-level", "warn"), run_command([PROGRAM, "plan", "-f", str(harness.save()), "-o", "json"])
    )
    assert (again.code, again.err) == (0, "")
    assert again.out == NOTHING or ROOM.search(again.out)
    assert plan.err == ""
    assert without_capacity_changes(orjson.loads(plan.out)["changes"]) == []


async def test_unrequested_deletions_need_force(harness: EngineHarness) -> None:
    """Three pods that are lost in the upper cluster exceed this guard, and are deleted only with --force.

    The lowers are empty then, and a topology without them needs no force to delete the nodes.
    """
    for number in range(3):
        await harness.bind(f"web-{number}")
    assert (await applied(harness, edits=(TIGHT,))).code == 0
    pods = await left_below(harness, A)
    assert pods == ["web-0", "web-1", "web-2"]
    await harness.upper.delete(harness.path("pods"), 0)
    held = await applied(harness, "--log-format", "text", edits=(TIGHT,))
    assert held.code == 1
    assert held.out.splitlines()[-2].startswith("Plan: 0 to add, ")
    assert "3" in held.err
    assert "tensile apply --force" in held.err
    assert await left_below(harness, A) == pods
    forced = await applied(harness, "--force", edits=(TIGHT,))
    assert forced.code == 0, forced.err
    assert forced.out.count(f"\n- Pod {harness.namespace}/web-") == 3
    assert forced.out.endswith("\n\nApplied: 0 to add, 0 to change, 3 to delete (lower-a: 3 to delete)\n")
    assert await left_below(harness, A) == []
    emptied = await applied(harness, edits=(with_fields(lowers=[]),))
    assert emptied.out.endswith("\nApplied: 0 to add, 0 to change, 2 to delete (upper: 2 to delete)\n")
    for node in harness.nodes.values():
        assert await harness.sites[UPPER].read(f"/api/v1/nodes/{node}") == {}


async def test_apply_may_run_beside_the_engine(program: Program) -> None:
    """Both see the same pods at once: each pod is created once and not changed again, without warnings."""
    await program.mark_audit_logs()
    for number in range(6):
        await program.bind(f"web-{number}", lower=LOWERS[number % 2])
    done = await applied(program, "--log-format", "json")
    assert done.code == 0, done.err
    for number in range(6):
        await program.upper.until(program.pod_path(f"web-{number}"), is_ready)
    assert (await applied(program)).out == NOTHING
    pods = [one for one in await program.writes() if one.resource == "pods" and one.cluster != UPPER]
    assert sorted((one.verb, one.name) for one in pods) == [("create", f"web-{number}") for number in range(6)]
    found = lines(program.log.read_text()) + lines(done.err)
    created = {(one["event"], one["object"]) for one in found if "object" in one}
    assert {("Node created", node) for node in program.nodes.values()} <= created
    steps = [one for one in found if one["logger"] == "tensile.reconcile"]
    assert [one for one in steps if one["level"] not in ("info", "debug")] == []


async def test_a_saved_plan_is_applied_exactly_or_refused(harness: EngineHarness) -> None:
    """It is refused if a pod was bound after it was saved; its file does not contain the Secret's data."""
    await harness.upper.create(harness.path("secrets"), {"metadata": {"name": "key"}, "data": {"key": CONTENT}})
    await harness.bind("whole", {"volumes": [{"name": "key", "secret": {"secretName": "key"}}]})
    file, saved = harness.save(), harness.directory / "reviewed.plan"

    async def plan() -> CommandResult:
        """Save a plan."""
        return await run_command([PROGRAM, "plan", "-f", str(file), "--out", str(saved)])

    first = await plan()
    assert (first.code, first.err) == (2, f"saved in {saved}: make exactly these changes with: tensile apply {saved}\n")
    assert CONTENT not in saved.read_text()
    await harness.bind("late")
    await harness.mark_audit_logs()
    stale = await run_command([PROGRAM, "apply", str(saved), "--log-level", "error"])
    assert (stale.code, stale.out) == (1, "")
    assert f"\nlower-a: Pod {harness.namespace}/late: from nothing to create\n" in stale.err
    assert stale.err.endswith("\nNothing was changed. Plan again with `tensile plan --out FILE`.\n")
    assert await harness.attempts() == []
    assert (await plan()).code == 2
    done = await run_command([PROGRAM, "apply", str(saved), "--log-level", "error"])
    assert (done.code, done.err) == (0, "")
    # If no engine has registered its admission policy yet, the pods' tolerations are changed too.
    assert re.search(
        r"\nApplied: 6 to add, [02] to change, 0 to delete \(upper: 2 to add(, 2 to change)?; lower-a: 4 to add\)\n$",
        done.out,
    )
    assert await left_below(harness, A) == ["key", "late", "whole"]
    again = await run_command([PROGRAM, "apply", str(saved), "--log-level", "error"])
    assert f"lower-a: Pod {harness.namespace}/whole: from create to nothing" in again.err


async def test_apply_warns_if_an_engine_uses_another_topology_text(program: Program) -> None:
    """The engine follows its own file, and reverts what differs."""
    message = f"warning: an engine of topology {program.namespace} uses another text of it, and undoes what differs"
    own = await run_command([PROGRAM, "apply", "-f", str(program.save()), "--yes"])
    assert message not in own.err
    other = program.directory / "other.yaml"
    other.write_bytes(orjson.dumps(program.file(with_fields(descheduler={"interval": "77s"}))))
    done = await run_command([PROGRAM, "apply", "-f", str(other), "--yes"])
    assert message in done.err
