"""Streams of one pod as kubectl uses them: through the upper cluster, and to the lower directly.

The same pod runs on a real node or on a simulated one, so that each test holds for both.
"""

import asyncio
import fcntl
import os
import pty
import signal
import struct
import termios
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

from enginekit import UPPER, A, EngineHarness
from sitekit import Manifest, is_ready

from tensile.sandbox.real_node import IMAGE

PATIENCE = 180.0
PORTS = (7001, 7002, 7003)
PAGE = 1_000_000
SERVE = (
    "for p in 7001 7002 7003; do mkdir -p /srv/$p; yes $p | head -c 1000000 > /srv/$p/index.html; "
    "httpd -p $p -h /srv/$p; done; sleep 100000"
)


class KubectlResult(NamedTuple):
    """How a command ended."""

    code: int
    out: bytes
    err: str


class StreamHarness:
    """An engine over lower-a, whose node is real or simulated, and pods on it."""

    def __init__(self, harness: EngineHarness, *, is_real: bool) -> None:
        self.harness = harness
        self.is_real = is_real

    async def run_pod(self, name: str, script: str, **container: Any) -> None:
        """Create an upper pod whose one container runs a shell script, and wait until it is ready."""
        await self.create_pod(name, [self.container("main", script, **container)])
        await self.harness.upper.until(self.harness.pod_path(name), is_ready)

    async def create_pod(self, name: str, containers: list[Manifest], **spec: Any) -> None:
        """Create an upper pod of such containers."""
        whole = {"containers": containers, "terminationGracePeriodSeconds": 1, **spec}
        await self.harness.bind(name, whole, annotations={"sandbox.tensile-kube.io/run": "command"})

    async def run_foreign_pod(self, name: str, script: str) -> None:
        """Create a lower pod that is not mirrored, on the same node, and wait until it is ready."""
        spec = {"containers": [self.container("main", script)], "terminationGracePeriodSeconds": 1}
        lower = self.harness.sites[A]
        await lower.create(self.harness.path("pods"), {"metadata": {"name": name}, "spec": spec})
        await lower.until(self.harness.pod_path(name), is_ready)

    def container(self, name: str, script: str, **more: Any) -> Manifest:
        """Make a container that runs a shell script."""
        image = {"image": IMAGE, "imagePullPolicy": "IfNotPresent"} if self.is_real else {"image": "none"}
        return {"name": name, **image, "command": ["sh", "-c", script], **more}

    async def start(self, *arguments: str, cluster: str = UPPER, websocket: bool = True) -> Process:
        """Start kubectl in the namespace, with pipes."""
        command = self.harness.sandbox.kubectl_command("-n", self.harness.namespace, *arguments, cluster=cluster)
        return await asyncio.create_subprocess_exec(
            *command, stdin=PIPE, stdout=PIPE, stderr=PIPE, limit=1 << 20, env=kubectl_environment(websocket=websocket)
        )

    async def run(
        self, *arguments: str, cluster: str = UPPER, stdin: bytes = b"", websocket: bool = True
    ) -> KubectlResult:
        """Run kubectl until it ends."""
        process = await self.start(*arguments, cluster=cluster, websocket=websocket)
        async with asyncio.timeout(PATIENCE):
            out, err = await process.communicate(stdin)
        assert process.returncode is not None
        return KubectlResult(process.returncode, out, err.decode())

    async def run_with_open_stdin(self, *arguments: str, stdin: bytes, cluster: str = UPPER) -> KubectlResult:
        """Run kubectl with some input, and keep its stdin open until it ends by itself."""
        process = await self.start(*arguments, cluster=cluster)
        assert process.stdin
        assert process.stdout
        assert process.stderr
        process.stdin.write(stdin)
        async with asyncio.timeout(PATIENCE):
            out, err = await asyncio.gather(process.stdout.read(), process.stderr.read())
            code = await process.wait()
        process.stdin.close()
        return KubectlResult(code, out, err.decode())

    async def run_on_both_paths(self, *arguments: str, stdin: bytes = b"", websocket: bool = True) -> KubectlResult:
        """Run kubectl through the upper and directly at the lower, require equal results, and return one."""
        through = await self.run(*arguments, stdin=stdin, websocket=websocket)
        direct = await self.run(*arguments, cluster=A, stdin=stdin, websocket=websocket)
        assert through == direct
        return through

    @asynccontextmanager
    async def terminal(self, *arguments: str, cluster: str = UPPER) -> AsyncIterator["Terminal"]:
        """Start kubectl on a terminal of 30 rows and 100 columns."""
        ours, its = pty.openpty()
        command = self.harness.sandbox.kubectl_command("-n", self.harness.namespace, *arguments, cluster=cluster)
        _resize(its, 30, 100)
        process = await asyncio.create_subprocess_exec(
            *command, stdin=its, stdout=its, stderr=its, env=kubectl_environment()
        )
        os.close(its)
        opened = Terminal(process, ours)
        try:
            yield opened
        finally:
            opened.close()
            if process.returncode is None:
                process.kill()
            await process.wait()

    @asynccontextmanager
    async def port_forward(self, pod: str, ports: tuple[int, ...], cluster: str = UPPER) -> AsyncIterator[list[int]]:
        """Forward ports of a pod, and yield the local ports in the same order."""
        process = await self.start(
            "port-forward", "--address=127.0.0.1", f"pod/{pod}", *(f":{port}" for port in ports), cluster=cluster
        )
        try:
            assert process.stdout
            async with asyncio.timeout(PATIENCE):
                lines = [(await process.stdout.readline()).decode() for _ in ports]
            yield [int(line.split("127.0.0.1:")[1].split()[0]) for line in lines]
        finally:
            process.kill()
            await process.communicate()

    @asynccontextmanager
    async def serve_pages(self, name: str) -> AsyncIterator[tuple[int, ...]]:
        """Serve a page on three ports of a pod: its own, or this machine's if all pods share its network."""
        if self.is_real:
            await self.run_pod(name, SERVE)
            yield PORTS
            return
        await self.run_pod(name, "sleep 100000")
        servers = [await asyncio.start_server(_answer, "127.0.0.1", 0) for _ in PORTS]
        yield tuple(int(server.sockets[0].getsockname()[1]) for server in servers)
        for server in servers:
            server.close()
            await server.wait_closed()


class Terminal:
    """A kubectl on a terminal that the test controls."""

    def __init__(self, process: Process, descriptor: int) -> None:
        self.process = process
        self._descriptor = descriptor
        self._output = b""
        self._output_changed = asyncio.Event()
        asyncio.get_running_loop().add_reader(descriptor, self._read)

    def type(self, text: str) -> None:
        """Type a line."""
        os.write(self._descriptor, text.encode() + b"\n")

    def resize(self, rows: int, columns: int) -> None:
        """Change the terminal's size."""
        _resize(self._descriptor, rows, columns)
        self.process.send_signal(signal.SIGWINCH)

    async def wait_for_output(self, text: str) -> None:
        """Wait until the output contains some words, and drop the output up to them."""
        async with asyncio.timeout(PATIENCE):
            while text.encode() not in self._output:
                self._output_changed.clear()
                await self._output_changed.wait()
        self._output = self._output.partition(text.encode())[2]

    async def type_until_shown(self, text: str, answer: str) -> None:
        """Type a line repeatedly until an answer is shown, because no event announces that the change took effect."""
        async with asyncio.timeout(PATIENCE):
            while answer.encode() not in self._output:
                self.type(text)
                self._output_changed.clear()
                await asyncio.wait([asyncio.create_task(self._output_changed.wait())], timeout=0.2)
        self._output = self._output.partition(answer.encode())[2]

    def close(self) -> None:
        """Close the terminal."""
        if self._descriptor >= 0:
            asyncio.get_running_loop().remove_reader(self._descriptor)
            os.close(self._descriptor)
        self._descriptor = -1

    def _read(self) -> None:
        try:
            self._output += os.read(self._descriptor, 1 << 16)
        except OSError:  # kubectl has ended
            asyncio.get_running_loop().remove_reader(self._descriptor)
        self._output_changed.set()


def kubectl_environment(*, websocket: bool = True) -> dict[str, str]:
    """Return kubectl's variables for WebSocket, or for SPDY."""
    variables = {key: value for key, value in os.environ.items() if key != "KUBECONFIG"}
    names = ("KUBECTL_REMOTE_COMMAND_WEBSOCKETS", "KUBECTL_PORT_FORWARD_WEBSOCKETS")
    return {**variables, **dict.fromkeys(names, str(websocket).lower())}


def page(port: int) -> bytes:
    """Return the page that is served on a port."""
    return (b"%d\n" % port * (PAGE // len(b"%d\n" % port) + 1))[:PAGE]


async def fetch_page(port: int) -> bytes:
    """Fetch the page at a port of this machine; b"" if the connection breaks."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(b"GET / HTTP/1.0\r\n\r\n")
        async with asyncio.timeout(PATIENCE):
            return (await reader.read()).partition(b"\r\n\r\n")[2]
    except ConnectionError:
        return b""
    finally:
        writer.close()


async def _answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Serve the page of the port that was called."""
    await reader.readuntil(b"\r\n\r\n")
    writer.write(b"HTTP/1.0 200 OK\r\n\r\n" + page(writer.get_extra_info("sockname")[1]))
    await writer.drain()
    writer.close()


def _resize(descriptor: int, rows: int, columns: int) -> None:
    fcntl.ioctl(descriptor, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
