"""Tests of a topology in a ConfigMap: the status beside it answers every edit, and an invalid edit changes nothing."""

import sys
from collections.abc import AsyncIterator

import orjson
import pytest
import pytest_asyncio
from enginekit import LOWERS, A, B, edit_lower, run_command, wait_until
from mapkit import KEY, NAME, RIGHT, STATUS, MapProgram, digest, read, tensile
from programkit import running_program

from bench.kit.spareports import spare_ports
from tensile.sandbox.sandbox import Sandbox

pytestmark = [pytest.mark.real, pytest.mark.asyncio(loop_scope="module")]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def program(sandbox: Sandbox, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[MapProgram]:
    """Start the program on a ConfigMap, with one pod that runs in the first lower."""
    async with running_program(sandbox, tmp_path_factory.mktemp("map"), MapProgram) as harness:
        await harness.run_pod("web")
        yield harness


def label(program: MapProgram, number: int) -> str:
    """Return the topology with a distinct label on the second node."""
    return program.text(edit_lower(B, node={"labels": {"edit": str(number)}}))


def bad(program: MapProgram, number: int) -> tuple[str, str]:
    """Return an invalid topology, a different one for each number, and its error."""
    text = label(program, 1000 + number)
    bads = [
        (text.replace('"lowers"', '"lowerz"'), "lowerz: unknown key; did you mean lowers?"),
        (text[: len(text) // 2], f"{KEY}:"),
        (text.replace('"kubeconfigSecret"', '"kubeconfig"'), "lowers[0].kubeconfig: "),
        (f"# {number}\n", f"{KEY}:1:1: "),
        (f"{text}\nupper: {{kubeconfig: '{number}'}}\n", f"{KEY}:"),
        (
            text.replace('"kubelet": {', f'"kubelet": {{"clientCAFile": "ca-{number}",'),
            "kubelet.clientCAFile: is a file",
        ),
    ]
    return bads[number % len(bads)]


async def edits(program: MapProgram, number: int) -> None:
    """Make a valid and then an invalid edit; the status follows in time, and the valid edit stays in force."""
    good, (wrong, message) = label(program, number), bad(program, number)
    node = f"/api/v1/nodes/{program.nodes[B]}"
    await program.put(good)
    found = await program.wait_accepted(good)
    assert "rejected" not in found
    assert {row["name"]: row["reachable"] for row in found["lowers"]} == dict.fromkeys(LOWERS, True)
    await program.upper.until(node, lambda one: one["metadata"]["labels"].get("edit") == str(number), RIGHT)
    written = await program.put(wrong)
    found = await program.status(RIGHT, state="Rejected", error=message)
    assert found["accepted"]["sha256"] == digest(good)
    assert found["rejected"]["sha256"] == digest(wrong)
    assert found["rejected"]["resourceVersion"] == written["metadata"]["resourceVersion"]
    assert (await program.upper.read(node))["metadata"]["labels"]["edit"] == str(number)


@pytest.mark.parametrize("number", range(6))
async def test_the_status_reports_valid_and_invalid_edits_in_time(program: MapProgram, number: int) -> None:
    """It contains the hash of the valid edit, and the position and message of the error in the invalid one."""
    await edits(program, number)


async def test_doctor_works_with_the_engines_rights(program: MapProgram) -> None:
    """The rendered roles suffice for it: every cluster is reachable, and no right is missing."""
    await program.put(program.text())
    done = await run_command([*program.command("doctor"), "-o", "json"])
    clusters = orjson.loads(done.out)["clusters"]
    assert [one["name"] for one in clusters] == [None, *LOWERS]
    for cluster in clusters:
        levels = {one["check"]: one["level"] for one in cluster["findings"]}
        assert (levels["reach"], levels["rights"]) == ("ok", "ok"), cluster


async def test_each_edit_emits_an_event_of_the_config_map(program: MapProgram) -> None:
    """`kubectl describe configmap` shows that an edit was accepted, by hash, or rejected, with its error."""
    wrong, message = bad(program, 700)
    written = await program.put(wrong)
    event = await program.wait_for_map_event(
        "TopologyRejected", f"resourceVersion {written['metadata']['resourceVersion']}"
    )
    assert message in event["message"]
    assert event["type"] == "Warning"
    assert event["involvedObject"]["uid"] == written["metadata"]["uid"]
    await program.put(label(program, 100))
    event = await program.wait_for_map_event("TopologyAccepted", digest(label(program, 100)))
    assert (event["type"], event["source"]["component"]) == ("Normal", "tensile-kube")


async def test_a_deleted_config_map_changes_nothing(program: MapProgram) -> None:
    """The last valid topology stays in force, the status reports the deletion, and a new ConfigMap is used."""
    text = label(program, 200)
    await program.put(text)
    await program.wait_accepted(text)
    await program.upper.delete(program.path("configmaps", NAME))
    found = await program.status(RIGHT, state="Rejected", error="the ConfigMap does not exist")
    assert found["accepted"]["sha256"] == digest(text)
    node = await program.upper.read(f"/api/v1/nodes/{program.nodes[B]}")
    assert node["metadata"]["labels"]["edit"] == "200"
    await program.put(label(program, 201))
    await program.wait_accepted(label(program, 201))


async def test_the_status_lists_a_pending_change_beside_the_accepted_topology(program: MapProgram) -> None:
    """A node with a pod keeps its name, which the status and `tensile status` report; the rest is in force."""
    text = program.text(edit_lower(A, node={"name": "another", "labels": {"edit": "350"}}))
    await program.put(text)
    path = program.path("configmaps", STATUS)
    await program.wait_accepted(text)
    found = read(await program.upper.until(path, lambda one: "pending" in one["data"]["accepted"], RIGHT))
    (message,) = found["accepted"]["pending"]
    waits = f"waits until no pods are mirrored to {A}; `maintenance: drain` lets them leave"
    assert message == f"lowers[{A}].node.name: {program.nodes[A]} -> another: {waits}"
    assert f"  topology change pending: {message}\n" in await tensile(program.command("status"))
    node = await program.upper.read(f"/api/v1/nodes/{program.nodes[A]}")
    assert node["metadata"]["labels"]["edit"] == "350"
    await program.reload()
    await program.upper.until(path, lambda one: "pending" not in one["data"]["accepted"])


async def test_the_status_command_prints_the_same_for_a_config_map_and_a_file(program: MapProgram) -> None:
    """Either way, it shows the nodes of the running engine."""
    await program.reload()
    await program.wait_accepted(program.text())
    (program.directory / "map.yaml").write_text(program.text())
    by_map = await tensile(program.command("status"))
    by_file = await tensile([sys.executable, "-m", "tensile", "status", "-f", str(program.directory / "map.yaml")])
    assert by_map == by_file
    rows = {line.split()[0]: line.split() for line in by_map.splitlines()[:3]}
    assert rows["LOWER"][:4] == ["LOWER", "NODE", "STATE", "PODS"]
    assert rows[A][1:] == [program.nodes[A], "Ready", "1", "96/96", "768Gi/768Gi", "1500/1500", "0s"]
    assert f"Topology {program.namespace}: in force since " in by_map


async def test_a_program_whose_first_topology_is_invalid_exits_and_writes_its_status(program: MapProgram) -> None:
    """The error is in the status and in an Event too, because the log of a program that exits is easily missed."""
    await program.apply("configmaps", "broken", {"data": {KEY: "kind: Topologie\n"}})
    done = await program.run_alone("broken")
    assert done.code == 1
    assert f"configmap/{program.namespace}/broken/{KEY}:1:7: kind: " in done.err
    found = read(await program.upper.read(program.path("configmaps", "broken-status")))
    assert (found["state"], "accepted" in found, found["lowers"]) == ("Rejected", False, [])
    assert f"/{KEY}:1:7: kind: " in found["rejected"]["error"]
    event = await program.wait_for_map_event("TopologyRejected", "the engine does not start", "broken")
    assert event["type"] == "Warning"


async def test_a_program_waits_for_its_config_map_to_be_created(program: MapProgram) -> None:
    """The log reports the absence.

    Once the ConfigMap is created, the engine starts, and SIGTERM ends it with code 0.
    """
    (port,) = spare_ports(1)
    text = (
        f"apiVersion: tensile-kube.io/v1alpha1\nkind: Topology\nname: {program.namespace}-late\nlowers: []\n"
        f"telemetry: {{port: {port}}}\n"
    )
    async with program.running("late") as (process, log):
        await wait_until(lambda: "the ConfigMap does not exist" in log.read_text())
        await program.apply("configmaps", "late", {"data": {KEY: text}})
        await program.upper.until(
            program.path("configmaps", "late-status"), lambda one: one and read(one)["state"] == "Accepted"
        )
        await wait_until(lambda: '"event": "started"' in log.read_text())
        await wait_until(lambda: '"event": "ready"' in log.read_text())
        process.terminate()
        assert await process.wait() == 0
    result = await run_command(program.command("status", "late"))
    assert (result.code, result.out.splitlines()[0]) == (0, "No lower clusters.")
