"""Tests of edits of the topology file while the engine runs: edits come into force, and the rest is not disturbed."""

import sys
from collections.abc import AsyncIterator
from http import HTTPStatus

import aiohttp
import pytest
import pytest_asyncio
from enginekit import QUIET, UPPER, A, B, edit_lower, run_command, wait_until, with_fields, without_lower
from programkit import Program, followed_log, running_program
from sitekit import NODE_LEASES, Manifest, condition_of, is_ready, is_true, phase_of

from bench.kit.spareports import spare_ports
from tensile.sandbox.sandbox import Sandbox

pytestmark = [pytest.mark.real, pytest.mark.asyncio(loop_scope="module")]

IN_FORCE = 30.0
PROVIDER = {"key": "virtual-kubelet.io/provider", "value": "k8s", "effect": "NoSchedule"}
MORE = {"key": "e2e", "value": "reload", "effect": "NoSchedule"}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def program(sandbox: Sandbox, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Program]:
    """Start the program, with one pod that runs in the first lower."""
    async with running_program(sandbox, tmp_path_factory.mktemp("program")) as made:
        await made.run_pod("web")
        yield made


async def node(program: Program, lower: str) -> Manifest:
    """Return a lower's virtual node."""
    return await program.upper.read(f"/api/v1/nodes/{program.nodes[lower]}")


async def test_an_edit_comes_into_force_without_closing_streams_of_another_lower(program: Program) -> None:
    """A label and a taint are added to the node, and the log stream of the other lower stays open."""
    path = f"/api/v1/nodes/{program.nodes[B]}"
    async with followed_log(program) as stream:
        await program.reload(edit_lower(B, node={"labels": {"tier": "gold"}, "taints": [PROVIDER, MORE]}))
        found = await program.upper.until(
            path, lambda one: one["metadata"]["labels"].get("tier") == "gold", limit=IN_FORCE
        )
        assert MORE in found["spec"]["taints"]
        await stream.check_line_arrives("after the edit")
        await program.reload()
        found = await program.upper.until(path, lambda one: "tier" not in one["metadata"]["labels"], limit=IN_FORCE)
        assert MORE not in found["spec"]["taints"]


async def test_an_edit_of_a_lower_does_not_close_its_own_streams(program: Program) -> None:
    """Annotations, capacity and limits of the lower with the stream change, and the stream stays open."""
    path = f"/api/v1/nodes/{program.nodes[A]}"
    reserve = {"basis": "allocatable", "reserve": {"cpu": "95"}}
    before = (await program.upper.read(path))["status"]["allocatable"]
    async with followed_log(program) as stream:
        await program.reload(edit_lower(A, node={"annotations": {"note": "edited"}}, capacity=reserve, qps=50))
        found = await program.upper.until(
            path, lambda one: one["status"]["allocatable"]["cpu"] != before["cpu"], limit=IN_FORCE
        )
        assert int(before["cpu"]) - int(found["status"]["allocatable"]["cpu"]) == 95
        assert found["metadata"]["annotations"]["note"] == "edited"
        await stream.check_line_arrives("after the edit")
        await program.reload()
        await program.upper.until(path, lambda one: one["status"]["allocatable"] == before, limit=IN_FORCE)


async def test_an_edit_of_ignored_labels_updates_the_lower_pods(program: Program) -> None:
    """A label that is ignored is removed from the lower pods, and added again by the next edit."""
    site, path = program.sites[A], program.pod_path("web")
    await program.upper.patch(path, {"metadata": {"labels": {"team": "blue"}}})
    await site.until(path, lambda one: one["metadata"]["labels"].get("team") == "blue")
    await program.reload(with_fields(ignoreLabels=["team"]))
    found = await site.until(path, lambda one: "team" not in one["metadata"]["labels"], limit=IN_FORCE)
    assert '"team":"blue"' in found["metadata"]["annotations"]["tripped-labels"]
    await program.reload()
    await site.until(path, lambda one: one["metadata"]["labels"].get("team") == "blue", limit=IN_FORCE)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("lowers: [", "topology.yaml:"),
        ('{"apiVersion": "tensile-kube.io/v1alpha1", "kind": "Topology", "name": "x", "lowerz": []}', "lowerz"),
        ("", "topology.yaml"),
    ],
    ids=["syntax", "unknown-key", "empty"],
)
async def test_an_invalid_file_changes_nothing(program: Program, content: str, message: str) -> None:
    """The log names the file and the key, nothing is written, streams stay open, and the next edit works."""
    async with followed_log(program) as stream:
        await program.mark_audit_logs()
        since = program.log.stat().st_size
        (program.directory / "topology.yaml").write_text(content)
        await program.wait_for_log("the last valid one stays active", since)
        assert message in program.log.read_text()[since:]
        await stream.check_line_arrives("after the bad file")
        tried = [one for one, _ in await program.attempts(without=QUIET)]
        assert [one for one in tried if one.subresource != "status"] == []
        since = program.log.stat().st_size
        await program.reload(edit_lower(B, node={"annotations": {"note": message}}))
        path = f"/api/v1/nodes/{program.nodes[B]}"
        await program.upper.until(
            path, lambda one: one["metadata"]["annotations"].get("note") == message, limit=IN_FORCE
        )
    await program.reload()
    await program.upper.until(path, lambda one: "note" not in one["metadata"]["annotations"])


async def test_a_removed_lower_with_pods_is_cordoned_and_used_again_once_it_is_put_back(program: Program) -> None:
    """The node reports the removal, and its pods and streams stay.

    A new pod waits until the lower is put back.
    """
    path = f"/api/v1/nodes/{program.nodes[A]}"
    lower_object = await program.sites[A].read(program.pod_path("web"))
    async with followed_log(program) as stream:
        await program.reload(without_lower(A))
        found = await program.upper.until(
            path, lambda one: condition_of(one, "InTopology").get("status") == "False", limit=IN_FORCE
        )
        found = await program.upper.until(path, lambda one: one["spec"].get("unschedulable"), limit=IN_FORCE)
        assert "maintenance: drain" in condition_of(found, "InTopology")["message"]
        assert is_true(found, "Ready")
        await program.bind("late")
        late = await program.upper.until(
            program.pod_path("late"), lambda one: phase_of(one) and one["status"].get("reason")
        )
        assert late["status"]["reason"] == "NotInTopology"
        assert (await program.kubectl("exec", "web", "--", "echo", "here")).out == "here\n"
        await stream.check_line_arrives("while it is gone")
        await program.reload()
        found = await program.upper.until(path, lambda one: is_true(one, "InTopology"), limit=IN_FORCE)
        await program.upper.until(path, lambda one: not one["spec"].get("unschedulable"), limit=IN_FORCE)
        await program.upper.until(program.pod_path("late"), is_ready)
    after = await program.sites[A].read(program.pod_path("web"))
    assert after["metadata"]["uid"] == lower_object["metadata"]["uid"]
    await program.end_pods("late")


async def test_a_users_cordon_is_kept_while_a_lower_is_removed_and_put_back(program: Program) -> None:
    """Only the user who ran `kubectl cordon` removes it."""
    path = f"/api/v1/nodes/{program.nodes[A]}"
    await program.kubectl("cordon", program.nodes[A])
    await program.reload(without_lower(A))
    await program.upper.until(path, lambda one: condition_of(one, "InTopology").get("status") == "False")
    await program.reload()
    found = await program.upper.until(path, lambda one: is_true(one, "InTopology"))
    assert found["spec"]["unschedulable"] is True
    await program.kubectl("uncordon", program.nodes[A])
    found = await program.upper.until(path, lambda one: not one["spec"].get("unschedulable"))
    assert is_true(found, "Ready")


async def test_the_node_of_an_empty_lower_is_deleted_and_created_again_by_edits(program: Program) -> None:
    """Its lease is deleted too.

    Once the lower is put back, its node runs pods again, and streams of the other lower stay open.
    """
    path = f"/api/v1/nodes/{program.nodes[B]}"
    before = await node(program, B)
    async with followed_log(program) as stream:
        await program.reload(without_lower(B))
        await program.upper.gone(path, limit=IN_FORCE)
        lease = f"{NODE_LEASES}/{program.nodes[B]}"
        await program.upper.gone(lease)
        await program.reload()
        found = await program.wait_for_node(program.nodes[B])
        assert found["metadata"]["uid"] != before["metadata"]["uid"]
        await program.run_pod("joined", lower=B)
        assert (await program.kubectl("exec", "joined", "--", "echo", "there")).out == "there\n"
        await stream.check_line_arrives("after all that")
    await program.end_pods("joined")
    assert UPPER in program.sites


async def test_an_edited_kubelet_port_is_used(program: Program) -> None:
    """The node contains the new port, and exec works there."""
    (port,) = spare_ports(1)
    path = f"/api/v1/nodes/{program.nodes[A]}"
    await program.reload(edit_lower(A, node={"kubeletPort": port}))
    await program.upper.until(
        path, lambda one: one["status"]["daemonEndpoints"]["kubeletEndpoint"]["Port"] == port, limit=IN_FORCE
    )
    done = await program.kubectl("exec", "web", "--", "echo", "moved")
    assert done == (0, "moved\n", "")
    await program.reload()
    await program.upper.until(path, lambda one: one["status"]["daemonEndpoints"]["kubeletEndpoint"]["Port"] != port)
    assert (await program.kubectl("exec", "web", "--", "echo", "back")).out == "back\n"


async def test_an_edit_of_an_engines_own_ports_is_reported_to_need_a_restart(program: Program) -> None:
    """Telemetry and nodes keep their ports, and the rest of the edit comes into force."""
    path, before = f"/api/v1/nodes/{program.nodes[B]}", await node(program, B)
    places, ports = program.file(), spare_ports(2)
    moved = {name: {**places[name], "port": port} for name, port in zip(("telemetry", "kubelet"), ports, strict=True)}
    since = program.log.stat().st_size
    await program.reload(with_fields(**moved), edit_lower(B, node={"annotations": {"note": "moved"}}))
    found = await program.upper.until(path, lambda one: one["metadata"]["annotations"].get("note") == "moved")
    for section, port in zip(moved, ports, strict=True):
        old = places[section]["port"]
        assert (
            f"{section}.port: {old} -> {port}: this change requires a restart of the engine"
            in program.log.read_text()[since:]
        )
    assert found["status"]["daemonEndpoints"] == before["status"]["daemonEndpoints"]
    assert await is_healthy(places["telemetry"]["port"])
    assert not await is_healthy(ports[0])
    await program.reload()
    await program.upper.until(path, lambda one: "note" not in one["metadata"]["annotations"])


async def test_the_status_reports_an_upper_kubeconfig_with_which_the_engine_would_not_start(program: Program) -> None:
    """Otherwise a restart would end an engine that works."""
    since = program.log.stat().st_size
    await program.reload(with_fields(upper={"kubeconfig": "missing.kubeconfig"}))
    await wait_until(lambda: "the engine would not start with this change" in program.log.read_text()[since:])
    done = await run_command(
        [sys.executable, "-m", "tensile", "status", "-f", str(program.directory / "topology.yaml")]
    )
    assert "missing.kubeconfig: this change requires a restart of the engine; it would not start: upper: " in done.out
    await program.reload()


async def is_healthy(port: int) -> bool:
    """Report whether telemetry at a port answers that the engine is healthy."""
    try:
        async with aiohttp.ClientSession() as session, session.get(f"http://127.0.0.1:{port}/healthz") as answer:
            return answer.status == HTTPStatus.OK
    except aiohttp.ClientConnectionError:
        return False
