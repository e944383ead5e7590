"""Tests of TLS between client and apiserver: trusted servers, client certificates, and the error for each failure."""

import asyncio
import socket
import ssl
import threading
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path

import pytest
from certkit import CertificateSet, inline, kubeconfig
from scripted import WAIT, ScriptedApiserver, make_pod, refusal, running

from tensile.errors import Unreachable
from tensile.kube.client import HttpCluster
from tensile.kube.cluster import Selection
from tensile.kube.credentials import from_kubeconfig
from tensile.kube.health import WrongCluster
from tensile.kube.transport import ConnectionDropped
from tensile.objects import POD, Ref

REF = Ref("a", POD, "default", "web")


async def opened(
    home: Path,
    certificates: CertificateSet,
    server: str,
    *,
    ca: bytes = b"",
    user: bool = True,
    patience: float = 5.0,
    **more: str,
) -> HttpCluster:
    """Open a client by a kubeconfig with alice's certificate, or with a token."""
    pair = {"client-certificate-data": inline(certificates.alice), "client-key-data": inline(certificates.alice_key)}
    path = home / "lower.kubeconfig"
    cluster = {"certificate-authority-data": inline(ca or certificates.authority.pem), **more}
    path.write_text(kubeconfig(pair if user else {"token": "t"}, cluster, server=server))
    return HttpCluster("a", await from_kubeconfig(path), timeout=patience)


async def test_the_client_presents_its_certificate(home: Path, certificates: CertificateSet) -> None:
    """A server that requires a client certificate gets it, also if the server URL has a path."""
    async with running(ScriptedApiserver(), certificates.server_context(require_client_certificate=True)) as server:
        cluster = await opened(home, certificates, f"https://127.0.0.1:{server.port}/k8s/c1")
        assert await cluster.version() == "v1.36.3"
        assert server.requests[-1].path == "/k8s/c1/version"
        await cluster.close()


async def test_a_call_raises_unreachable_if_the_server_requires_a_client_certificate(
    home: Path, certificates: CertificateSet
) -> None:
    """Without a client certificate the TLS handshake fails, which is an error of the cluster and no crash."""
    async with running(ScriptedApiserver(), certificates.server_context(require_client_certificate=True)) as server:
        cluster = await opened(home, certificates, f"https://127.0.0.1:{server.port}", user=False)
        with pytest.raises(Unreachable):
            await cluster.version()
        assert server.requests == []
        await cluster.close()


async def test_no_request_is_sent_to_a_server_with_a_certificate_of_another_ca(
    home: Path, certificates: CertificateSet
) -> None:
    """The error names the address and says that the certificate is not trusted."""
    async with running(ScriptedApiserver(), certificates.server_context()) as server:
        cluster = await opened(
            home, certificates, f"https://127.0.0.1:{server.port}", ca=certificates.other_authority.pem
        )
        with pytest.raises(
            Unreachable,
            match=r"not trusted \(unable to get local issuer.*check that it is .*, and the CA in .*lower",
        ) as raised:
            await cluster.create(REF, make_pod("web", 1))
        assert f"127.0.0.1:{server.port}" in str(raised.value)
        assert server.requests == []
        await cluster.close()


async def test_the_error_for_an_expired_server_certificate_gives_the_reason(
    home: Path, certificates: CertificateSet
) -> None:
    """The reason comes from the TLS handshake."""
    async with running(ScriptedApiserver(), certificates.server_context(expired=True)) as server:
        cluster = await opened(home, certificates, f"https://127.0.0.1:{server.port}")
        with pytest.raises(Unreachable, match="certificate has expired"):
            await cluster.version()
        await cluster.close()


async def test_a_server_certificate_for_another_name_is_rejected(home: Path, certificates: CertificateSet) -> None:
    """With tls-server-name in the kubeconfig, that name is expected instead of the address."""
    async with running(ScriptedApiserver(), certificates.server_context()) as server:
        address = f"https://localhost:{server.port}"
        cluster = await opened(home, certificates, address)
        with pytest.raises(Unreachable, match="not trusted"):
            await cluster.version()
        await cluster.close()
        cluster = await opened(home, certificates, address, **{"tls-server-name": "server"})
        assert await cluster.version() == "v1.36.3"
        assert cluster.endpoint().server_name == "server"
        await cluster.close()


async def test_the_error_for_a_plain_http_server_says_that_tls_failed(home: Path, certificates: CertificateSet) -> None:
    """The error names the address and advises to check that it is an apiserver."""

    async def plain(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Send a plain HTTP response to every connection."""
        writer.write(b"HTTP/1.0 400 Bad Request\r\n\r\n")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(plain, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        cluster = await opened(home, certificates, f"https://127.0.0.1:{port}")
        with pytest.raises(Unreachable, match=f"127.0.0.1:{port}: TLS failed .*check that it is an apiserver"):
            await cluster.version()
        await cluster.close()


class UnresponsiveTlsServer(threading.Thread):
    """A TLS server that reads one byte and then neither responds nor reads until `go_on` is set."""

    def __init__(self, context: ssl.SSLContext) -> None:
        super().__init__()
        self._context = context
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.go_on = threading.Event()
        self.ended = False

    def run(self) -> None:
        """Serve one connection until it ends."""
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


async def test_closing_the_client_aborts_connections_to_a_frozen_server(
    home: Path, certificates: CertificateSet
) -> None:
    """A connection is aborted if the server does not answer the TLS shutdown, so that none stays open."""
    server = UnresponsiveTlsServer(certificates.server_context())
    server.start()
    cluster = await opened(home, certificates, f"https://127.0.0.1:{server.port}", patience=0.3)
    with pytest.raises(Unreachable, match=f"127.0.0.1:{server.port} did not respond in time"):
        await cluster.version()
    await cluster.close()
    server.go_on.set()
    await asyncio.to_thread(server.join)
    assert server.ended


async def test_a_renewed_client_certificate_is_used_for_new_connections(
    home: Path, certificates: CertificateSet
) -> None:
    """After a rotation of the kubeconfig no restart is needed."""
    async with running(ScriptedApiserver(), certificates.server_context(require_client_certificate=True)) as server:
        address = f"https://127.0.0.1:{server.port}"
        cluster = await opened(home, certificates, address)
        before = cluster.endpoint().tls
        alice, key = certificates.authority.sign("alice")
        pair = {"client-certificate-data": inline(alice), "client-key-data": inline(key)}
        authority = {"certificate-authority-data": inline(certificates.authority.pem)}
        (home / "lower.kubeconfig").write_text(kubeconfig(pair, authority, server=address))
        server.queue("version", refusal(401, "Unauthorized"))
        assert await cluster.version() == "v1.36.3"
        assert cluster.endpoint().tls is not before
        assert server.connections == 2
        await cluster.close()


async def replaced(home: Path, certificates: CertificateSet, later: ScriptedApiserver) -> HttpCluster:
    """Return a client that has identified its cluster and whose connections have ended; `later` gets the same port."""
    async with running(ScriptedApiserver(), certificates.server_context(fresh=True)) as server:
        cluster = await opened(home, certificates, f"https://127.0.0.1:{server.port}")
        await cluster.identify()
        await cluster.create(REF, make_pod("web", 1))
        later.port = server.port
    return cluster


async def written(cluster: HttpCluster) -> None:
    """Write, and repeat it if it is the write that detects the end of the old connection."""
    for _ in range(3):
        try:
            await cluster.create(REF, make_pod("web", 1))
        except WrongCluster:
            raise
        except Unreachable:
            continue
        return


async def seen(cluster: HttpCluster) -> None:
    """Read an object."""
    await cluster.read(REF)


async def followed(cluster: HttpCluster) -> None:
    """Watch, and repeat it if the first try finds an unknown server."""
    for _ in range(2):
        with suppress(ConnectionDropped):
            async for _ in cluster.watch(POD, Selection(), "5", 5):
                pass


@pytest.mark.parametrize("ask", [written, seen, followed])
async def test_a_server_with_an_unknown_certificate_gets_only_an_identity_check(
    home: Path, certificates: CertificateSet, ask: Callable[[HttpCluster], Awaitable[None]]
) -> None:
    """An idle connection ends without an error, so no failed request reveals that the server was replaced."""
    later = ScriptedApiserver(uid="another")
    cluster = await replaced(home, certificates, later)
    async with running(later, certificates.server_context()):
        with pytest.raises(WrongCluster):
            await ask(cluster)
        assert {request.sort for request in later.requests} == {"identity"}
    await cluster.close()


async def test_another_server_of_the_same_cluster_is_used_after_one_identity_check(
    home: Path, certificates: CertificateSet
) -> None:
    """One identity check is enough for all later connections to that server."""
    later = ScriptedApiserver()
    cluster = await replaced(home, certificates, later)
    async with running(later, certificates.server_context()):
        await written(cluster)
        await written(cluster)
        assert [request.sort for request in later.requests] == ["identity", "write", "write"]
    await cluster.close()


async def test_a_new_connection_to_a_verified_server_needs_no_identity_check(
    home: Path, certificates: CertificateSet
) -> None:
    """The server is recognized by its certificate, so the request is sent at once."""
    async with running(ScriptedApiserver(), certificates.server_context()) as server:
        cluster = await opened(home, certificates, f"https://127.0.0.1:{server.port}")
        await cluster.identify()
        await cluster.create(REF, make_pod("web", 1))
        cluster._transport.hang_up()
        await cluster.create(REF, make_pod("web", 2))
        assert [request.sort for request in server.requests] == ["identity", "write", "write"]
        assert server.connections == 3
        await cluster.close()
