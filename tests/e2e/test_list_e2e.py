"""Tests of `tensile list` against the objects that an engine has created, with the engine's own permissions."""

import sys

import orjson
import pytest
from enginekit import UPPER, A, B, CommandResult, EngineHarness, run_command
from sitekit import is_ready

pytestmark = [pytest.mark.real, pytest.mark.asyncio(loop_scope="module")]


async def listed(harness: EngineHarness, *arguments: str) -> CommandResult:
    """Run `tensile list`."""
    command = [sys.executable, "-m", "tensile", "list", *arguments, "-f", str(harness.save())]
    return await run_command(command)


async def test_list_prints_exactly_the_objects_that_the_topology_owns(harness: EngineHarness) -> None:
    """Objects of other topologies in the same clusters and objects of other clients are left out."""
    await harness.upper.create(harness.path("configmaps"), {"metadata": {"name": "settings"}, "data": {"key": "value"}})
    volumes = [{"name": "settings", "configMap": {"name": "settings"}}]
    await harness.bind("web", {"volumes": volumes})
    await harness.upper.until(harness.pod_path("web"), is_ready)
    await harness.sites[A].create(harness.path("configmaps"), {"metadata": {"name": "strange"}})
    await harness.wait_idle()
    done = await listed(harness, "-o", "json")
    found = orjson.loads(done.out)
    owned = {(one["cluster"], one["kind"], one["namespace"], one["name"]) for one in found["items"]}
    space = harness.namespace
    assert {one for one in owned if one[0] != UPPER and one[0] != "upper"} == {
        (A, "Namespace", "", space),
        (A, "Pod", space, "web"),
        (A, "ConfigMap", space, "settings"),
    }
    assert {one for one in owned if one[1] == "Node"} == {
        ("upper", "Node", "", node) for node in harness.nodes.values()
    }
    (mirror,) = (one for one in found["items"] if one["kind"] == "Namespace")
    assert mirror["upper_namespace"] == space
    assert (done.code, found["unread"]) == (0, []), done.err
    only = await listed(harness, B)
    assert (only.code, only.out) == (0, "No objects.\n")
