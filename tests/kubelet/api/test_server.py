"""Tests of listeners that start and stop: other streams are not affected, and nothing is left behind."""

import asyncio
import socket
from collections.abc import Coroutine
from pathlib import Path

import pytest
from kubelet_lab import (
    CONTAINERS,
    NODE,
    PATIENCE,
    FakeUpperCluster,
    HttpHead,
    HttpStream,
    KubeletApiHarness,
    NamedPods,
    RecordingLogger,
    answering,
    is_alive,
    open_exec_stream,
    request,
    wait_until,
)

from bench.kit.spareports import spare_port
from tensile.errors import TensileError
from tensile.kubelet.api.auth import Authenticator, Authorizer
from tensile.kubelet.api.certificates import ClientCA, ServingCertificate, ServingFiles
from tensile.kubelet.api.requests import PodTarget
from tensile.kubelet.api.server import KubeletServer, NodeEndpoint, open_port
from tensile.kubelet.api.service import RequestAuth

OTHER = "virtual-b"
LOGS = "GET /containerLogs/shop/web/main"


async def ended(stream: HttpStream) -> bool:
    """Report whether a stream has ended, and close this side of it."""
    async with asyncio.timeout(PATIENCE):
        rest = await stream.read_to_end()
    await stream.close()
    return rest == b""


async def test_other_listeners_do_not_disturb_a_stream(kubelet_api: KubeletApiHarness) -> None:
    """A stream continues while another node is served, moved to another port and stopped."""
    stream = await open_exec_stream(kubelet_api)
    await kubelet_api.serve(OTHER)
    assert await is_alive(stream)
    assert (await kubelet_api.ask(None, LOGS, node=OTHER)).status == 401
    await kubelet_api.serve(OTHER, port=spare_port())
    assert await is_alive(stream)
    await kubelet_api.server.stop(OTHER)
    assert await is_alive(stream)
    assert kubelet_api.server.streams() == {NODE: 1}
    await stream.close()


async def test_a_node_with_a_new_port_is_served_only_there(kubelet_api: KubeletApiHarness) -> None:
    """Its old port refuses connections, and its open streams end."""
    stream = await open_exec_stream(kubelet_api)
    old, new = kubelet_api.server.port(NODE), spare_port()
    await kubelet_api.serve(port=new)
    assert await ended(stream)
    assert kubelet_api.server.port(NODE) == new
    assert (await kubelet_api.ask(kubelet_api.pki.apiserver, "GET /healthz")).status == 200
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection("127.0.0.1", old)


async def test_serving_a_node_again_on_its_port_only_replaces_its_pods(kubelet_api: KubeletApiHarness) -> None:
    """The node serves its new pods, and open streams continue."""
    stream = await open_exec_stream(kubelet_api)
    port = kubelet_api.server.port(NODE)
    await kubelet_api.serve(pods=NamedPods())
    assert kubelet_api.server.port(NODE) == port
    assert (await kubelet_api.ask(kubelet_api.pki.apiserver, LOGS)).status == 404
    assert await is_alive(stream)
    await stream.close()


async def test_a_stopped_node_ends_its_streams(kubelet_api: KubeletApiHarness) -> None:
    """It refuses connections, and its streams end on both sides."""
    stream, port = await open_exec_stream(kubelet_api), kubelet_api.server.port(NODE)
    await kubelet_api.server.stop(NODE)
    assert await ended(stream)
    async with asyncio.timeout(PATIENCE):
        await kubelet_api.lower.ended.wait()
    assert kubelet_api.server.streams() == {}
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection("127.0.0.1", port)


async def test_stopping_an_unknown_or_stopped_node_does_nothing(kubelet_api: KubeletApiHarness) -> None:
    """Neither an unknown node nor a second stop raises an error."""
    await kubelet_api.server.stop(OTHER)
    await kubelet_api.server.stop(NODE)
    await kubelet_api.server.stop(NODE)
    assert kubelet_api.server.streams() == {}


async def test_close_ends_connections_in_every_state(kubelet_api: KubeletApiHarness) -> None:
    """Closing the server ends connections in a handshake, without a request, without an answer, and with a stream."""
    requested = asyncio.Event()

    async def silent(_head: HttpHead, stream: HttpStream) -> None:
        requested.set()
        await stream.read_to_end()

    stream = await open_exec_stream(kubelet_api)
    kubelet_api.lower.script = silent
    waiting = await kubelet_api.connect(kubelet_api.pki.apiserver)
    await waiting.send(request(LOGS))
    await requested.wait()
    mute = await kubelet_api.connect(kubelet_api.pki.apiserver)
    raw = HttpStream(*await asyncio.open_connection("127.0.0.1", kubelet_api.server.port(NODE)))
    await kubelet_api.server.close()
    assert [await ended(each) for each in (stream, waiting, mute, raw)] == [True] * 4


async def test_close_does_not_wait_for_the_client_ca(kubelet_api: KubeletApiHarness) -> None:
    """A connection that waits for the client CA ends with the server."""
    kubelet_api.authority_readable.clear()
    reader, writer = await asyncio.open_connection("127.0.0.1", kubelet_api.server.port(NODE))
    writer.write(b"hello")
    await writer.drain()
    await kubelet_api.server.close()
    assert await ended(HttpStream(reader, writer))


async def test_a_port_in_use_raises_an_error_with_port_node_and_field(kubelet_api: KubeletApiHarness) -> None:
    """Nodes that were served before are still served."""
    port = kubelet_api.server.port(NODE)
    with pytest.raises(TensileError, match=f"port {port} ") as error:
        await kubelet_api.serve(OTHER, port=port)
    assert all(word in str(error.value) for word in (OTHER, "another program", "node.kubeletPort"))
    assert (kubelet_api.server.port(NODE), kubelet_api.server.port(OTHER)) == (port, 0)
    assert (await kubelet_api.ask(kubelet_api.pki.apiserver, "GET /healthz")).status == 200


async def test_a_node_whose_new_port_is_in_use_is_served_when_it_is_free(kubelet_api: KubeletApiHarness) -> None:
    """Until then it is served on no port, because another program would get its requests."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = int(taken.getsockname()[1])
        with pytest.raises(TensileError, match="another program"):
            await kubelet_api.serve(port=port)
        assert kubelet_api.server.port(NODE) == 0
    await kubelet_api.serve(port=port)
    assert kubelet_api.server.port(NODE) == port
    kubelet_api.lower.script = answering("200 OK", b"x")
    assert (await kubelet_api.ask(kubelet_api.pki.apiserver, LOGS)).status == 200


async def test_a_canceled_stop_leaves_no_port_open(kubelet_api: KubeletApiHarness) -> None:
    """If the engine ends while a node is closed, its successor can listen on the port immediately."""
    port = spare_port()
    await kubelet_api.serve(port=port)
    await given_up(kubelet_api.server.stop(NODE))
    with socket.create_server(("127.0.0.1", port)):
        assert kubelet_api.server.streams() == {}


async def given_up(work: Coroutine[None, None, None]) -> None:
    """Start a coroutine, and cancel it where it waits for the first time."""
    doing = asyncio.ensure_future(work)
    await asyncio.sleep(0)
    doing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await doing


def test_an_address_of_another_machine_raises_an_error_that_names_kubelet_bind() -> None:
    """An address that this machine does not have cannot be bound."""
    with pytest.raises(TensileError, match=r"kubelet\.bind"):
        open_port(NODE, "192.0.2.1", 0)


async def test_unreadable_certificate_files_prevent_serving_a_node(tmp_path: Path) -> None:
    """A node whose certificate cannot be read is not served, and the error names the file."""
    log, upper = RecordingLogger(), FakeUpperCluster()
    serving = ServingCertificate(log, "127.0.0.1", ServingFiles(tmp_path / "a.crt", tmp_path / "a.key"))
    gate = RequestAuth(serving, ClientCA(log), Authenticator(upper, log), Authorizer(upper, log))
    server = KubeletServer(gate, log)
    problems = await server.serve({NODE: NodeEndpoint(("127.0.0.1", 0), NamedPods())})
    assert "a.crt" in str(problems[NODE])
    assert (server.streams(), server.port(NODE)) == ({}, 0)


async def test_an_unforeseen_error_ends_only_its_connection(kubelet_api: KubeletApiHarness) -> None:
    """The connection ends without an answer, the error is logged, and the next one is served."""
    kubelet_api.pods.targets["shop", "web"] = None
    kubelet_api.pods.targets["shop", "bad"] = PodTarget(None, "a", "b", CONTAINERS)  # type: ignore[arg-type]  # the fault
    with pytest.raises((OSError, asyncio.IncompleteReadError)):
        await kubelet_api.ask(kubelet_api.pki.apiserver, "GET /containerLogs/shop/bad/main")
    await wait_until(lambda: bool(kubelet_api.log.entries))
    event, fields = kubelet_api.log.entries[0]
    assert event == "a connection to the kubelet API failed"
    assert (fields["node"], fields["why"]) == (NODE, "AttributeError")
    assert all(":" in place for place in fields["at"])
    assert (await kubelet_api.ask(kubelet_api.pki.apiserver, "GET /healthz")).status == 200
    assert kubelet_api.server.streams() == {NODE: 0}
