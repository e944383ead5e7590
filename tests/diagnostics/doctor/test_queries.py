"""The way to a server, step by step, over real sockets: where it ends has a name, and what is shown is told."""

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
from cryptography import x509
from papers import Papers, inline, kubeconfig

from bench.kit.spareports import spare_port
from tensile.diagnostics.doctor.facts import ContactResult, ServerEndpoint, Stage, TokenInfo
from tensile.diagnostics.doctor.queries import asked, contacted, dialled, token_of, trusting_anybody, way_of
from tensile.kube.credentials import Access, from_kubeconfig

TOKEN = "a-token"
AHEAD = timedelta(seconds=100)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@pytest.fixture(scope="module")
def papers(tmp_path_factory: pytest.TempPathFactory) -> Papers:
    """Certificates of two authorities, made once."""
    return Papers(tmp_path_factory.mktemp("papers"))


def now() -> datetime:
    """Return the time."""
    return datetime.now(UTC)


@asynccontextmanager
async def serving(papers: Papers, *, status: int = 200, body: Any = None, **headers: str) -> AsyncIterator[int]:
    """Serve one answer to everything, by TLS, and return the port."""

    async def answer(_request: web.BaseRequest) -> web.Response:
        """Return the answer."""
        told = {"gitVersion": "v1.36.3"} if body is None else body
        return web.Response(status=status, body=orjson.dumps(told), headers=headers)

    front = web.Server(answer, access_log=None)
    loop = asyncio.get_running_loop()
    server = await loop.create_server(front, "127.0.0.1", 0, ssl=papers.server_context())
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        await front.shutdown(0.0)


async def access(papers: Papers, directory: Path, port: int, host: str = "127.0.0.1", **cluster: str) -> Access:
    """Open the way to a port with a kubeconfig."""
    path = directory / "kubeconfig"
    trusted = {"certificate-authority-data": inline(papers.authority.pem), **cluster}
    path.write_text(kubeconfig({"token": TOKEN}, trusted, server=f"https://{host}:{port}"))
    return await from_kubeconfig(path)


async def test_the_whole_way(papers: Papers, tmp_path: Path) -> None:
    """Version, certificate and clock of a server that answers."""
    date = (now() + AHEAD).strftime("%a, %d %b %Y %H:%M:%S GMT")
    async with serving(papers, Date=date) as port:
        found = await contacted(await access(papers, tmp_path, port), now)
    assert (found.stage, found.version, found.error) == (Stage.DONE, "v1.36.3", "")
    assert found.ahead == pytest.approx(AHEAD.total_seconds(), abs=2)
    assert x509.load_der_x509_certificate(found.shown) == x509.load_pem_x509_certificate(papers.server)


async def test_a_credential_that_is_not_accepted(papers: Papers, tmp_path: Path) -> None:
    """The way ends at the login; its clock is told all the same."""
    async with serving(papers, status=401, body={}) as port:
        found = await contacted(await access(papers, tmp_path, port), now)
    assert found.stage == Stage.LOGIN
    assert found.ahead is not None


async def test_a_version_that_may_not_be_read(papers: Papers, tmp_path: Path) -> None:
    """Who is let in and may not see that is let in."""
    async with serving(papers, status=403, body={}) as port:
        found = await contacted(await access(papers, tmp_path, port), now)
    assert (found.stage, found.version) == (Stage.DONE, "")


async def test_an_answer_that_comes_in_pieces_is_read_whole(papers: Papers, tmp_path: Path) -> None:
    """As far as its beginning goes: nobody has to be read for ever."""
    async with serving(papers, body={"long": "x" * 700_000, "gitVersion": "v1.36.3"}) as port:
        found = await contacted(await access(papers, tmp_path, port), now)
    assert (found.stage, found.version) == (Stage.DONE, "v1.36.3")
    async with serving(papers, body="x" * 3_000_000) as port:
        status, body, _ = await asked(await access(papers, tmp_path, port), "/version")
    assert (status, len(body)) == (200, 1 << 20)


@pytest.mark.parametrize(("status", "body"), [(200, {"hello": "world"}), (200, []), (502, {}), (302, {})])
async def test_what_is_no_apiserver(papers: Papers, tmp_path: Path, status: int, body: Any) -> None:
    """It answers, and tells no version."""
    async with serving(papers, status=status, body=body) as port:
        found = await contacted(await access(papers, tmp_path, port), now)
    assert (found.stage, found.error) == (Stage.ANSWER, f"HTTP {status}, without a version")


@pytest.mark.parametrize("date", ["yesterday", "Fri, 31 Dec 9999 23:59:59 -1200"])
async def test_a_date_that_is_none(papers: Papers, tmp_path: Path, date: str) -> None:
    """Nothing is known of its clock then; a date may be none that Python can hold."""
    async with serving(papers, Date=date) as port:
        assert (await contacted(await access(papers, tmp_path, port), now)).ahead is None


async def test_a_port_at_which_nobody_listens(papers: Papers, tmp_path: Path) -> None:
    """No TLS is tried."""
    found = await contacted(await access(papers, tmp_path, spare_port()), now)
    assert (found.stage, found.error) == (Stage.CONNECTION, "Connection refused")


async def test_a_name_that_is_not_found(papers: Papers, tmp_path: Path) -> None:
    """No connection is tried."""
    found = await contacted(await access(papers, tmp_path, 6443, "nowhere.invalid"), now)
    assert found.stage == Stage.NAME
    assert found.error


async def test_a_certificate_of_another_authority_is_shown(papers: Papers, tmp_path: Path) -> None:
    """It is not trusted, and told; no credential is sent."""
    async with serving(papers) as port:
        other = {"certificate-authority-data": inline(papers.other.pem)}
        found = await contacted(await access(papers, tmp_path, port, **other), now)
    assert found.stage == Stage.TLS
    assert "issuer" in found.error
    assert x509.load_der_x509_certificate(found.shown) == x509.load_pem_x509_certificate(papers.server)


async def test_a_certificate_for_another_name(papers: Papers, tmp_path: Path) -> None:
    """The library's words say which name was wanted."""
    async with serving(papers) as port:
        found = await contacted(await access(papers, tmp_path, port, **{"tls-server-name": "else.example"}), now)
    assert (found.stage, "mismatch" in found.error, "else.example" in found.error) == (Stage.TLS, True, True)


async def test_a_server_that_hangs_up(papers: Papers, tmp_path: Path) -> None:
    """It takes the connection and wants no TLS."""

    async def close(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Hang up."""
        writer.close()

    async with await asyncio.start_server(close, "127.0.0.1", 0) as server:
        found = await contacted(await access(papers, tmp_path, server.sockets[0].getsockname()[1]), now)
    assert (found.stage, found.shown) == (Stage.TLS, b"")


async def test_a_way_can_be_gone_without_asking_anything(papers: Papers, tmp_path: Path) -> None:
    """As far as TLS, by whatever trust is given."""
    async with serving(papers, status=500) as port:
        found: ContactResult = await dialled(way_of(await access(papers, tmp_path, port)), trusting_anybody())
    assert found.stage == Stage.DONE


async def test_what_is_told_of_a_way_has_no_secret(papers: Papers, tmp_path: Path) -> None:
    """Neither the token nor a key."""
    way = way_of(await access(papers, tmp_path, 6443))
    assert way.where == "127.0.0.1:6443"
    assert way.origin == str(tmp_path / "kubeconfig")
    assert TOKEN not in repr(way)
    path = tmp_path / "with-key"
    user = {"client-certificate-data": inline(papers.alice), "client-key-data": inline(papers.alice_key)}
    path.write_text(kubeconfig(user, {"certificate-authority-data": inline(papers.authority.pem)}))
    way = way_of(await from_kubeconfig(path))
    assert way.certificate == papers.alice
    assert "PRIVATE" not in repr(way)
    assert yaml.safe_load(path.read_text())["users"][0]["user"]["client-key-data"] not in repr(way)


def jwt(claims: Any) -> str:
    """Write claims as a token has them."""
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
def test_what_a_token_tells_of_itself(token: str, found: TokenInfo) -> None:
    """Whose it is, and until when it holds; one that is no JWT tells nothing, and none does harm."""
    assert token_of(token) == found


def test_an_address_of_six_is_written_as_one() -> None:
    """In brackets, as in URLs."""
    assert ServerEndpoint("", "", "::1", 6443, "::1").where == "[::1]:6443"
