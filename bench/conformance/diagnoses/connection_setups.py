"""Setups in which the connection to a cluster, or the credential for it, is broken."""

import asyncio
import socket
from contextlib import suppress
from typing import Any

import aiohttp
import orjson
from aiohttp import web

from bench.conformance.diagnoses.setup import setup
from bench.conformance.diagnoses.topology_under_test import A, B, TopologyUnderTest
from bench.kit.faultproxy.tls import TLSContexts, User
from tensile.sandbox.credentials import ADMINISTRATORS
from tensile.sandbox.state import LOOPBACK, UPPER

ACCOUNTS = "/api/v1/namespaces/default/serviceaccounts"
LONG_AGO = "Thu, 01 Jan 2026 00:00:00 GMT"


@setup(
    A,
    "reach",
    cause="an untrusted certificate",
    remedy="the certificate is by CN=lower-a-ca: put that CA there",
)
async def wrong_CA(topology: TopologyUnderTest) -> None:  # noqa: N802 - the usual spelling
    """The kubeconfig of one lower has the CA of another."""
    topology.edit(A, certificate_authority_data=topology.authority(B))


@setup(A, "login", cause="expired on", remedy="kubeadm kubeconfig user --client-name=doctor-")
async def expired_client_certificate(topology: TopologyUnderTest) -> None:
    """The user's certificate expired about a year ago."""
    topology.expire(A)


@setup(UPPER, "login", cause="its client certificate is by CN=lower-b-ca", remedy="--client-ca-file")
async def client_certificate_of_another_cluster(topology: TopologyUnderTest) -> None:
    """The user presents a certificate that another cluster signed."""
    pair = topology.signer(B).issue(topology.user, (ADMINISTRATORS,))
    certificate, key = (topology.put(f"user.{end}", pem) for end, pem in (("crt", pair.certificate), ("key", pair.key)))
    topology.edit(UPPER, user={"client-certificate": certificate, "client-key": key})


@setup(A, "login", cause="the token is damaged, of another cluster, or revoked", remedy="create token")
async def wrong_token(topology: TopologyUnderTest) -> None:
    """The cluster never issued the token."""
    topology.edit(A, user={"token": "a-token-that-was-never-issued"})


@setup(
    B,
    "login",
    cause="the token is damaged, of another cluster, or revoked",
    remedy="kubectl -n default create token doctor-",
)
async def token_of_an_account_that_is_gone(topology: TopologyUnderTest) -> None:
    """The ServiceAccount of the token was deleted."""
    site = topology.sites[B]
    await site.call("POST", ACCOUNTS, {"metadata": {"name": topology.user}})
    answer = await site.call("POST", f"{ACCOUNTS}/{topology.user}/token", {"spec": {}})
    await site.delete(f"{ACCOUNTS}/{topology.user}")
    topology.edit(B, user={"token": answer["status"]["token"]})


@setup(B, "reach", cause="cannot be connected to (Connection refused)", remedy="nothing listens there")
async def closed_port(topology: TopologyUnderTest) -> None:
    """No process listens on the port."""
    with socket.create_server((LOOPBACK, 0)) as free:
        port = free.getsockname()[1]
    topology.edit(B, server=f"https://{LOOPBACK}:{port}")


@setup(UPPER, "reach", cause="the name nowhere.invalid is not found", remedy="getent hosts nowhere.invalid")
async def unknown_name(topology: TopologyUnderTest) -> None:
    """The host name does not exist."""
    topology.edit(UPPER, server="https://nowhere.invalid:6443")


@setup(A, "reach", cause="the TLS handshake fails", remedy="check that an apiserver listens there")
async def something_else_listens(topology: TopologyUnderTest) -> None:
    """A server that does not use TLS sends a greeting to each client."""

    async def greet(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Send a few bytes and close the connection."""
        with suppress(OSError):
            writer.write(b"220 welcome\r\n")
            await writer.drain()
            writer.close()

    server = await asyncio.start_server(greet, LOOPBACK, 0)
    topology.open.callback(server.close)
    topology.edit(A, server=f"https://{LOOPBACK}:{server.sockets[0].getsockname()[1]}")


@setup(A, "reach", cause="does not respond (no answer in 3 s)", remedy="its apiserver hangs or is overloaded")
async def silent_server(topology: TopologyUnderTest) -> None:
    """The server accepts connections, but never sends a byte."""
    listening = topology.open.enter_context(socket.create_server((LOOPBACK, 0)))
    topology.edit(A, server=f"https://{LOOPBACK}:{listening.getsockname()[1]}")


@setup(
    A,
    "reach",
    cause="an untrusted certificate",
    remedy="it is not for apiserver.example: set tls-server-name: ",
)
async def wrong_name_in_the_certificate(topology: TopologyUnderTest) -> None:
    """The server's certificate does not have the name that the kubeconfig expects."""
    topology.edit(A, tls_server_name="apiserver.example")


@setup(A, "clock", cause="behind ours", remedy="set both by NTP", level="warn")
async def clock_skew(topology: TopologyUnderTest) -> None:
    """The clock of a cluster is behind."""
    await altered(topology, A, date=LONG_AGO)


@setup(A, "version", cause="v1.19.16 is too old", remedy="upgrade the cluster: 1.25 is the oldest")
async def old_version(topology: TopologyUnderTest) -> None:
    """The version of a cluster lacks features that the engine needs."""
    await altered(topology, A, version="v1.19.16")


@setup(B, "version", cause="v1.31.2, and the upper cluster has", remedy="at most 3 minor versions behind", level="warn")
async def version_skew(topology: TopologyUnderTest) -> None:
    """A lower cluster is too many versions behind the upper one."""
    await altered(topology, B, version="v1.31.2")


@setup(A, "reach", cause="kubeconfigs/gone: cannot be read (No such file", remedy="check the path")
async def missing_kubeconfig(topology: TopologyUnderTest) -> None:
    """The kubeconfig file does not exist."""
    topology.lower(A)["kubeconfig"] = "kubeconfigs/gone"


@setup(B, "reach", cause="context 'production': no context has this name", remedy="use one of them")
async def wrong_context(topology: TopologyUnderTest) -> None:
    """The kubeconfig has no such context."""
    topology.lower(B)["context"] = "production"


@setup(A, "reach", cause="the Secret does not exist", remedy="create it, or correct kubeconfigSecret")
async def missing_kubeconfig_secret(topology: TopologyUnderTest) -> None:
    """The Secret that should contain the kubeconfig does not exist."""
    entry = topology.lower(A)
    entry.pop("kubeconfig")
    entry["kubeconfigSecret"] = {"namespace": "default", "name": topology.user}


@setup(A, "reach", cause="the key is missing or empty (keys: config)", remedy="correct kubeconfigSecret.key")
async def wrong_key_of_the_kubeconfig_secret(topology: TopologyUnderTest) -> None:
    """The Secret exists, but has the kubeconfig under another key."""
    body = {"metadata": {"name": topology.user}, "stringData": {"config": "kind: Config"}}
    await topology.make(UPPER, "/api/v1/namespaces/default/secrets", body)
    entry = topology.lower(A)
    entry.pop("kubeconfig")
    entry["kubeconfigSecret"] = {"namespace": "default", "name": topology.user}


async def altered(topology: TopologyUnderTest, cluster: str, *, date: str = "", version: str = "") -> None:
    """Put a proxy before a cluster that returns another date or another version."""
    contexts = TLSContexts(topology.pki(cluster), topology.directory)
    context = contexts.client_context(User(topology.user, (ADMINISTRATORS,)))
    session = await topology.open.enter_async_context(
        aiohttp.ClientSession(topology.sandbox.clusters[cluster].server, connector=aiohttp.TCPConnector(ssl=context))
    )

    async def serve(request: web.BaseRequest) -> web.Response:
        """Forward a request, and change the answer."""
        kind = {"Content-Type": request.headers.get("Content-Type", "application/json")}
        async with session.request(request.method, request.raw_path, data=await request.read(), headers=kind) as reply:
            body, headers = await reply.read(), {"Content-Type": reply.headers["Content-Type"]}
        if version and request.path == "/version":
            review: dict[str, Any] = orjson.loads(body)
            body = orjson.dumps({**review, "gitVersion": version})
        return web.Response(status=reply.status, body=body, headers=headers | ({"Date": date} if date else {}))

    front = web.Server(serve, access_log=None)
    server = await asyncio.get_running_loop().create_server(front, LOOPBACK, 0, ssl=contexts.server_context())
    topology.open.push_async_callback(front.shutdown, 0.0)
    topology.open.callback(server.close)
    topology.edit(cluster, server=f"https://{LOOPBACK}:{server.sockets[0].getsockname()[1]}")
