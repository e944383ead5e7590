"""Tests of requests against hostile servers and a hostile environment of the engine."""

import asyncio
import gzip
import os
import sys
from contextlib import suppress
from pathlib import Path

import orjson
import pytest
from certkit import CertificateSet, inline, kubeconfig
from scripted import HttpResponse, ScriptedApiserver, WatchStream, access_to, make_pod, running

import tensile
from tensile.errors import Denied, Unreachable
from tensile.kube.client import HttpCluster
from tensile.kube.cluster import Selection
from tensile.objects import POD, Ref

REF = Ref("a", POD, "default", "web")
TOKEN = {"Authorization": "Bearer hunter2-do-not-show"}
ROOT = Path(tensile.__file__).parent.parent


async def _read(cluster: HttpCluster) -> object:
    return await cluster.read(REF)


async def _write(cluster: HttpCluster) -> object:
    return await cluster.create(REF, make_pod("web", 1))


async def _watch(cluster: HttpCluster) -> object:
    return [event async for event in cluster.watch(POD, Selection(), "1", 60)]


SORTS = {"list": _read, "write": _write, "watch": _watch}


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
@pytest.mark.parametrize("sort", SORTS)
async def test_a_redirect_is_not_followed(apiserver: ScriptedApiserver, sort: str, status: int) -> None:
    """No connection to its target is opened, for any redirect status and kind of request."""
    async with running(ScriptedApiserver()) as other:
        cluster = HttpCluster("a", access_to(apiserver.port, TOKEN), timeout=5.0, margin=0.2)
        apiserver.queue(sort, *[HttpResponse(status, b"", {"Location": f"http://127.0.0.1:{other.port}/api"})] * 5)
        with pytest.raises(Unreachable, match=f"a redirect, HTTP {status}"):
            await SORTS[sort](cluster)
        assert apiserver.requests[0].headers["authorization"] == TOKEN["Authorization"]
        assert (other.connections, other.requests) == (0, [])
        await cluster.close()


@pytest.mark.parametrize("sort", SORTS)
async def test_cookies_are_not_stored(apiserver: ScriptedApiserver, cluster: HttpCluster, sort: str) -> None:
    """A cookie that a server sets is not sent back to it."""
    status, body = (403, b"{}") if sort == "watch" else (200, orjson.dumps(make_pod("web", 1)))
    apiserver.queue(sort, *[HttpResponse(status, body, {"Set-Cookie": "a=b; Path=/"})] * 2)
    for _ in range(2):
        with suppress(Denied):
            await SORTS[sort](cluster)
    assert [request.sort for request in apiserver.requests] == [sort, sort]
    assert [request for request in apiserver.requests if "cookie" in request.headers] == []


CHILD = """
import asyncio, sys
from pathlib import Path
import tensile
from tensile.kube.cluster import Selection
from tensile.kube.credentials import from_kubeconfig
from tensile.kube.aio import aiohttp
from tensile.kube.client import HttpCluster
from tensile.objects import POD

async def main(other):
    cluster = HttpCluster("a", await from_kubeconfig(Path("f")))
    await cluster.version()
    assert [event async for event in cluster.watch(POD, Selection(), "1", 60)] == []
    await cluster.close()
    async with aiohttp.ClientSession(trust_env=True) as session, session.get(other) as answer:
        await answer.read()

asyncio.run(main(sys.argv[1]))
"""
"""A program that sends requests to a cluster, and then one to another server with `trust_env`, as most programs do."""


@pytest.mark.process
async def test_proxies_and_netrc_passwords_of_the_environment_are_not_used(
    home: Path, certificates: CertificateSet
) -> None:
    """A session with `trust_env` does use both, which proves that the environment of the test is effective."""
    pair = {"client-certificate-data": inline(certificates.alice), "client-key-data": inline(certificates.alice_key)}
    cluster = {"certificate-authority-data": inline(certificates.authority.pem)}
    (home / ".netrc").write_text("default login admin password hunter2\n")
    (home / ".netrc").chmod(0o600)
    async with (
        running(ScriptedApiserver(), certificates.server_context(require_client_certificate=True)) as server,
        running(ScriptedApiserver()) as proxy,
    ):
        server.queue("watch", WatchStream().end())
        (home / "f").write_text(kubeconfig(pair, cluster, server=f"https://127.0.0.1:{server.port}"))
        names = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "WS_PROXY", "WSS_PROXY")
        led = {name: f"http://127.0.0.1:{proxy.port}" for upper in names for name in (upper, upper.lower())}
        variables = {**os.environ, **led, "NO_PROXY": "", "no_proxy": "", "HOME": str(home), "PYTHONPATH": str(ROOT)}
        variables.pop("NETRC", None)
        child = await asyncio.create_subprocess_exec(
            sys.executable, "-c", CHILD, "http://elsewhere.example/control", env=variables, cwd=home
        )
        assert await child.wait() == 0
    assert [request.sort for request in server.requests] == ["version", "watch"]
    assert [
        request for request in server.requests if {"authorization", "proxy-authorization"} & request.headers.keys()
    ] == []
    assert [request.path for request in proxy.requests] == ["/control"]
    assert proxy.requests[0].headers["authorization"].startswith("Basic ")


PACKED = gzip.compress(orjson.dumps(make_pod("web", 1)))


async def test_a_compressed_response_is_not_decompressed(apiserver: ScriptedApiserver, cluster: HttpCluster) -> None:
    """Compression was not requested, so the compressed bytes are the response, which is not valid JSON."""
    apiserver.queue("list", HttpResponse(200, PACKED, {"Content-Encoding": "gzip"}))
    with pytest.raises(Unreachable, match="JSON"):
        await cluster.read(REF)


@pytest.mark.parametrize("status", [b"200 OK", b"500 Internal Server Error"])
async def test_a_response_that_arrives_byte_by_byte_times_out(status: bytes) -> None:
    """The timeout applies to the whole response, also to that of an error."""
    ended = asyncio.Event()

    async def drip(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Send a response byte by byte until the client closes the connection."""
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 %b\r\nContent-Type: application/json\r\nContent-Length: 1000000\r\n\r\n" % status)
        with suppress(ConnectionError):
            while not writer.is_closing():
                writer.write(b" ")
                await writer.drain()
                await asyncio.sleep(0.02)
        writer.transport.abort()
        ended.set()

    async with await asyncio.start_server(drip, "127.0.0.1", 0) as server:
        cluster = HttpCluster("a", access_to(server.sockets[0].getsockname()[1]), timeout=0.5)
        with pytest.raises(Unreachable, match="did not respond in time"):
            await cluster.create(REF, make_pod("web", 1))
        await cluster.close()
        await ended.wait()
