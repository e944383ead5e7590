"""The topology in a ConfigMap: every edit is answered for beside it, and no bad one changes anything."""

import sys
from collections.abc import AsyncIterator

import orjson
import pytest
import pytest_asyncio
from enginekit import LOWERS, A, B, edit_lower, polled, ran
from mapkit import KEY, NAME, RIGHT, STATUS, MapProgram, digest, read, tensile
from programkit import served

from bench.kit.spareports import spare_ports
from tensile.sandbox.sandbox import Sandbox

pytestmark = [pytest.mark.real, pytest.mark.asyncio(loop_scope="module")]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def program(sandbox: Sandbox, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[MapProgram]:
    """The program on a ConfigMap, with one pod that runs in the first lower."""
    async with served(sandbox, tmp_path_factory.mktemp("map"), MapProgram) as made:
        await made.run_pod("web")
        yield made


def label(program: MapProgram, number: int) -> str:
    """Return the topology with a label of its own on the second node."""
    return program.text(edit_lower(B, node={"labels": {"edit": str(number)}}))


def bad(program: MapProgram, number: int) -> tuple[str, str]:
    """Return a bad topology, a different one for each number, and where its error is."""
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
    """Edit well, then badly: the status is right in time, and the good edit stays in force."""
    good, (wrong, said) = label(program, number), bad(program, number)
    node = f"/api/v1/nodes/{program.nodes[B]}"
    await program.put(good)
    found = await program.right(good)
    assert "rejected" not in found
    assert {row["name"]: row["reachable"] for row in found["lowers"]} == dict.fromkeys(LOWERS, True)
    await program.upper.until(node, lambda one: one["metadata"]["labels"].get("edit") == str(number), RIGHT)
    written = await program.put(wrong)
    found = await program.status(RIGHT, state="Rejected", error=said)
    assert found["accepted"]["sha256"] == digest(good)
    assert found["rejected"]["sha256"] == digest(wrong)
    assert found["rejected"]["resourceVersion"] == written["metadata"]["resourceVersion"]
    assert (await program.upper.read(node))["metadata"]["labels"]["edit"] == str(number)


@pytest.mark.parametrize("number", range(6))
async def test_good_and_bad_edits_are_answered_for_in_time(program: MapProgram, number: int) -> None:
    """The status has the hash of the good one, and place and words of what is wrong with the bad."""
    await edits(program, number)


async def test_doctor_has_the_engines_rights_and_finds_its_way(program: MapProgram) -> None:
    """With the very roles that are rendered, which let nobody read a single Secret."""
    await program.put(program.text())
    done = await ran([*program.command("doctor"), "-o", "json"])
    clusters = orjson.loads(done.out)["clusters"]
    assert [one["name"] for one in clusters] == [None, *LOWERS]
    for cluster in clusters:
        levels = {one["check"]: one["level"] for one in cluster["findings"]}
        assert (levels["reach"], levels["rights"]) == ("ok", "ok"), cluster


async def test_each_edit_is_an_event_of_the_config_map(program: MapProgram) -> None:
    """So that `kubectl describe configmap` tells it: accepted by hash, rejected with its line."""
    wrong, said = bad(program, 700)
    written = await program.put(wrong)
    event = await program.event("TopologyRejected", f"resourceVersion {written['metadata']['resourceVersion']}")
    assert said in event["message"]
    assert event["type"] == "Warning"
    assert event["involvedObject"]["uid"] == written["metadata"]["uid"]
    await program.put(label(program, 100))
    event = await program.event("TopologyAccepted", digest(label(program, 100)))
    assert (event["type"], event["source"]["component"]) == ("Normal", "tensile-kube")


async def test_a_config_map_that_is_deleted_changes_nothing(program: MapProgram) -> None:
    """The last good topology stays in force, the status says that there is none, and a new one is followed again."""
    text = label(program, 200)
    await program.put(text)
    await program.right(text)
    await program.upper.delete(program.path("configmaps", NAME))
    found = await program.status(RIGHT, state="Rejected", error="the ConfigMap does not exist")
    assert found["accepted"]["sha256"] == digest(text)
    node = await program.upper.read(f"/api/v1/nodes/{program.nodes[B]}")
    assert node["metadata"]["labels"]["edit"] == "200"
    await program.put(label(program, 201))
    await program.right(label(program, 201))


async def test_what_has_to_wait_is_said_beside_what_is_in_force(program: MapProgram) -> None:
    """A node that has a pod keeps its name: the status says so, and `tensile status`; the rest is in force."""
    text = program.text(edit_lower(A, node={"name": "another", "labels": {"edit": "350"}}))
    await program.put(text)
    path = program.path("configmaps", STATUS)
    await program.right(text)
    found = read(await program.upper.until(path, lambda one: "pending" in one["data"]["accepted"], RIGHT))
    (words,) = found["accepted"]["pending"]
    waits = f"waits until no pods are mirrored to {A}; `maintenance: drain` lets them leave"
    assert words == f"lowers[{A}].node.name: {program.nodes[A]} -> another: {waits}"
    assert f"  topology change pending: {words}\n" in await tensile(program.command("status"))
    node = await program.upper.read(f"/api/v1/nodes/{program.nodes[A]}")
    assert node["metadata"]["labels"]["edit"] == "350"
    await program.reload()
    await program.upper.until(path, lambda one: "pending" not in one["data"]["accepted"])


async def test_the_status_command_tells_the_same_by_either_way(program: MapProgram) -> None:
    """From the ConfigMap and the nodes, and from the running engine."""
    await program.reload()
    await program.right(program.text())
    (program.directory / "map.yaml").write_text(program.text())
    by_map = await tensile(program.command("status"))
    by_file = await tensile([sys.executable, "-m", "tensile", "status", "-f", str(program.directory / "map.yaml")])
    assert by_map == by_file
    rows = {line.split()[0]: line.split() for line in by_map.splitlines()[:3]}
    assert rows["LOWER"][:4] == ["LOWER", "NODE", "STATE", "PODS"]
    assert rows[A][1:] == [program.nodes[A], "Ready", "1", "96/96", "768Gi/768Gi", "1500/1500", "0s"]
    assert f"Topology {program.namespace}: in force since " in by_map


async def test_a_bad_first_content_ends_the_program(program: MapProgram) -> None:
    """It says why beside the ConfigMap too, since nobody may read the log of a program that ends."""
    await program.lay("configmaps", "broken", {"data": {KEY: "kind: Topologie\n"}})
    done = await program.alone("broken")
    assert done.code == 1
    assert f"configmap/{program.namespace}/broken/{KEY}:1:7: kind: " in done.err
    found = read(await program.upper.read(program.path("configmaps", "broken-status")))
    assert (found["state"], "accepted" in found, found["lowers"]) == ("Rejected", False, [])
    assert f"/{KEY}:1:7: kind: " in found["rejected"]["error"]
    event = await program.event("TopologyRejected", "the engine does not start", "broken")
    assert event["type"] == "Warning"


async def test_a_config_map_that_is_not_there_yet_is_waited_for(program: MapProgram) -> None:
    """The log says so; when it comes the engine starts, and it ends cleanly."""
    (port,) = spare_ports(1)
    text = (
        f"apiVersion: tensile-kube.io/v1alpha1\nkind: Topology\nname: {program.namespace}-late\nlowers: []\n"
        f"telemetry: {{port: {port}}}\n"
    )
    async with program.running("late") as (process, log):
        await polled(lambda: "the ConfigMap does not exist" in log.read_text())
        await program.lay("configmaps", "late", {"data": {KEY: text}})
        await program.upper.until(
            program.path("configmaps", "late-status"), lambda one: one and read(one)["state"] == "Accepted"
        )
        await polled(lambda: '"event": "started"' in log.read_text())
        await polled(lambda: '"event": "ready"' in log.read_text())
        process.terminate()
        assert await process.wait() == 0
    told = await ran(program.command("status", "late"))
    assert (told.code, told.out.splitlines()[0]) == (0, "No lower clusters.")
