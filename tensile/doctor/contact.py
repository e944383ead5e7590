"""Goes the way to a server step by step, so that what fails on it has a name: DNS, connection, TLS, answer, login.

Each step has a time of its own. Names are looked up in a thread that nobody waits for: a resolver may take half a
minute, and a process does not end before the threads of its pool.
"""

import asyncio
import socket
import ssl
import threading
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from http import HTTPStatus

import orjson

from tensile import __version__
from tensile.doctor.facts import Contact, Stage, Token, Way
from tensile.kube.access import Access
from tensile.kube.aio import aiohttp, beginning
from tensile.kube.dialing import connected
from tensile.kube.rest import Streams
from tensile.kube.tokenclaims import claims_of, token_in
from tensile.kube.transport import cause_of

STEP_SECONDS = 3.0
"""For one step."""
_TEXT = "application/json, */*"
_MOST = 1 << 20

Now = Callable[[], datetime]


def way_of(access: Access) -> Way:
    """Give what may be told of an access."""
    return Way(
        origin=access.origin,
        url=access.url,
        host=access.address,
        port=access.port,
        name=access.server_name,
        authority=access.papers.authority,
        certificate=access.papers.certificate,
        token=token_of(token_in(access)),
        flags=access.flags,
    )


def token_of(token: str) -> Token:
    """Read what a token says of itself; one that is no JWT says nothing."""
    said = claims_of(token)
    try:
        until = datetime.fromtimestamp(said["exp"], UTC) if "exp" in said else None
    except (OverflowError, OSError, TypeError, ValueError):
        return Token()
    return Token(str(said.get("sub", "")), until)


def trusting_anybody() -> ssl.SSLContext:
    """Give the TLS for seeing who answers: no credential, and nothing else, may be sent by it."""
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    tls.check_hostname = False
    tls.verify_mode = ssl.CERT_NONE
    return tls


async def contacted(access: Access, now: Now) -> Contact:
    """Go the whole way to an apiserver, as who the access says."""
    found = await dialled(way_of(access), access.tls)
    if found.stage != Stage.DONE:
        return found
    try:
        begun = now()
        status, body, date = await asked(access, "/version")
    except (aiohttp.ClientError, OSError, TimeoutError, ValueError) as error:
        return found._replace(stage=Stage.ANSWER, error=why(error))
    found = found._replace(ahead=_ahead(date, begun, now()))
    if status == HTTPStatus.UNAUTHORIZED:
        return found._replace(stage=Stage.LOGIN, error="HTTP 401")
    version = _version(body) if status == HTTPStatus.OK else ""
    if not version and status != HTTPStatus.FORBIDDEN:
        return found._replace(stage=Stage.ANSWER, error=f"HTTP {status}, and nothing that tells a version")
    return found._replace(version=version)


async def dialled(way: Way, tls: ssl.SSLContext) -> Contact:
    """Go as far as TLS."""
    try:
        await _looked_up(way.host, way.port)
    except (OSError, TimeoutError, ValueError) as error:
        return Contact(way, Stage.NAME, why(error))
    try:
        await _connected(way, None)
    except (OSError, TimeoutError) as error:
        return Contact(way, Stage.CONNECTION, why(error))
    try:
        return Contact(way, Stage.DONE, shown=await _connected(way, tls))
    except TimeoutError as error:
        return Contact(way, Stage.TLS, why(error))
    except (OSError, ValueError) as error:
        return Contact(way, Stage.TLS, why(error), await _certificate(way))


async def asked(access: Access, path: str) -> tuple[int, bytes, str]:
    """Ask for a path; gives HTTP's status, the beginning of the body, and the Date of the answer.

    Raises aiohttp.ClientError, OSError, TimeoutError or ValueError.
    """
    headers = {"User-Agent": f"tensile/{__version__}", "Accept": _TEXT, **access.headers}
    streams = Streams()
    try:
        async with streams.opened(access, path, headers, seconds=STEP_SECONDS) as reply:
            return reply.status, await beginning(reply.content, _MOST), reply.headers.get("Date", "")
    finally:
        await streams.close()


def why(error: Exception) -> str:
    """Return in a few words what went wrong."""
    return f"no answer in {STEP_SECONDS:g} s" if isinstance(error, TimeoutError) else cause_of(error, str(error))


async def _looked_up(host: str, port: int) -> None:
    """Look a name up; raises OSError or TimeoutError."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[None] = loop.create_future()

    def tell(error: Exception | None) -> None:
        """End the wait, should anybody still wait."""
        if not done.done():
            done.set_result(None) if error is None else done.set_exception(error)

    def look() -> None:
        """Ask the system's resolver."""
        problem: Exception | None = None
        try:
            socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except (OSError, ValueError) as error:
            problem = error
        with suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(tell, problem)

    threading.Thread(target=look, daemon=True).start()
    async with asyncio.timeout(STEP_SECONDS):
        await done


async def _connected(way: Way, tls: ssl.SSLContext | None) -> bytes:
    """Connect, by TLS where there is one, and hang up; gives the certificate that was shown (DER)."""
    name = way.name if tls else None
    async with asyncio.timeout(STEP_SECONDS):
        plain = await connected(way.host, way.port)
        try:
            _, writer = await asyncio.open_connection(sock=plain, ssl=tls, server_hostname=name)
        except BaseException:
            plain.close()
            raise
    try:
        made = writer.get_extra_info("ssl_object")
        return (made.getpeercert(binary_form=True) or b"") if made else b""
    finally:
        writer.transport.abort()


async def _certificate(way: Way) -> bytes:
    """See which certificate a server shows that is not trusted; nothing is sent to it."""
    try:
        return await _connected(way, trusting_anybody())
    except (OSError, TimeoutError, ValueError):
        return b""


def _ahead(date: str, begun: datetime, ended: datetime) -> float | None:
    """Say by how many seconds a server's clock is ahead; it tells whole seconds, those that have begun."""
    try:
        told = parsedate_to_datetime(date).astimezone(UTC) + timedelta(seconds=0.5)
    except ValueError:
        return None
    return (told - (begun + (ended - begun) / 2)).total_seconds()


def _version(body: bytes) -> str:
    try:
        return str(orjson.loads(body)["gitVersion"])
    except (KeyError, TypeError, ValueError):
        return ""
