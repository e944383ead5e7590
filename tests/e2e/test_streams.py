"""Tests of interactive streams through the upper cluster against the same streams in the lower cluster.

They run on simulated nodes and on a real node.
"""

import asyncio
import hashlib
import os
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from enginekit import UPPER, A, running_engine, wait_until
from sitekit import is_ready
from streamkit import PATIENCE, StreamHarness, fetch_page, page

from tensile.sandbox import real_node
from tensile.sandbox.binaries import cache_directory
from tensile.sandbox.real_node import IMAGE
from tensile.sandbox.sandbox import Sandbox
from tensile.sandbox.state import Options

pytestmark = [pytest.mark.real, pytest.mark.asyncio(loop_scope="module")]

ASK = 'echo begun; read line; echo "got $line"; read more; exit 3'
SLEEP = "exec sleep 100000"
REFUSED = {
    ("logs", "--previous", "plain"): 'previous terminated container "main" in pod "plain" not found',
    ("logs", "pulls"): 'container "main" in pod "pulls" is waiting to start: ErrImageNeverPull',
    ("exec", "half", "-c", "gone", "--", "true"): 'container not found ("gone")',
    ("attach", "half", "-c", "gone"): "container gone not found in pod half",
}
"""Commands that a kubelet refuses, and kubectl's last line for them."""
BIG = 100 * 1000 * 1000
WAYS = pytest.mark.parametrize("websocket", [True, False], ids=["websocket", "spdy"])
CLUSTERS = pytest.mark.parametrize("cluster", [UPPER, A], ids=["through", "direct"])


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=["in name only", "real node"])
async def streams(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[StreamHarness]:
    """Start an engine on either kind of node, with a pod `plain` that only sleeps."""
    is_real = request.param == "real node"
    directory = tmp_path_factory.mktemp("streams")
    async with AsyncExitStack() as stack:
        if is_real:
            sandbox = stack.enter_context(_real_sandbox(directory / "sandbox"))
        else:
            sandbox = request.getfixturevalue("sandbox")
        harness = await stack.enter_async_context(running_engine(sandbox, directory))
        made = StreamHarness(harness, is_real=is_real)
        await made.run_pod("plain", "sleep 100000")
        yield made


def _real_sandbox(directory: Path) -> Sandbox:
    """Start a sandbox whose first lower has a real node, or skip with the reason why it cannot have one."""
    why = real_node.obstacle((directory, cache_directory(os.environ)), os.environ)
    if why:
        pytest.skip(f"this machine cannot run a real node: {why}")
    return Sandbox.start(directory, Options(nodes=1, real_node=True), progress=print)


@WAYS
async def test_exec_separates_output_errors_and_exit_code(streams: StreamHarness, *, websocket: bool) -> None:
    """Standard output, standard error and the exit code are the same as in the lower cluster."""
    done = await streams.run_on_both_paths(
        "exec", "plain", "--", "sh", "-c", "echo out; echo err >&2; exit 3", websocket=websocket
    )
    assert (done.code, done.out) == (3, b"out\n")
    assert done.err.startswith("err\n")


@WAYS
async def test_exec_transfers_input_byte_for_byte(streams: StreamHarness, *, websocket: bool) -> None:
    """The command gets five megabytes and then the end of the input."""
    content = os.urandom(5_000_000)
    done = await streams.run_on_both_paths("exec", "-i", "plain", "--", "cat", stdin=content, websocket=websocket)
    assert done == (0, content, "")


async def test_exec_returns_the_exit_code_of_a_command_that_ends_before_its_input(streams: StreamHarness) -> None:
    """The command reads only three bytes; kubectl may print an error about the rest."""
    if streams.is_real:
        pytest.skip("containerd 1.6 waits for such input indefinitely, also without tensile")
    for cluster in (UPPER, A):
        done = await streams.run(
            "exec", "-i", "plain", "--", "sh", "-c", "head -c 3; exit 5", cluster=cluster, stdin=b"abc" * 100_000
        )
        assert (done.code, done.out) == (5, b"abc"), done.err


@CLUSTERS
async def test_exec_opens_a_terminal_of_the_callers_size(streams: StreamHarness, cluster: str) -> None:
    """`exec -it` follows changes of the size, and ends with the command's exit code."""
    async with streams.terminal("exec", "-it", "plain", "--", "sh", cluster=cluster) as terminal:
        await terminal.type_until_shown("stty size", "30 100")
        terminal.resize(41, 123)
        await terminal.type_until_shown("stty size", "41 123")
        terminal.type("tty && exit 7")
        await terminal.wait_for_output("/dev/pts/")
        async with asyncio.timeout(PATIENCE):
            assert await terminal.process.wait() == 7


@CLUSTERS
async def test_attach_connects_to_the_containers_process(streams: StreamHarness, cluster: str) -> None:
    """The process answers the input; its restart is mirrored, and `logs --previous` has the earlier output."""
    name = f"asks-{'above' if cluster == UPPER else 'below'}"
    await streams.run_pod(name, ASK, stdin=True)
    await typed(streams, name, cluster)
    restarted = await streams.harness.upper.until(
        streams.harness.pod_path(name), lambda pod: pod["status"]["containerStatuses"][0]["restartCount"] >= 1
    )
    assert restarted["status"]["containerStatuses"][0]["lastState"]["terminated"]["exitCode"] == 3
    previous = await streams.run_on_both_paths("logs", "--previous", name)
    assert (previous.code, previous.out) == (0, b"begun\ngot abc\n")


async def typed(streams: StreamHarness, name: str, cluster: str) -> None:
    """Attach to a container, write a line, read its answer, and let the container end."""
    process = await streams.start("attach", "-i", "--quiet", name, cluster=cluster)
    assert process.stdin
    assert process.stdout
    async with asyncio.timeout(PATIENCE):
        process.stdin.write(b"abc\n")
        assert await process.stdout.readline() == b"got abc\n"
        await process.communicate(b"end\n")
    assert process.returncode == 0


@CLUSTERS
async def test_attach_opens_the_containers_terminal_with_the_callers_size(streams: StreamHarness, cluster: str) -> None:
    """`attach -it` follows changes of the size."""
    name = f"shell-{'above' if cluster == UPPER else 'below'}"
    await streams.run_pod(name, "exec sh", stdin=True, tty=True)
    async with streams.terminal("attach", "-it", name, cluster=cluster) as terminal:
        await terminal.type_until_shown("stty size", "30 100")
        terminal.resize(52, 90)
        await terminal.type_until_shown("stty size", "52 90")


async def test_three_ports_are_forwarded_at_once(streams: StreamHarness) -> None:
    """One port-forward serves three ports in parallel, each with its own page."""
    async with streams.serve_pages("serves") as ports:
        for cluster in (UPPER, A):
            async with streams.port_forward("serves", ports, cluster) as near:
                await asyncio.gather(*(_is_page(mine, port) for mine, port in zip(near, ports, strict=True)))
                found = await asyncio.gather(*(fetch_page(port) for port in near * 3))
            assert found == [page(port) for port in ports] * 3


async def _is_page(near: int, port: int) -> None:
    """Wait until the server at a port has started."""
    async with asyncio.timeout(PATIENCE):
        while await fetch_page(near) != page(port):  # noqa: ASYNC110 - no event reports that a server listens
            await asyncio.sleep(0.05)


async def test_files_are_copied_in_both_directions(streams: StreamHarness, tmp_path: Path) -> None:
    """`kubectl cp` copies 100 MB, on a real node 20 MB.

    A file that is copied in through one cluster is the same when it is copied out through the other.
    """
    sent = tmp_path / "sent"
    sent.write_bytes(os.urandom(BIG // 5 if streams.is_real else BIG))
    for there, back in ((UPPER, A), (A, UPPER)):
        copied = await streams.run("cp", str(sent), f"plain:{_place(streams)}big", cluster=there)
        assert copied.code == 0, copied.err
        got = tmp_path / f"from-{back}"
        copied = await streams.run("cp", f"plain:{_place(streams)}big", str(got), cluster=back)
        assert copied.code == 0, copied.err
        assert _digest(got) == _digest(sent)


async def test_logs_are_the_same_through_the_upper_cluster_as_directly(streams: StreamHarness) -> None:
    """This holds without flags and for --tail, --limit-bytes and --timestamps."""
    await streams.run_pod("counts", "seq 1 2000; sleep 100000")
    async with asyncio.timeout(PATIENCE):
        while (await streams.run("logs", "--tail=1", "counts", cluster=A)).out != b"2000\n":  # noqa: ASYNC110 - as above
            await asyncio.sleep(0.05)
    assert (await streams.run_on_both_paths("logs", "counts")).out == b"".join(
        b"%d\n" % number for number in range(1, 2001)
    )
    assert (await streams.run_on_both_paths("logs", "counts", "--tail=2")).out == b"1999\n2000\n"
    assert (await streams.run_on_both_paths("logs", "counts", "--limit-bytes=5")).out == b"1\n2\n3"
    assert (await streams.run_on_both_paths("logs", "counts", "--timestamps", "--tail=1")).out.endswith(b"Z 2000\n")


async def test_a_log_is_followed_until_the_container_ends(streams: StreamHarness) -> None:
    """`logs -f` prints each line when it is written, and exits with the container."""
    await streams.run_pod("followed", ASK, stdin=True)
    follower = await streams.start("logs", "-f", "followed")
    assert follower.stdout
    async with asyncio.timeout(PATIENCE):
        assert await follower.stdout.readline() == b"begun\n"
        await typed(streams, "followed", UPPER)
        assert (await follower.communicate())[0] == b"got abc\n"


async def test_debug_opens_a_shell_in_the_pod(streams: StreamHarness) -> None:
    """`kubectl debug` adds a container with the pod's network, attaches to it, and its exit code is mirrored."""
    if not streams.is_real:
        pytest.skip("on a node in name only, an added container runs nothing")
    await streams.run_pod("debugged", "echo page > /tmp/index.html; httpd -f -p 80 -h /tmp")
    image = (f"--image={IMAGE}", "--image-pull-policy=IfNotPresent")
    shell = await streams.start("debug", "-i", "-q", "debugged", *image, "-c", "probe", "--", "sh")
    assert shell.stdin
    assert shell.stdout
    async with asyncio.timeout(PATIENCE):
        shell.stdin.write(b"wget -q -O - http://127.0.0.1/\n")
        assert await shell.stdout.readline() == b"page\n"
        await shell.communicate(b"exit 6\n")
    await streams.harness.upper.until(streams.harness.pod_path("debugged"), lambda one: _probe_code(one) == 6)


async def test_debug_with_a_target_sees_the_targets_processes(streams: StreamHarness) -> None:
    """The output is the same as for a pod of the lower cluster.

    The container sleeps for a second after its output, because a container's end can truncate it, also directly in the
    lower cluster.
    """
    if not streams.is_real:
        pytest.skip("on a node in name only, an added container runs nothing")
    flags = ("-i", "-q", f"--image={IMAGE}", "--image-pull-policy=IfNotPresent", "-c", "sees", "--target=main")
    await streams.run_pod("seen", SLEEP)
    await streams.run_foreign_pod("seen-below", SLEEP)
    command = ("--", "sh", "-c", "read line; cat /proc/1/comm; ps | grep -c 'sleep 10000[0]'; sleep 1")
    above = await streams.run_with_open_stdin("debug", "seen", *flags, *command, stdin=b"go\n")
    below = await streams.run_with_open_stdin("debug", "seen-below", *flags, *command, stdin=b"go\n", cluster=A)
    assert above == below
    assert (above.code, above.out) == (0, b"sleep\n1\n")


async def test_refusals_of_a_real_kubelet_are_returned_unchanged(streams: StreamHarness) -> None:
    """The messages are the same as directly in the lower cluster."""
    if not streams.is_real:
        pytest.skip("there is no real kubelet")
    ended = streams.container("gone", "exit 0")
    await streams.create_pod("half", [streams.container("main", SLEEP), ended], restartPolicy="Never")
    await streams.create_pod("pulls", [streams.container("main", SLEEP, image="nowhere:1", imagePullPolicy="Never")])
    path = streams.harness.pod_path
    await streams.harness.upper.until(path("half"), lambda pod: "terminated" in _state(pod, "gone"))
    await streams.harness.upper.until(path("pulls"), lambda pod: "ErrImageNeverPull" in str(_state(pod, "main")))
    for arguments, message in REFUSED.items():
        for websocket in (True, False):
            done = await streams.run_on_both_paths(*arguments, websocket=websocket)
            assert done.code == 1
            assert message in done.err.splitlines()[-1]


async def test_a_failing_liveness_probe_is_mirrored_with_the_restart(streams: StreamHarness) -> None:
    """The upper pod has the restart count, exit code and reason of the lower one, and an Event of the probe."""
    if not streams.is_real:
        pytest.skip("on a node in name only, nothing is probed")
    probe = {"exec": {"command": ["sh", "-c", "echo sick; false"]}, "periodSeconds": 1, "failureThreshold": 1}
    await streams.create_pod(
        "sick", [streams.container("main", "trap 'exit 4' TERM; sleep 100000 & wait", livenessProbe=probe)]
    )
    path = streams.harness.pod_path("sick")
    await streams.harness.upper.until(path, lambda pod: "terminated" in _status(pod, "main")["lastState"], PATIENCE)
    lower = await streams.harness.sites[A].read(path)
    upper_object = await streams.harness.upper.until(path, lambda pod: _fate(pod) == _fate(lower))
    assert _fate(upper_object)[1:] == (4, "Error")
    fields = "involvedObject.name=sick,reason=Unhealthy"
    events = await streams.harness.upper.until_all(f"{streams.harness.path('events')}?fieldSelector={fields}", bool)
    assert {one["message"] for one in events.values()} == {"Liveness probe failed: sick\n"}


async def test_the_readiness_of_a_pod_follows_its_probe(streams: StreamHarness) -> None:
    """The upper pod is ready when the lower probe passes, and not ready when it fails again."""
    if not streams.is_real:
        pytest.skip("on a node in name only, nothing is probed")
    probe = {"exec": {"command": ["test", "-f", "/tmp/good"]}, "periodSeconds": 1, "failureThreshold": 1}
    await streams.create_pod("moody", [streams.container("main", SLEEP, readinessProbe=probe)])
    path = streams.harness.pod_path("moody")
    await streams.harness.upper.until(path, lambda pod: "running" in _state(pod, "main") and not is_ready(pod))
    for change, ready in (("touch", True), ("rm", False)):
        assert (await streams.run("exec", "moody", "--", change, "/tmp/good")).code == 0
        await streams.harness.upper.until(path, lambda pod, ready=ready: is_ready(pod) is ready)


async def test_no_stream_is_left_open_in_the_engine(streams: StreamHarness) -> None:
    """Every stream of the tests before has been closed."""
    await wait_until(lambda: not any(streams.harness.engine.ports._server.streams().values()))


def _status(pod: dict[str, Any], container: str) -> dict[str, Any]:
    """Return the status of a container, an empty one if it has none."""
    (status,) = (
        one for one in pod["status"].get("containerStatuses", [{"name": container}]) if one["name"] == container
    )
    return {"state": {}, "lastState": {}, **status}


def _state(pod: dict[str, Any], container: str) -> dict[str, Any]:
    state: dict[str, Any] = _status(pod, container)["state"]
    return state


def _fate(pod: dict[str, Any]) -> tuple[int, int, str]:
    """Return how often the first container was restarted, and how it last ended."""
    status = _status(pod, "main")
    ended = status["lastState"]["terminated"]
    return status["restartCount"], ended["exitCode"], ended["reason"]


def _probe_code(pod: dict[str, Any]) -> int | None:
    """Return the exit code of a pod's first debug container, None if it has not ended."""
    (status,) = pod["status"].get("ephemeralContainerStatuses") or ({},)
    code: int | None = status.get("state", {}).get("terminated", {}).get("exitCode")
    return code


def _place(streams: StreamHarness) -> str:
    """Return a directory of the pod's own; on a simulated node, this is the working directory of commands."""
    return "/tmp/" if streams.is_real else ""


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
