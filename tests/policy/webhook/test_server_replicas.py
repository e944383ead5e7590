"""Several engines that serve one webhook: they share a certificate, one of them keeps it, and they leave in order."""

import asyncio
import ssl
from base64 import b64encode
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import orjson
import pytest
import pytest_asyncio
from answering import Answering
from hookkit import INSIDE, SECRET_NAME, Scene, scene
from tasks import background

from tensile.errors import Conflict, Denied, NotFound
from tensile.kube.cluster import Patch
from tensile.kube.tls import self_signed
from tensile.objects import MUTATING_WEBHOOK, SECRET, UPPER, Manifest, Ref
from tensile.policy.webhook.certificates import OVERLAP, certificates_of
from tensile.policy.webhook.registration import call
from tensile.policy.webhook.server import AGAIN, LOOK, REST, WebhookListener
from tensile.reconcile.dryrun.cluster import DryRunCluster
from tensile.reconcile.redaction import UNTOLD

ASKED = b"POST /mutate HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\n\r\nbody"
PATIENCE = 30.0
NONE_YET = "the webhook has no certificate yet: waiting for the Secrets of the upper cluster"


@pytest_asyncio.fixture
async def here(tmp_path: Path) -> AsyncIterator[Scene]:
    """The engine that leads, in an empty cluster."""
    async with scene(tmp_path, inside=INSIDE) as made:
        yield made


@pytest_asyncio.fixture
async def other(here: Scene, tmp_path: Path) -> AsyncIterator[Scene]:
    """Another engine in that cluster, which stands by, on a port of its own."""
    async with scene(tmp_path, here.upper, INSIDE) as made:
        made.leads = False
        yield made


async def heard(*engines: Scene) -> None:
    """Call each engine, trusting what is registered."""
    for engine in engines:
        await call(f"https://127.0.0.1:{engine.port}/mutate", engine.trusted())


async def pass_on(seconds: float, *engines: Scene) -> None:
    """Let time pass for engines, and have each look."""
    for engine in engines:
        engine.add_after(seconds=seconds)
        await engine.server.look()


def authority(of: Scene) -> bytes:
    """Return the CA in the Secret."""
    found = certificates_of(of.secret() or {})
    assert found is not None
    return found.authority.certificate


async def test_the_one_that_leads_makes_the_certificate_and_all_serve_it(here: Scene, other: Scene) -> None:
    """What is trusted is its CA."""
    assert await here.begin() == LOOK
    assert await other.begin() == LOOK
    assert here.server.waits() == other.server.waits() == ""
    assert await here.shown() == await other.shown()
    assert here.trusted() == authority(here)
    await heard(here, other)


async def test_one_that_stands_by_makes_it_where_nobody_has(here: Scene, other: Scene) -> None:
    """It cannot be ready without, and a leader of another version makes none; who leads goes on with it."""
    other.secrets.mark_stale()
    assert await other.begin() == LOOK
    assert (other.server.waits(), here.secret()) == (NONE_YET, None)
    other.secrets.replace((), 0)
    assert await other.server.look() == LOOK
    assert (other.server.waits(), here.registered()) == ("", None)
    made = here.secret()
    await here.begin()
    assert here.secret() == made
    await heard(here, other)


async def test_one_that_stands_by_writes_nothing(here: Scene, other: Scene) -> None:
    """Set up elsewhere it would write it to and fro with the one that leads; when it leads itself it does write."""
    for one in (here, other):
        one.add_after(days=-22)
        await one.begin()
    before = (here.registered(), here.secret())
    other.add_after(days=22)
    await other.server.look()
    await other.server.serve(other.topology(enabled=False))
    assert await other.server.look() is None
    assert (here.registered(), here.secret()) == before
    await other.begin()
    await here.delete_secret()
    await other.server.look()
    assert here.secret() is None, "it has a certificate"
    here.leads, other.leads = False, True
    await other.begin()
    assert str(other.port) in await here.heard()


async def test_who_takes_over_goes_on_with_what_is_there(
    here: Scene, other: Scene, capsys: pytest.CaptureFixture[str]
) -> None:
    """Neither the Secret nor trust changes hands: no call fails while another engine begins to lead, or starts."""
    await here.begin()
    secret, trusted = here.secret(), here.trusted()
    await other.begin()
    here.leads, other.leads = False, True
    await other.server.look()
    assert (here.secret(), here.trusted()) == (secret, trusted)
    assert capsys.readouterr().out.count("the webhook has a new certificate") == 1
    await heard(here, other)


async def test_the_certificate_is_renewed_and_trust_stays(here: Scene, other: Scene) -> None:
    """Under the same CA: whoever serves which of the two, apiservers take both."""
    for one in (here, other):
        one.add_after(days=-22)
        await one.begin()
    first, registered = await here.shown(), here.registered()
    here.add_after(days=22)
    await here.server.look()
    assert await here.shown() != first
    await heard(here, other)
    await other.server.look()
    assert await here.shown() == await other.shown()
    assert here.registered() == registered
    await heard(here, other)


async def test_a_secret_that_is_deleted_is_made_anew_and_no_call_fails(here: Scene, other: Scene) -> None:
    """With another CA: both are trusted, until nobody can serve the former one any more; then it is not."""
    for one in (here, other):
        await one.begin()
    first, former = await here.shown(), authority(here)
    await here.delete_secret()
    await pass_on(0.0, other, here, other)
    assert authority(here) != former
    assert (await here.shown(), await other.shown(), here.trusts()) == (first, first, 2)
    await heard(here, other)
    await pass_on(OVERLAP, here)
    await heard(here, other)
    await pass_on(OVERLAP, other)
    assert await here.shown() == await other.shown() != first
    await heard(here, other)
    await pass_on(OVERLAP, here)
    assert here.trusted() == authority(here)
    await heard(here, other)


@asynccontextmanager
async def running(engine: Scene) -> AsyncIterator[asyncio.Queue[bool]]:
    """Run an engine, which has to be quicker than its next check; give whether the Secret is there as that changes."""
    news: asyncio.Queue[bool] = asyncio.Queue()
    engine.secrets.subscribe(lambda delta: news.put_nowait(delta.after is not None))
    await engine.server.serve(engine.topology())
    async with background(engine.server.run()), asyncio.timeout(LOOK / 2):
        yield news


async def test_a_change_of_the_secret_is_noticed_at_once(here: Scene) -> None:
    """Not after the rest that was due."""
    async with running(here) as news:
        assert await news.get()
        await here.delete_secret()
        assert [await news.get(), await news.get()] == [False, True]


async def test_who_waits_for_the_secrets_goes_on_once_they_are_known(other: Scene) -> None:
    """An engine that begins has not listed them yet."""
    other.secrets.mark_stale()
    async with running(other) as news:
        await asyncio.sleep(0)
        other.secrets.replace((), 0)
        assert await news.get()


def foreign(data: Any = None) -> Manifest:
    """Make a Secret of the name that nobody of ours made."""
    return {"metadata": {"namespace": INSIDE, "name": SECRET_NAME}, "data": data or {}}


async def test_a_secret_of_somebody_else_is_left_alone_and_not_served(here: Scene, other: Scene) -> None:
    """Whatever is in it; that is said, and it is ours once it was deleted."""
    there = here.upper.place(SECRET, foreign())
    here.secrets.put(orjson.dumps(there))
    for one in (here, other):
        assert await one.begin() == REST
    assert (
        "Secret engines/tensile-webhook-demo belongs to another owner and is left unchanged: delete it"
        in here.server.waits()
    )
    assert (here.secret(), here.registered()) == (there, None)
    await here.server.serve(here.topology(enabled=False))
    await here.server.look()
    assert here.secret() == there
    await here.delete_secret()
    assert await here.begin() == LOOK
    await here.heard()


async def test_who_served_before_a_stranger_took_the_name_serves_on(here: Scene) -> None:
    """Apiservers trust that certificate."""
    await here.begin()
    await here.delete_secret()
    there = here.upper.place(SECRET, foreign())
    assert await here.server.look() == REST
    assert here.secret() == there
    assert here.server.waits() == ""
    await here.heard()


async def test_what_somebody_wrote_into_our_secret_is_replaced(here: Scene, other: Scene) -> None:
    """It is still ours; who stands by serves on what it has, and whoever has nothing waits."""
    for one in (here, other):
        await one.begin()
    spoilt = {"data": {"tls.crt": b64encode(b"no certificate").decode()}}
    found = (here.secret() or {})["metadata"]
    body = {**spoilt, "metadata": {"uid": found["uid"], "resourceVersion": found["resourceVersion"]}}
    await here.upper.patch(Ref(UPPER, SECRET, INSIDE, SECRET_NAME), Patch("merge-patch", body))
    assert await other.server.look() == REST
    await heard(other)
    await pass_on(0.0, here, other)
    assert certificates_of(here.secret() or {}) is not None
    await pass_on(2 * OVERLAP, here, other)
    await heard(here, other)


class Hidden(DryRunCluster):
    """A cluster in which another engine is quicker: the Secret is not there yet when it is first looked for."""

    hides = 1

    async def read(self, ref: Ref) -> bytes:
        """Read, or find nothing."""
        if ref.kind == SECRET and self.hides:
            self.hides -= 1
            raise NotFound("no such Secret", status=404)
        return await super().read(ref)


async def test_of_two_that_make_the_secret_one_takes_that_of_the_other(tmp_path: Path) -> None:
    """Nothing is written over."""
    upper = Hidden(UPPER, now=lambda: datetime.now(UTC))
    async with scene(tmp_path, upper, INSIDE) as here, scene(tmp_path, upper, INSIDE) as other:
        await other.begin()
        before, upper.hides = here.secret(), 1
        assert await here.begin() == AGAIN
        assert await here.server.look() == LOOK
        assert here.secret() == before
        await heard(here, other)


async def test_switched_off_both_are_taken_back(here: Scene, other: Scene) -> None:
    """By the one that leads; nothing of it is left, and again switched on it is there."""
    for one in (here, other):
        await one.begin()
        await one.server.serve(one.topology(enabled=False))
    await other.server.look()
    assert None not in (here.secret(), here.registered())
    assert await here.server.look() is None
    assert (here.secret(), here.registered()) == (None, None)
    await here.begin()
    assert None not in (here.secret(), here.registered())
    await here.heard()


async def test_what_a_refusal_quotes_of_the_secret_is_not_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A webhook or a policy of the cluster may answer with all that it was sent."""

    class Quoting(DryRunCluster):
        """A cluster that refuses Secrets, and repeats them."""

        async def create(self, ref: Ref, body: Manifest) -> bytes:
            """Refuse, with the key."""
            raise Denied(f"{ref}: no {body['data']['tls.key']}", status=403)

    async with scene(tmp_path, Quoting(UPPER, now=lambda: datetime.now(UTC)), INSIDE) as here:
        assert await here.begin() == REST
        assert UNTOLD in here.server.waits()
    assert UNTOLD in capsys.readouterr().out


async def test_where_another_was_quicker_it_is_looked_at_again_soon(tmp_path: Path) -> None:
    """What is refused stays so for longer."""
    async with scene(tmp_path) as first:
        await first.begin()
        there = first.registered() or {}
    upper = Answering("")
    async with scene(tmp_path, upper) as here:
        upper.answer("read", there, there)
        upper.answer("patch", Conflict("changed since", status=409), Denied("no right to that", status=403))
        assert await here.begin() == AGAIN
        assert await here.server.look() == REST
        assert [one.ref.kind for one in upper.asked] == 4 * [MUTATING_WEBHOOK]


class Asker:
    """Somebody who keeps a connection open and asks on it again and again, as an apiserver does."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def ask(self) -> bytes:
        """Ask once; returns the head of the answer, in small letters, b"" where the connection has ended."""
        self.writer.write(ASKED)
        try:
            head = await self.reader.readuntil(b"\r\n\r\n")
        except (asyncio.IncompleteReadError, OSError):
            return b""
        length = int(head.lower().partition(b"content-length:")[2].split(b"\r\n")[0])
        await self.reader.readexactly(length)
        return head.lower()


@pytest_asyncio.fixture
async def left(here: Scene) -> AsyncIterator[tuple[WebhookListener, Asker]]:
    """A webhook that answers anything, and somebody who has asked it once."""
    pair = self_signed("x", "127.0.0.1", ["127.0.0.1"], here.now, timedelta(days=1))
    made = WebhookListener(pair, lambda _body: orjson.dumps({}))
    await made.start("127.0.0.1", 0)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    tls.load_verify_locations(cadata=pair.certificate.decode())
    asker = Asker(*await asyncio.open_connection("127.0.0.1", made.port, ssl=tls))
    head = await asker.ask()
    assert b" 200 " in head
    assert b"connection: close" not in head
    yield made, asker
    asker.writer.close()
    await made.close()


async def test_one_that_leaves_answers_what_is_asked_and_says_so(left: tuple[WebhookListener, Asker]) -> None:
    """The asker takes the next question elsewhere: none is lost on a connection that is cut."""
    listening, asker = left
    leaving = asyncio.ensure_future(listening.close())
    async with asyncio.timeout(PATIENCE):
        await asyncio.sleep(0)
        head = await asker.ask()
        assert b" 200 " in head
        assert b"connection: close" in head
        assert await asker.reader.read() == b""
        await leaving


async def test_one_that_leaves_listens_no_more(left: tuple[WebhookListener, Asker]) -> None:
    """Whoever comes now is to go elsewhere."""
    listening, _ = left
    port = listening.port
    leaving = asyncio.ensure_future(listening.close())
    await asyncio.sleep(0)
    with pytest.raises(OSError, match=r"."):
        await asyncio.open_connection("127.0.0.1", port)
    await leaving


async def test_one_that_leaves_does_not_wait_for_who_asks_nothing(left: tuple[WebhookListener, Asker]) -> None:
    """An idle connection is cut at one moment: there is no while in which it is open and nothing is answered."""
    listening, asker = left
    async with asyncio.timeout(PATIENCE):
        await listening.close()
        assert await asker.reader.read() == b""
