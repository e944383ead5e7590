"""Tests of kubectl logs and exec through a real upper apiserver, the tested server, and a real lower apiserver."""

import asyncio
import ssl
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta

import orjson
import pytest
from kubelet_crowd import crowd
from kubelet_lab import HttpStream, NamedPods, RecordingLogger, leak_watch, request, wait_until
from kubelet_pki import Authority, Identity, load
from kubelet_twins import CONTAINER, LOWER, POD, SPDY, WEBSOCKET, TwinPods, digest

from tensile.kube.client import HttpCluster
from tensile.kube.credentials import from_kubeconfig
from tensile.kubelet.api.auth import Authenticator, Authorizer
from tensile.kubelet.api.certificates import ClientCA, ServingCertificate, ServingFiles
from tensile.kubelet.api.connection import ConnectionLimits
from tensile.kubelet.api.requests import PodTarget
from tensile.kubelet.api.server import KubeletServer, NodeEndpoint
from tensile.kubelet.api.service import RequestAuth
from tensile.objects import CONFIG_MAP, UPPER, Ref

pytestmark = pytest.mark.real

PATIENCE = 300.0
SOON = ConnectionLimits().handshake - 1.0
"""Seconds: less than the time that a connection may wait."""
SEVERAL = tuple(f"127.0.0.{number}" for number in range(2, 22))
BIG = 100 * 1024 * 1024
WAYS = pytest.mark.parametrize(
    ("pod", "speaks"),
    [(WEBSOCKET, WEBSOCKET), (SPDY, WEBSOCKET), (WEBSOCKET, SPDY), (SPDY, SPDY)],
    ids=["websocket-to-us", "websocket-turned-spdy", "spdy-past-websocket-node", "spdy-to-us"],
)
AUTHORITIES = Ref(UPPER, CONFIG_MAP, "kube-system", "extension-apiserver-authentication")


def seats(twins: TwinPods, pods: dict[str, NamedPods]) -> dict[str, NodeEndpoint]:
    """Return the endpoints of the two nodes with the given pods of each."""
    return {node: NodeEndpoint(("127.0.0.1", twins.ports[kind]), pods[kind]) for kind, node in twins.nodes.items()}


@pytest.fixture
async def server(twins: TwinPods) -> AsyncIterator[KubeletServer]:
    """Serve the kubelet API of both nodes as the engine does; afterwards no task and no descriptor may be left."""
    async with leak_watch():
        upper = HttpCluster(UPPER, await from_kubeconfig(twins.directory / "upper.kubeconfig"))
        lower = HttpCluster(LOWER, await from_kubeconfig(twins.directory / f"{LOWER}.kubeconfig"))

        async def authority() -> str:
            return str(orjson.loads(await upper.read(AUTHORITIES))["data"]["client-ca-file"])

        log = RecordingLogger()
        files = ServingFiles(twins.directory / "kubelet.crt", twins.directory / "kubelet.key")
        serving = ServingCertificate(log, "127.0.0.1", files)
        reviews = Authenticator(upper, log), Authorizer(upper, log)
        running = KubeletServer(RequestAuth(serving, ClientCA(log, source=authority), *reviews), log)
        target = PodTarget(lower, twins.namespace, POD, frozenset({CONTAINER}))
        pods = {kind: NamedPods({(twins.namespace, kind): target}) for kind in twins.nodes}
        assert await running.serve(seats(twins, pods)) == {}
        yield running
        await running.close()
        await upper.close()
        await lower.close()


@WAYS
async def test_exec_returns_output_errors_and_exit_code(
    twins: TwinPods, server: KubeletServer, pod: str, speaks: str
) -> None:
    """Kubectl receives stdout, stderr and a non-zero exit code by every protocol."""
    done = await twins.run("exec", pod, "--", "sh", "-c", "echo out; echo err >&2; exit 3", speaks=speaks)
    assert (done.code, done.out) == (3, b"out\n")
    assert done.err.splitlines()[0] == "err"
    assert "exit code 3" in done.err


@WAYS
async def test_exec_forwards_standard_input(twins: TwinPods, server: KubeletServer, pod: str, speaks: str) -> None:
    """Piped input reaches the command completely, and its output comes back."""
    content = b"".join(b"line %d\n" % number for number in range(50_000))
    done = await twins.run("exec", "-i", pod, "--", "cat", speaks=speaks, stdin=content)
    assert done.code == 0, done.err
    assert done.out == content


@WAYS
async def test_large_output_arrives_exactly(twins: TwinPods, server: KubeletServer, pod: str, speaks: str) -> None:
    """100 MB by WebSocket, or 10 MB by SPDY, arrive byte by byte as the command wrote them.

    The command ends when all of it has been read, because apiservers close SPDY connections without waiting for the
    reader. kubectl pings those connections every five seconds, and a busy machine cannot transfer 100 MB before a ping
    fails.
    """
    size = BIG if pod == speaks == WEBSOCKET else BIG // 10
    output = f"seq 1 20000000 | head -c {size}"
    directly = await asyncio.create_subprocess_exec("sh", "-c", output, stdout=asyncio.subprocess.PIPE)
    assert directly.stdout
    expected = await digest(directly.stdout, size)
    await directly.wait()
    command = f"{output}; timeout {PATIENCE:.0f} cat"
    process = await twins.start("exec", "-i", pod, "--", "sh", "-c", command, speaks=speaks)
    assert process.stdin
    assert process.stdout
    async with asyncio.timeout(PATIENCE):
        assert await digest(process.stdout, size) == expected
    process.stdin.close()
    assert await process.communicate() == (b"", b"")
    assert process.returncode == 0


async def test_an_exec_of_an_unknown_command_fails_as_on_the_lower(twins: TwinPods, server: KubeletServer) -> None:
    """Kubectl gets the same exit code as against the lower directly, and the error names the command."""
    through = await twins.run("exec", WEBSOCKET, "--", "/no/such/command")
    direct = await twins.run("exec", POD, "--", "/no/such/command", cluster=LOWER)
    assert through.code == direct.code != 0
    assert "/no/such/command" in through.err


def write_log(twins: TwinPods, lines: int) -> None:
    """Write a log whose lines are a minute apart, the last one a minute old."""
    now = datetime.now(UTC)
    stamps = ((now - timedelta(minutes=lines - number)).isoformat().replace("+00:00", "Z") for number in range(lines))
    twins.logs.parent.mkdir(parents=True, exist_ok=True)
    twins.logs.write_text("".join(f"{stamp} stdout F line {number}\n" for number, stamp in enumerate(stamps)))


@pytest.mark.parametrize(
    ("flags", "lines"),
    [
        ([], 200),
        (["--tail=5"], 5),
        (["--tail=0"], 0),
        (["--since=30m30s"], 30),
        (["--timestamps"], 200),
        (["--timestamps", "--tail=3", f"--container={CONTAINER}"], 3),
        (["--limit-bytes=14"], 2),
    ],
)
async def test_each_flag_of_kubectl_logs_returns_the_same_as_on_the_lower(
    twins: TwinPods, server: KubeletServer, flags: list[str], lines: int
) -> None:
    """The output and exit code equal those of kubectl logs against the lower directly."""
    write_log(twins, 200)
    through = await twins.run("logs", WEBSOCKET, *flags)
    direct = await twins.run("logs", POD, *flags, cluster=LOWER)
    assert through == direct
    assert (through.code, through.out.count(b"\n")) == (0, lines)


async def test_logs_since_time_returns_the_lines_after_that_time(twins: TwinPods, server: KubeletServer) -> None:
    """Kubectl logs --since-time returns only the lines written after that time."""
    write_log(twins, 200)
    since = (datetime.now(UTC) - timedelta(minutes=10, seconds=30)).strftime("%Y-%m-%dT%H:%M:%SZ")
    through = await twins.run("logs", SPDY, f"--since-time={since}")
    assert through.out == b"".join(b"line %d\n" % number for number in range(190, 200))


async def test_logs_follow_delivers_each_line_immediately(twins: TwinPods, server: KubeletServer) -> None:
    """With -f each line arrives before the next is written, and the stream ends when kubectl is killed."""
    write_log(twins, 1)
    process = await twins.start("logs", "-f", WEBSOCKET)
    assert process.stdout
    async with asyncio.timeout(PATIENCE):
        assert await process.stdout.readline() == b"line 0\n"
        for number in range(1, 6):
            with twins.logs.open("a") as log:
                log.write(f"{datetime.now(UTC).isoformat().replace('+00:00', 'Z')} stdout F line {number}\n")
            assert await process.stdout.readline() == b"line %d\n" % number
        assert server.streams()[twins.nodes[WEBSOCKET]] == 1
        process.kill()
        await process.communicate()
        await wait_until(lambda: set(server.streams().values()) == {0})


async def test_a_pod_without_a_lower_pod_gets_not_found(twins: TwinPods, server: KubeletServer) -> None:
    """Logs and exec of an upper pod that is not mirrored fail, and nothing is sent to the lower."""
    begun = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    await server.serve(seats(twins, {kind: NamedPods() for kind in twins.nodes}))
    logs = await twins.run("logs", SPDY)
    done = await twins.run("exec", SPDY, "--", "id")
    assert (logs.code, done.code) == (1, 1)
    assert "NotFound" in logs.err
    assert "is not on node" in done.err
    assert twins.count_lower_requests(begun) == 0


@pytest.mark.parametrize("kind", ["idle", "half a handshake"])
@pytest.mark.parametrize("hosts", [("127.0.0.1",), SEVERAL], ids=["one", "several"])
async def test_floods_of_connections_to_the_port_do_not_delay_logs(
    twins: TwinPods, server: KubeletServer, kind: str, hosts: tuple[str, ...]
) -> None:
    """Logs arrive in time despite 600 waiting connections, even from the apiserver's own address."""
    write_log(twins, 1)
    assert (await twins.run("logs", SPDY)).out == b"line 0\n"
    async with crowd(twins.ports[SPDY], kind, 600, hosts):
        for _ in range(2):
            async with asyncio.timeout(SOON):
                assert (await twins.run("logs", SPDY)).out == b"line 0\n"
        assert len(server._limiter) <= ConnectionLimits().waiting


@pytest.mark.parametrize("speaks", [WEBSOCKET, SPDY])
async def test_port_forward_reaches_the_lower_pod(twins: TwinPods, server: KubeletServer, speaks: str) -> None:
    """Kubectl port-forward through the upper cluster carries bytes in both directions."""

    async def shout(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write((await reader.readline()).upper())
        writer.close()
        await writer.wait_closed()

    listening = await asyncio.start_server(shout, "127.0.0.1", 0)
    port = listening.sockets[0].getsockname()[1]
    process = await twins.start("port-forward", f"pod/{speaks}", f":{port}", speaks=speaks)
    try:
        async with asyncio.timeout(PATIENCE):
            assert await forwarded(process, b"hello\n") == b"HELLO\n"
    finally:
        process.kill()
        await process.communicate()
        listening.close()
        await listening.wait_closed()


async def forwarded(process: asyncio.subprocess.Process, line: bytes) -> bytes:
    """Send a line to the port that kubectl forwards, and return the answer."""
    assert process.stdout
    first = (await process.stdout.readline()).decode()
    near = first.split("127.0.0.1:")[1].split()[0]
    stream = HttpStream(*await asyncio.open_connection("127.0.0.1", int(near)))
    try:
        await stream.send(line)
        return await stream.read_to_end()
    finally:
        await stream.close()


def client(twins: TwinPods, identity: Identity | None) -> ssl.SSLContext:
    """Return the TLS context of a client that connects to a node directly."""
    context = ssl.create_default_context(cafile=str(twins.directory / "upper" / "pki" / "ca.crt"))
    if identity is not None:
        load(context, identity)
    return context


async def status(twins: TwinPods, tls: ssl.SSLContext, first: str, *fields: str) -> int:
    """Send a request to a node directly and return the status, or 0 if TLS already failed."""
    try:
        connection = await asyncio.open_connection("127.0.0.1", twins.ports[SPDY], ssl=tls)
    except OSError:
        return 0
    stream = HttpStream(*connection)
    try:
        await stream.send(request(first, *fields))
        return (await stream.head()).status
    except (OSError, asyncio.IncompleteReadError):
        return 0
    finally:
        await stream.close()


async def test_unauthorized_clients_get_401_403_or_a_tls_failure(twins: TwinPods, server: KubeletServer) -> None:
    """Without credentials it is 401, without rights 403, with another CA TLS fails; nothing reaches the lower."""
    begun = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    token = twins.check_output("upper", "-n", twins.namespace, "create", "token", "default").strip()
    logs = f"GET /containerLogs/{twins.namespace}/{SPDY}/{CONTAINER}"
    run = f"POST /exec/{twins.namespace}/{SPDY}/{CONTAINER}?output=1&command=id"
    upgrade = ("Connection: Upgrade", "Upgrade: SPDY/3.1")
    foreign = Authority("strangers").issue("kube-apiserver-kubelet-client", ("system:masters",))
    for first in (logs, run, "GET /pods", "GET /nothing"):
        assert await status(twins, client(twins, None), first, *upgrade) == 401
        assert await status(twins, client(twins, None), first, "Authorization: Bearer x.y.z", *upgrade) == 401
        assert await status(twins, client(twins, None), first, f"Authorization: Bearer {token}", *upgrade) == 403
        assert await status(twins, client(twins, foreign), first, *upgrade) == 0
    assert twins.count_lower_requests(begun) == 0
    assert (await twins.run("logs", SPDY)).code == 0
    assert twins.count_lower_requests(begun) > 0
