"""Several engines that serve one webhook in turn: when one may be sent questions, and how it leaves."""

import asyncio
import itertools
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import orjson
import pytest
import pytest_asyncio
from answering import Answering
from hookkit import NAME, PACE, Scene, scene

from bench.spareports import spare_port
from tensile.errors import Conflict, Denied, TensileError, Unreachable
from tensile.kube.cluster import Patch
from tensile.kube.tls import self_signed
from tensile.objects import MUTATING_WEBHOOK, UPPER, Ref
from tensile.policy.webhook.listener import WebhookListener, call
from tensile.policy.webhook.registration import bundle_in, certificates_in
from tensile.reconcile.dryrun.cluster import DryRunCluster

WAITS = "the upper's apiserver does not trust the webhook's certificate yet"
ASKED = b"POST /mutate HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\n\r\nbody"
PATIENCE = 30.0


@pytest_asyncio.fixture
async def here(tmp_path: Path) -> AsyncIterator[Scene]:
    """A scene with an empty cluster."""
    async with scene(tmp_path) as made:
        yield made


async def test_the_first_engine_may_be_asked_as_soon_as_it_has_looked(here: Scene) -> None:
    """Nobody asks before it is registered; what is not served is waited for by nobody."""
    assert here.server.waits() == ""
    await here.server.serve(here.topology())
    assert here.server.waits() == WAITS
    await here.server.look()
    assert here.server.waits() == ""


async def test_another_engine_waits_until_every_apiserver_has_heard_of_its_certificate(
    here: Scene, tmp_path: Path
) -> None:
    """What is registered already leads to it once it counts as ready: sooner, its answers would be refused."""
    await here.server.serve(here.topology())
    await here.server.look()
    async with scene(tmp_path, here.upper) as other:
        await other.server.serve(other.topology())
        await other.server.look()
        trusted = certificates_in(bundle_in(here.registered() or {}))
        assert (len(trusted), other.server.waits()) == (2, WAITS)
        other.add_after(seconds=PACE.heard)
        assert other.server.waits() == ""
        assert here.server.waits() == "", "the first one goes on meanwhile"
        other.now -= timedelta(hours=1)
        assert other.server.waits() == "", "a time of day that is put back takes nothing away"


async def test_of_two_that_begin_together_the_slower_one_waits(here: Scene, tmp_path: Path) -> None:
    """Nobody asked when it looked first; once the other one is registered, it would not be trusted."""
    async with scene(tmp_path, here.upper) as other:
        await other.server.serve(other.topology(url="https://127.0.0.1:9/mutate"))
        await other.server.look()
        assert other.server.waits() == ""
        await here.server.serve(here.topology())
        await here.server.look()
        await other.server.look()
        assert (here.server.waits(), other.server.waits()) == ("", WAITS)
        other.add_after(seconds=PACE.heard)
        assert other.server.waits() == ""


@asynccontextmanager
async def in_turns(*ports: int) -> AsyncIterator[int]:
    """Return a port that leads each new connection to the next of these, as a Service does."""
    turns, passing = itertools.cycle(ports), set()

    async def passed(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Pass on all that comes one way."""
        with suppress(OSError):
            while chunk := await reader.read(1 << 16):
                writer.write(chunk)
        writer.close()

    async def led(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Lead one connection."""
        passing.add(asyncio.current_task())
        there, back = await asyncio.open_connection("127.0.0.1", next(turns))
        try:
            await asyncio.gather(passed(reader, back), passed(there, writer))
        finally:
            for end in (back, writer):
                end.close()
                with suppress(OSError):
                    await end.wait_closed()

    server = await asyncio.start_server(led, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        await asyncio.wait_for(asyncio.gather(*passing), PATIENCE)


async def test_engines_that_share_an_address_come_through_to_themselves(here: Scene, tmp_path: Path) -> None:
    """Neither trusts the other before one is registered, and the address leads to the other first."""
    async with scene(tmp_path, here.upper) as other, in_turns(other.port, here.port) as port:
        topologies = [one.topology(url=f"https://127.0.0.1:{port}/mutate") for one in (here, other)]
        for one, topology in zip((here, other), topologies, strict=True):
            await one.server.serve(topology)
        assert await here.server.look() == PACE.look
        assert await other.server.look() == PACE.look
        assert len(certificates_in(bundle_in(here.registered() or {}))) == 2


@asynccontextmanager
async def beside(first: Scene, directory: Path) -> AsyncIterator[Scene]:
    """Have one that leads registered, and another one of its name that was set up elsewhere stand by."""
    await first.server.serve(first.topology())
    await first.server.look()
    async with scene(directory, first.upper) as other:
        other.leads = False
        await other.server.serve(other.topology())
        yield other


async def test_one_that_stands_by_changes_nothing_but_whom_to_trust(here: Scene, tmp_path: Path) -> None:
    """Set up otherwise it would write it to and fro with the one that leads; when it leads itself it does write."""
    async with beside(here, tmp_path) as other:
        await other.server.look()
        found = here.registered() or {}
        assert found["webhooks"][0]["clientConfig"]["url"].endswith(f":{here.port}/mutate")
        assert len(certificates_in(bundle_in(found))) == 2
        for one in (here, other):
            assert await one.server.look() == PACE.look
        assert here.registered() == found, "both are at rest"
        here.leads, other.leads = False, True
        await other.server.look()
        for one in (here, other):
            await one.server.look()
        assert (here.registered() or {})["webhooks"][0]["clientConfig"]["url"].endswith(f":{other.port}/mutate")


async def test_one_that_stands_by_has_its_next_certificate_trusted(here: Scene, tmp_path: Path) -> None:
    """It may be asked by then: it serves the same Service, where it was set up together with the other."""
    async with beside(here, tmp_path) as other:
        await other.server.look()
        other.add_after(days=22)
        await other.server.look()
        assert len(certificates_in(bundle_in(here.registered() or {}))) == 3


async def test_one_that_stands_by_takes_nothing_back(here: Scene, tmp_path: Path) -> None:
    """The one that leads serves a webhook; this one does not, and looks again, as it may lead some day."""
    async with beside(here, tmp_path) as other:
        await other.server.serve(other.topology(enabled=False))
        assert await other.server.look() == PACE.look
        assert here.registered() is not None
        other.leads = True
        assert await other.server.look() == PACE.look
        assert here.registered() is None


async def test_what_is_taken_back_stays_away(here: Scene, tmp_path: Path) -> None:
    """Another one that has not heard of the edit registers it once more, and must not take it back: this one looks."""
    async with beside(here, tmp_path) as other:
        await here.server.serve(here.topology(enabled=False))
        assert await here.server.look() == PACE.look
        await other.server.look()
        assert here.registered() is not None
        await other.server.serve(other.topology(enabled=False))
        await here.server.look()
        await other.server.look()
        assert here.registered() is None
        assert await here.server.look() is None


async def test_two_that_do_not_agree_do_not_make_and_delete_for_ever(here: Scene, tmp_path: Path) -> None:
    """Another one of that name goes on registering it by a topology of its own: in the end it has its way."""
    async with beside(here, tmp_path) as other:
        await here.server.serve(here.topology(enabled=False))
        rests = []
        for _ in range(5):
            rests.append(await here.server.look())
            await other.server.look()
        assert rests == [*3 * [PACE.look], None, None]
        assert here.registered() is not None
        await here.server.serve(here.topology(enabled=False))
        await here.server.look()
        assert here.registered() is None, "an edit asks for it anew"


async def test_an_address_that_leads_to_others_only_is_given_up(here: Scene, tmp_path: Path) -> None:
    """What answers there is nobody that this engine trusts: said, and tried again after a rest."""
    async with scene(tmp_path) as stranger:
        await stranger.server.serve(stranger.topology())
        await here.server.serve(here.topology(url=f"https://127.0.0.1:{stranger.port}/mutate"))
        assert await here.server.look() == PACE.rest
        assert here.registered() is None
        assert await stranger.server.look() == PACE.look, "it goes on as before"


class Refusing(DryRunCluster):
    """A cluster that lets nobody change a thing while it `refuses`."""

    refuses = False

    async def patch(self, ref: Ref, patch: Patch, subresource: str = "") -> bytes:
        """Patch, or refuse to."""
        if self.refuses:
            raise Denied("no right to that", status=403)
        return await super().patch(ref, patch, subresource)


async def heard(here: Scene) -> str:
    """Call the webhook as an apiserver does, by what is registered, and return where that was."""
    (hook,) = (here.registered() or {})["webhooks"]
    await call(hook["clientConfig"]["url"], bundle_in(here.registered() or {}))
    return str(hook["clientConfig"]["url"])


async def test_another_address_on_the_same_port_turns_nobody_away(here: Scene) -> None:
    """The certificate for it is trusted before it is shown, and is for the former one until the new one answers."""
    await here.server.serve(here.topology())
    await here.server.look()
    here.add_after(seconds=PACE.heard)
    other = f"https://localhost:{here.port}/mutate"
    await here.server.serve(here.topology(url=other))
    addresses = [await heard(here)]
    while addresses[-1] != other:
        assert here.server.waits() == ""
        here.add_after(seconds=await here.server.look() or 0.0)
        addresses.append(await heard(here))
    assert len(addresses) <= 4


async def test_an_address_that_nobody_answers_at_leaves_the_one_that_works(here: Scene) -> None:
    """However long the edit stands, and when it is corrected."""
    await here.server.serve(here.topology())
    await here.server.look()
    before = await heard(here)
    await here.server.serve(here.topology(url=f"https://nowhere.invalid:{here.port}/mutate"))
    for _ in range(5):
        await here.server.look()
        here.add_after(seconds=30)
        assert (await heard(here), here.server.waits()) == (before, "")
    await here.server.serve(here.topology())
    await here.server.look()
    assert await heard(here) == before


async def test_an_address_that_is_taken_out_leaves_the_certificate(here: Scene) -> None:
    """The one that is registered is asked for as long as it stands."""
    await here.server.serve(here.topology())
    await here.server.look()
    topology = here.topology()
    nowhere = topology.model_copy(update={"webhook": topology.webhook.model_copy(update={"url": None})})
    await here.server.serve(nowhere)
    for _ in range(5):
        await here.server.look()
        here.add_after(seconds=60)
        await heard(here)


async def test_what_is_taken_back_leaves_the_certificate_that_is_trusted(here: Scene) -> None:
    """An edit of address and port whose port was taken: the move that comes later shows what apiservers know."""
    await here.server.serve(here.topology())
    await here.server.look()
    before = here.server._shown
    with socket.create_server(("127.0.0.1", 0)) as taken:
        there = taken.getsockname()[1]
        topology = here.topology(url=f"https://localhost:{there}/mutate")
        moved = topology.model_copy(update={"webhook": topology.webhook.model_copy(update={"port": there})})
        with pytest.raises(TensileError, match="is taken"):
            await here.server.serve(moved)
    await here.server.serve(here.topology())
    assert here.server._shown == before
    here.port = spare_port()
    await here.server.serve(here.topology())
    assert here.server._shown == before
    await here.server.look()
    await heard(here)


async def test_a_renewal_without_an_address_is_trusted_before_it_is_shown(here: Scene) -> None:
    """What is registered is asked for as long as it stands."""
    await here.server.serve(here.topology())
    await here.server.look()
    topology = here.topology()
    nowhere = topology.model_copy(update={"webhook": topology.webhook.model_copy(update={"url": None})})
    await here.server.serve(nowhere)
    before = here.server._shown
    here.add_after(days=25)
    for _ in range(60):
        here.add_after(seconds=await here.server.look() or 0.0)
        known = certificates_in(bundle_in(here.registered() or {}))
        assert set(certificates_in(here.server._shown.certificate)) <= set(known)
    assert here.server._shown != before


async def test_a_patch_that_is_refused_leaves_who_is_trusted_ready(tmp_path: Path) -> None:
    """Only a certificate that the apiserver does not know yet is a reason to be asked no more."""
    upper = Refusing(UPPER, now=lambda: datetime.now(UTC))
    async with scene(tmp_path, upper) as here:
        await here.server.serve(here.topology())
        await here.server.look()
        here.add_after(seconds=PACE.heard)
        upper.refuses = True
        await here.server.serve(here.topology(url=f"https://localhost:{here.port}/mutate"))
        assert await here.server.look() == PACE.rest
        assert here.server.waits() == ""
        await heard(here)


async def test_who_deletes_the_registration_while_the_address_changes_waits_for_nothing(here: Scene) -> None:
    """Nobody asks at the former address any more."""
    await here.server.serve(here.topology())
    await here.server.look()
    other = f"https://localhost:{here.port}/mutate"
    await here.server.serve(here.topology(url=other))
    found = (here.registered() or {})["metadata"]
    ref = Ref(UPPER, MUTATING_WEBHOOK, "", NAME)
    await here.upper.delete(ref, uid=found["uid"], version=found["resourceVersion"])
    await here.server.look()
    assert await heard(here) == other


async def test_a_certificate_in_files_that_is_given_up_stays_trusted(here: Scene, tmp_path: Path) -> None:
    """Another replica may have heard later of it."""
    pair = self_signed("ours", "127.0.0.1", ("127.0.0.1",), datetime.now(UTC), timedelta(days=90))
    (tmp_path / "tls.crt").write_bytes(pair.certificate)
    (tmp_path / "tls.key").write_bytes(pair.key)
    await here.server.serve(here.topology(", tlsCertFile: tls.crt, tlsKeyFile: tls.key"))
    await here.server.look()
    await here.server.serve(here.topology())
    for _ in range(5):
        here.add_after(seconds=await here.server.look() or 0.0)
        assert set(certificates_in(pair.certificate)) <= set(certificates_in(bundle_in(here.registered() or {})))


@pytest.mark.parametrize("leads", [True, False])
async def test_a_certificate_in_files_stays_trusted_while_others_show_it(tmp_path: Path, *, leads: bool) -> None:
    """One Secret is mounted by all replicas, and changes for one of them a minute before it does for the other."""
    files = ", tlsCertFile: tls.crt, tlsKeyFile: tls.key"
    early, late = tmp_path / "early", tmp_path / "late"

    def write(*directories: Path) -> None:
        """Write a new pair."""
        pair = self_signed("ours", "127.0.0.1", ("127.0.0.1",), datetime.now(UTC), timedelta(days=90))
        for directory in directories:
            directory.mkdir(exist_ok=True)
            (directory / "tls.crt").write_bytes(pair.certificate)
            (directory / "tls.key").write_bytes(pair.key)

    write(early, late)
    async with scene(early) as one, scene(late, one.upper) as other:
        one.leads, other.leads = leads, not leads
        for each in (one, other):
            await each.server.serve(each.topology(files))
            await each.server.look()
        write(early)
        for _ in range(8):
            for each in (one, other):
                each.add_after(seconds=PACE.look)
                await each.server.look()
                for asked in (one, other):
                    await call(f"https://127.0.0.1:{asked.port}/mutate", bundle_in(one.registered() or {}))


async def test_an_engine_that_cannot_make_itself_trusted_is_not_asked(tmp_path: Path) -> None:
    """It is looked at again soon where another engine was quicker; what is refused stays so for longer."""
    async with scene(tmp_path) as first:
        await first.server.serve(first.topology())
        await first.server.look()
        there = first.registered() or {}
    upper = Answering("")
    async with scene(tmp_path, upper) as here:
        upper.answer("read", there, there)
        upper.answer("patch", Conflict("changed since", status=409), Denied("no right to that", status=403))
        await here.server.serve(here.topology())
        assert (await here.server.look(), here.server.waits()) == (PACE.again, WAITS)
        assert (await here.server.look(), here.server.waits()) == (PACE.rest, WAITS)


@pytest.mark.parametrize(
    ("error", "waits"), [(Denied("no right to that", status=403), ""), (Unreachable("away"), WAITS)]
)
async def test_an_engine_that_may_not_look_is_asked_by_nobody_through_it(
    tmp_path: Path, error: Exception, waits: str
) -> None:
    """Somebody else registers it then, and sees to trust; a cluster that is away is waited for."""
    upper = Answering("")
    async with scene(tmp_path, upper) as here:
        upper.answer("read", error)
        await here.server.serve(here.topology())
        await here.server.look()
        assert here.server.waits() == waits


async def test_what_is_somebody_elses_under_our_name_holds_up_nobody(here: Scene) -> None:
    """It is never ours to be asked through; the rest of the engine is needed all the same."""
    here.upper.place(MUTATING_WEBHOOK, {"metadata": {"name": NAME}, "webhooks": []})
    await here.server.serve(here.topology())
    await here.server.look()
    assert here.server.waits() == ""


async def test_without_an_address_nobody_is_waited_for(here: Scene) -> None:
    """It is served for whoever registers it by hand."""
    topology = here.topology()
    nowhere = topology.model_copy(update={"webhook": topology.webhook.model_copy(update={"url": None})})
    await here.server.serve(nowhere)
    await here.server.look()
    assert here.server.waits() == ""


class Asker:
    """Somebody who keeps a connection open and asks on it again and again, as an apiserver does."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def ask(self) -> bytes:
        """Ask once, and return the head of the answer, in small letters, b"" where the connection has ended."""
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
