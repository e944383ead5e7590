"""Tests of connecting to a server over real sockets: the step that fails, and the facts from each step."""

import asyncio
import base64
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import orjson
import pytest
import yaml
from aiohttp import web
from certkit import CertificateSet, inline, kubeconfig
from cryptography import x509

from bench.kit.spareports import spare_port
from tensile.diagnostics.doctor.facts import ContactResult, ServerEndpoint, Stage, TokenInfo
from tensile.diagnostics.doctor.queries import (
    probe_apiserver,
    probe_server,
    request_path,
    server_endpoint,
    token_info,
    unverified_tls,
)
from tensile.kube.credentials import Access, from_kubeconfig

TOKEN = "a-token"
AHEAD = timedelta(seconds=100)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> CertificateSet:
    """Certificates of two CAs, created once for the module."""
    return CertificateSet(tmp_path_factory.mktemp("papers"))


def now() -> datetime:
    """Return the current time."""
    return datetime.now(UTC)


@asynccontextmanager
async def serving(
    certificates: CertificateSet, *, status: int = 200, body: Any = None, **headers: str
) -> AsyncIterator[int]:
    """Serve one response to every request by TLS, and return the port."""

    async def answer(_request: web.BaseRequest) -> web.Response:
        """Return the response."""
        response = {"gitVersion": "v1.36.3"} if body is None else body
        return web.Response(status=status, body=orjson.dumps(response), headers=headers)

    front = web.Server(answer, access_log=None)
    loop = asyncio.get_running_loop()
    server = await loop.create_server(front, "127.0.0.1", 0, ssl=certificates.server_context())
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        await front.shutdown(0.0)


async def access(
    certificates: CertificateSet, directory: Path, port: int, host: str = "127.0.0.1", **cluster: str
) -> Access:
    """Open a connection to a port with a kubeconfig."""
    path = directory / "kubeconfig"
    trusted = {"certificate-authority-data": inline(certificates.authority.pem), **cluster}
    path.write_text(kubeconfig({"token": TOKEN}, trusted, server=f"https://{host}:{port}"))
    return await from_kubeconfig(path)


async def test_a_successful_contact_has_version_certificate_and_clock(
    certificates: CertificateSet, tmp_path: Path
) -> None:
    """The clock difference comes from the Date header."""
    date = (now() + AHEAD).strftime("%a, %d %b %Y %H:%M:%S GMT")
    async with serving(certificates, Date=date) as port:
        found = await probe_apiserver(await access(certificates, tmp_path, port), now)
    assert (found.stage, found.version, found.error) == (Stage.DONE, "v1.36.3", "")
    assert found.ahead == pytest.approx(AHEAD.total_seconds(), abs=2)
    assert x509.load_der_x509_certificate(found.shown) == x509.load_pem_x509_certificate(certificates.server)


async def test_a_refused_credential_ends_at_the_login_stage(certificates: CertificateSet, tmp_path: Path) -> None:
    """The clock difference is known nevertheless."""
    async with serving(certificates, status=401, body={}) as port:
        found = await probe_apiserver(await access(certificates, tmp_path, port), now)
    assert found.stage == Stage.LOGIN
    assert found.ahead is not None


async def test_a_forbidden_version_is_a_successful_contact(certificates: CertificateSet, tmp_path: Path) -> None:
    """The server accepts the credential, so only the version is unknown."""
    async with serving(certificates, status=403, body={}) as port:
        found = await probe_apiserver(await access(certificates, tmp_path, port), now)
    assert (found.stage, found.version) == (Stage.DONE, "")


async def test_a_chunked_response_is_read_up_to_one_mebibyte(certificates: CertificateSet, tmp_path: Path) -> None:
    """The limit keeps an endless response from being read indefinitely."""
    async with serving(certificates, body={"long": "x" * 700_000, "gitVersion": "v1.36.3"}) as port:
        found = await probe_apiserver(await access(certificates, tmp_path, port), now)
    assert (found.stage, found.version) == (Stage.DONE, "v1.36.3")
    async with serving(certificates, body="x" * 3_000_000) as port:
        status, body, _ = await request_path(await access(certificates, tmp_path, port), "/version")
    assert (status, len(body)) == (200, 1 << 20)


@pytest.mark.parametrize(("status", "body"), [(200, {"hello": "world"}), (200, []), (502, {}), (302, {})])
async def test_a_response_without_a_version_ends_at_the_answer_stage(
    certificates: CertificateSet, tmp_path: Path, status: int, body: Any
) -> None:
    """Such a server is no apiserver."""
    async with serving(certificates, status=status, body=body) as port:
        found = await probe_apiserver(await access(certificates, tmp_path, port), now)
    assert (found.stage, found.error) == (Stage.ANSWER, f"HTTP {status}, without a version")


@pytest.mark.parametrize("date", ["yesterday", "Fri, 31 Dec 9999 23:59:59 -1200"])
async def test_an_invalid_date_leaves_the_clock_unknown(
    certificates: CertificateSet, tmp_path: Path, date: str
) -> None:
    """The header may also have a date that Python cannot represent."""
    async with serving(certificates, Date=date) as port:
        assert (await probe_apiserver(await access(certificates, tmp_path, port), now)).ahead is None


async def test_a_port_without_a_listener_ends_at_the_connection_stage(
    certificates: CertificateSet, tmp_path: Path
) -> None:
    """The connection is refused before TLS."""
    found = await probe_apiserver(await access(certificates, tmp_path, spare_port()), now)
    assert (found.stage, found.error) == (Stage.CONNECTION, "Connection refused")


async def test_an_unknown_host_name_ends_at_the_name_stage(certificates: CertificateSet, tmp_path: Path) -> None:
    """Name resolution fails before any connection."""
    found = await probe_apiserver(await access(certificates, tmp_path, 6443, "nowhere.invalid"), now)
    assert found.stage == Stage.NAME
    assert found.error


async def test_an_untrusted_certificate_ends_at_the_tls_stage_and_is_returned(
    certificates: CertificateSet, tmp_path: Path
) -> None:
    """The error names the issuer problem, and the presented certificate is available for the finding."""
    async with serving(certificates) as port:
        other = {"certificate-authority-data": inline(certificates.other_authority.pem)}
        found = await probe_apiserver(await access(certificates, tmp_path, port, **other), now)
    assert found.stage == Stage.TLS
    assert "issuer" in found.error
    assert x509.load_der_x509_certificate(found.shown) == x509.load_pem_x509_certificate(certificates.server)


async def test_a_certificate_for_another_name_has_the_expected_name_in_the_error(
    certificates: CertificateSet, tmp_path: Path
) -> None:
    """The TLS library's message contains the name."""
    async with serving(certificates) as port:
        found = await probe_apiserver(
            await access(certificates, tmp_path, port, **{"tls-server-name": "else.example"}), now
        )
    assert (found.stage, "mismatch" in found.error, "else.example" in found.error) == (Stage.TLS, True, True)


async def test_a_server_that_closes_the_connection_ends_at_the_tls_stage(
    certificates: CertificateSet, tmp_path: Path
) -> None:
    """The server presents no certificate."""

    async def close(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Close the connection."""
        writer.close()

    async with await asyncio.start_server(close, "127.0.0.1", 0) as server:
        found = await probe_apiserver(await access(certificates, tmp_path, server.sockets[0].getsockname()[1]), now)
    assert (found.stage, found.shown) == (Stage.TLS, b"")


async def test_dialled_stops_after_tls_and_sends_no_request(certificates: CertificateSet, tmp_path: Path) -> None:
    """It uses the given TLS trust, and succeeds although the server would respond with an error."""
    async with serving(certificates, status=500) as port:
        found: ContactResult = await probe_server(
            server_endpoint(await access(certificates, tmp_path, port)), unverified_tls()
        )
    assert found.stage == Stage.DONE


async def test_a_server_endpoint_contains_no_token_or_key(certificates: CertificateSet, tmp_path: Path) -> None:
    """Its repr contains neither the token nor the private key."""
    endpoint = server_endpoint(await access(certificates, tmp_path, 6443))
    assert endpoint.host_and_port == "127.0.0.1:6443"
    assert endpoint.origin == str(tmp_path / "kubeconfig")
    assert TOKEN not in repr(endpoint)
    path = tmp_path / "with-key"
    user = {"client-certificate-data": inline(certificates.alice), "client-key-data": inline(certificates.alice_key)}
    path.write_text(kubeconfig(user, {"certificate-authority-data": inline(certificates.authority.pem)}))
    endpoint = server_endpoint(await from_kubeconfig(path))
    assert endpoint.certificate == certificates.alice
    assert "PRIVATE" not in repr(endpoint)
    assert yaml.safe_load(path.read_text())["users"][0]["user"]["client-key-data"] not in repr(endpoint)


def jwt(claims: Any) -> str:
    """Return a token with these claims."""
    part = base64.urlsafe_b64encode(orjson.dumps(claims)).rstrip(b"=").decode()
    return f"e30.{part}.c2lnbmF0dXJl"


@pytest.mark.parametrize(
    ("token", "found"),
    [
        (jwt({"sub": "system:serviceaccount:a:b", "exp": 0}), TokenInfo("system:serviceaccount:a:b", EPOCH)),
        (jwt({"sub": "a"}), TokenInfo("a")),
        (jwt([]), TokenInfo()),
        (jwt({"exp": "soon"}), TokenInfo()),
        (jwt({"exp": 1e300}), TokenInfo()),
        ("an-opaque-token", TokenInfo()),
        ("a.b.c", TokenInfo()),
        ("a.!!!.c", TokenInfo()),
        ("", TokenInfo()),
    ],
)
def test_token_of_returns_subject_and_expiry_of_a_jwt(token: str, found: TokenInfo) -> None:
    """A token that is no valid JWT has no information, and raises no error."""
    assert token_info(token) == found


def test_an_ipv6_address_is_written_in_brackets() -> None:
    """The notation is that of URLs."""
    assert ServerEndpoint("", "", "::1", 6443, "::1").host_and_port == "[::1]:6443"
