"""TLS between the client and an apiserver: who is trusted, what is shown, and how each failure is told."""

import asyncio
import socket
import ssl
import threading
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path

import pytest
from papers import Papers, inline, kubeconfig
from scripted import WAIT, Apiserver, pod, refusal, running

from tensile.errors import Unreachable
from tensile.kube.client import HttpCluster
from tensile.kube.cluster import Selection
from tensile.kube.credentials import from_kubeconfig
from tensile.kube.health import WrongCluster
from tensile.kube.transport import ConnectionDropped
from tensile.objects import POD, Ref

REF = Ref("a", POD, "default", "web")


async def opened(
    home: Path, papers: Papers, server: str, *, ca: bytes = b"", user: bool = True, patience: float = 5.0, **more: str
) -> HttpCluster:
    """Open a client by a kubeconfig with alice's certificate, or else a token."""
    pair = {"client-certificate-data": inline(papers.alice), "client-key-data": inline(papers.alice_key)}
    path = home / "lower.kubeconfig"
    cluster = {"certificate-authority-data": inline(ca or papers.authority.pem), **more}
    path.write_text(kubeconfig(pair if user else {"token": "t"}, cluster, server=server))
    return HttpCluster("a", await from_kubeconfig(path), timeout=patience)


async def test_a_client_certificate_is_shown(home: Path, papers: Papers) -> None:
    """A server that wants a certificate of its authority's gets it, over a path prefix as well."""
    async with running(Apiserver(), papers.server_context(ask=True)) as server:
        cluster = await opened(home, papers, f"https://127.0.0.1:{server.port}/k8s/c1")
        assert await cluster.version() == "v1.36.3"
        assert server.asked[-1].path == "/k8s/c1/version"
        await cluster.close()


async def test_a_server_that_wants_a_certificate_and_gets_none_is_not_reached(home: Path, papers: Papers) -> None:
    """The refused handshake is an error of the cluster, not a crash."""
    async with running(Apiserver(), papers.server_context(ask=True)) as server:
        cluster = await opened(home, papers, f"https://127.0.0.1:{server.port}", user=False)
        with pytest.raises(Unreachable):
            await cluster.version()
        assert server.asked == []
        await cluster.close()


async def test_another_authoritys_server_is_not_trusted(home: Path, papers: Papers) -> None:
    """Somebody else at the address gets no request; the message says that it is the certificate."""
    async with running(Apiserver(), papers.server_context()) as server:
        cluster = await opened(home, papers, f"https://127.0.0.1:{server.port}", ca=papers.other.pem)
        with pytest.raises(
            Unreachable,
            match=r"not trusted \(unable to get local issuer.*check that it is .*, and the CA in .*lower",
        ) as told:
            await cluster.create(REF, pod("web", 1))
        assert f"127.0.0.1:{server.port}" in str(told.value)
        assert server.asked == []
        await cluster.close()


async def test_an_expired_server_certificate_is_told_as_such(home: Path, papers: Papers) -> None:
    """The reason out of the handshake is in the message."""
    async with running(Apiserver(), papers.server_context(expired=True)) as server:
        cluster = await opened(home, papers, f"https://127.0.0.1:{server.port}")
        with pytest.raises(Unreachable, match="certificate has expired"):
            await cluster.version()
        await cluster.close()


async def test_the_servers_name_is_checked(home: Path, papers: Papers) -> None:
    """A certificate for other names is refused, and tls-server-name says which name to expect."""
    async with running(Apiserver(), papers.server_context()) as server:
        address = f"https://localhost:{server.port}"
        cluster = await opened(home, papers, address)
        with pytest.raises(Unreachable, match="not trusted"):
            await cluster.version()
        await cluster.close()
        cluster = await opened(home, papers, address, **{"tls-server-name": "server"})
        assert await cluster.version() == "v1.36.3"
        assert cluster.endpoint().server_name == "server"
        await cluster.close()


async def test_a_server_without_tls_is_told_as_such(home: Path, papers: Papers) -> None:
    """Plain HTTP at an https address is a TLS failure with the address in it."""

    async def plain(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer in plain HTTP whatever comes."""
        writer.write(b"HTTP/1.0 400 Bad Request\r\n\r\n")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(plain, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        cluster = await opened(home, papers, f"https://127.0.0.1:{port}")
        with pytest.raises(Unreachable, match=f"127.0.0.1:{port}: TLS failed .*check that it is an apiserver"):
            await cluster.version()
        await cluster.close()


class Freezer(threading.Thread):
    """A TLS server that takes one request and then neither answers nor hears, until it is told to read on."""

    def __init__(self, context: ssl.SSLContext) -> None:
        super().__init__()
        self._context = context
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.go_on = threading.Event()
        self.ended = False

    def run(self) -> None:
        """Serve one connection to its end."""
        accepted, _ = self._listener.accept()
        below = accepted.dup()
        with self._context.wrap_socket(accepted, server_side=True) as connection, self._listener, below:
            connection.recv(1)
            self.go_on.wait(WAIT)
            below.settimeout(WAIT / 4)
            with suppress(TimeoutError):
                while below.recv(1 << 16):
                    pass
                self.ended = True


async def test_closing_does_not_wait_for_a_frozen_server(home: Path, papers: Papers) -> None:
    """A connection whose other side does not say goodbye is hung up, so that nothing is left open."""
    server = Freezer(papers.server_context())
    server.start()
    cluster = await opened(home, papers, f"https://127.0.0.1:{server.port}", patience=0.3)
    with pytest.raises(Unreachable, match=f"127.0.0.1:{server.port} did not respond in time"):
        await cluster.version()
    await cluster.close()
    server.go_on.set()
    await asyncio.to_thread(server.join)
    assert server.ended


async def test_a_renewed_certificate_is_shown_on_new_connections(home: Path, papers: Papers) -> None:
    """After a rotation of the kubeconfig the next connection shows the new certificate, without a restart."""
    async with running(Apiserver(), papers.server_context(ask=True)) as server:
        address = f"https://127.0.0.1:{server.port}"
        cluster = await opened(home, papers, address)
        before = cluster.endpoint().tls
        alice, key = papers.authority.sign("alice")
        pair = {"client-certificate-data": inline(alice), "client-key-data": inline(key)}
        authority = {"certificate-authority-data": inline(papers.authority.pem)}
        (home / "lower.kubeconfig").write_text(kubeconfig(pair, authority, server=address))
        server.play("version", refusal(401, "Unauthorized"))
        assert await cluster.version() == "v1.36.3"
        assert cluster.endpoint().tls is not before
        assert server.connections == 2
        await cluster.close()


async def replaced(home: Path, papers: Papers, later: Apiserver) -> HttpCluster:
    """Return a client that knows its cluster, at whose address `later` is to answer; its connections have ended."""
    async with running(Apiserver(), papers.server_context(fresh=True)) as server:
        cluster = await opened(home, papers, f"https://127.0.0.1:{server.port}")
        await cluster.identify()
        await cluster.create(REF, pod("web", 1))
        later.port = server.port
    return cluster


async def written(cluster: HttpCluster) -> None:
    """Write, again where the end of the old connection is noticed only by that."""
    for _ in range(3):
        try:
            await cluster.create(REF, pod("web", 1))
        except WrongCluster:
            raise
        except Unreachable:
            continue
        return


async def seen(cluster: HttpCluster) -> None:
    """Read."""
    await cluster.read(REF)


async def followed(cluster: HttpCluster) -> None:
    """Watch, again where the first try finds that the server is unknown."""
    for _ in range(2):
        with suppress(ConnectionDropped):
            async for _ in cluster.watch(POD, Selection(), "5", 5):
                pass


@pytest.mark.parametrize("ask", [written, seen, followed])
async def test_a_server_with_another_certificate_gets_nothing_before_it_says_who_it_is(
    home: Path, papers: Papers, ask: Callable[[HttpCluster], Awaitable[None]]
) -> None:
    """Also where no request of ours was cut off by the exchange: an idle connection ends without a word."""
    later = Apiserver(uid="another")
    cluster = await replaced(home, papers, later)
    async with running(later, papers.server_context()):
        with pytest.raises(WrongCluster):
            await ask(cluster)
        assert {asked.sort for asked in later.asked} == {"identity"}
    await cluster.close()


async def test_another_server_of_the_cluster_is_used_once_it_has_said_so(home: Path, papers: Papers) -> None:
    """One question serves every later connection to that server."""
    later = Apiserver()
    cluster = await replaced(home, papers, later)
    async with running(later, papers.server_context()):
        await written(cluster)
        await written(cluster)
        assert [asked.sort for asked in later.asked] == ["identity", "write", "write"]
    await cluster.close()


async def test_a_server_that_is_known_is_not_asked_again(home: Path, papers: Papers) -> None:
    """A new connection to it is made and used at once."""
    async with running(Apiserver(), papers.server_context()) as server:
        cluster = await opened(home, papers, f"https://127.0.0.1:{server.port}")
        await cluster.identify()
        await cluster.create(REF, pod("web", 1))
        cluster._transport.hang_up()
        await cluster.create(REF, pod("web", 2))
        assert [asked.sort for asked in server.asked] == ["identity", "write", "write"]
        assert server.connections == 3
        await cluster.close()
