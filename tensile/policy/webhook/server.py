"""The webhook as the topology says: served, known to the upper's apiserver, and with a certificate that it trusts.

Registered is only what a call to itself, on the apiserver's way, has reached: a webhook that is registered and not
there costs every creation its patience. What somebody else registered under our name is left as it is. The webhook
that is not enabled any more is taken back; a program that merely ends leaves it, as it, or another one, comes back.
Of several engines the one that leads says what is registered: others may have been set up otherwise, and would change
it to and fro. They only have their certificates trusted there, and register it where nothing is yet.
"""

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple

import orjson
import structlog

from tensile.errors import AlreadyExists, ClusterError, Conflict, Denied, NotFound, TensileError
from tensile.kube.cluster import Cluster
from tensile.kube.file_watch import FileWatcher, KeptFiles
from tensile.kube.files import Unfit, read_regular
from tensile.kube.store import Cache
from tensile.kube.tls import Pair, self_signed, serving_tls
from tensile.names import Owner
from tensile.objects import Manifest, Ref, metadata
from tensile.policy.descheduler.records import nodes_tried
from tensile.policy.webhook.admission import Terms, terms_of
from tensile.policy.webhook.listener import Listening, call
from tensile.policy.webhook.registration import (
    address_of,
    bundle,
    bundle_in,
    certificates_in,
    change,
    configuration,
    names_of,
    ref_of,
    trusting,
)
from tensile.policy.webhook.review import answer
from tensile.reconcile.ownership import is_ours
from tensile.topology import Topology, Webhook

LIFE = timedelta(days=30)
"""Of a certificate of our own making; its key is in memory, so each start makes another one."""
_RENEWED_AT = 0.7
_UNPUBLISHED = 10.0
"""Overlaps after which a certificate is shown that could not be published: somebody else may see to that."""
_RETIRED = 3
_NAMES = 8
"""Most names in a certificate of our own making."""
_TAKEN_BACK = 3
"""How often what is registered is taken back after one edit."""
_TURNS = 8
"""How often the address is called in a row: of engines that begin together, which share it, none trusts another yet."""
_log = structlog.get_logger("tensile.webhook")


class Pace(NamedTuple):
    """Seconds: between two looks at what is registered, of a rest after trouble, and of overlap.

    A certificate that was published is shown after the overlap, when every apiserver has heard of it. One that is
    shown from the start counts as heard of after `heard`, until which nobody should be sent here. Where another engine
    wrote at the same time, it is looked at `again`.
    """

    look: float = 10.0
    rest: float = 5.0
    overlap: float = 20.0
    heard: float = 2.0
    again: float = 0.2


class NotOurs(TensileError):
    """What is registered under our name is somebody else's."""


class _Next(NamedTuple):
    """The certificate that comes next: since when it is at hand, and since when it is published, if it is.

    It is shown so many seconds after that (`overlap`).
    """

    pair: Pair
    since: datetime
    overlap: float
    published: datetime | None = None


class _Own(NamedTuple):
    """The certificate of our own making, and for which names; it outlasts a move, as apiservers trust it.

    One for another address is for the former ones, too, which stay registered until the new one is reached.
    """

    names: tuple[str, ...]
    pair: Pair


class Hooks(NamedTuple):
    """Where the webhook is at home: its upper cluster, whose it is, and what it looks things up in.

    Paths of the topology are relative to `directory`, and `watcher` watches them; `claims` holds the upper's claims,
    `nodes` the virtual nodes with the descheduler's notes; `namespace` is where this program runs, "" for in no
    cluster. `leads` says whether no other engine does.
    """

    upper: Cluster
    owner: Owner
    directory: Path
    claims: Cache
    nodes: Cache
    watcher: FileWatcher
    namespace: str = ""
    leads: Callable[[], bool] = lambda: True


class WebhookServer:
    """Serves the webhook of the topology in force, from the first `serve` to `close`.

    `run` keeps its certificate and its registration as they should be. `now` gives the time of day, and `clock` seconds
    of a clock that nobody sets: a time of day that is put back would have it wait anew.
    """

    def __init__(
        self,
        home: Hooks,
        pace: Pace | None = None,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._home = home
        self._pace = pace or Pace()
        self._now = now
        self._clock = clock
        self._topology: Topology
        self._terms: Terms
        self._listening: Listening | None = None
        self._is_wanted = False
        self._own: _Own | None = None
        self._served: Webhook | None = None
        self._shown: Pair
        self._next: _Next | None = None
        self._retired: list[Pair] = []
        self._is_reached = self._is_asked = False
        """Whether the address has answered, and whether an apiserver asks at one of them."""
        self._taken_back = 0
        self._welcome: float | None = None
        """From when on, by the clock, an apiserver may be sent here, None while that is not known."""
        self._woken = asyncio.Event()
        self._files: dict[tuple[Path, ...], KeptFiles] = {}
        self._trouble = ""

    @property
    def port(self) -> int:
        """The port that it listens on, 0 for none."""
        return self._listening.port if self._listening else 0

    def waits(self) -> str:
        """Return why no apiserver should be sent here yet, "" when it may: it asks already, and would not trust us.

        Where several engines serve one Service, the others answer until then.
        """
        if self._is_wanted and self._listening is None:
            return "the webhook is not served yet: its port cannot be had"
        if self._served is None or (self._welcome is not None and self._welcome <= self._clock()):
            return ""
        return "the upper's apiserver does not trust the webhook's certificate yet"

    async def serve(self, topology: Topology) -> None:
        """Do from now on as a topology says; raises TensileError, and all is as before, where that is not possible."""
        webhook = topology.webhook
        self._is_wanted = webhook.enabled
        if webhook.enabled and (self._listening is None or _moved(self._served, webhook)):
            await self._listen(webhook)
        self._topology, self._terms, self._taken_back = topology, terms_of(topology, self._home.namespace), 0
        if not webhook.enabled:
            await self._deafen()
        self._woken.set()

    async def run(self) -> None:
        """Look for ever, at once when the topology changes."""
        while True:
            self._woken.clear()
            rest = await self.look()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._woken.wait(), rest)

    async def look(self) -> float | None:
        """Look once at certificate and registration; returns the seconds until the next look, None for none."""
        topology = self._topology
        try:
            return await (self._looked(topology) if topology.webhook.enabled else self._took_back(topology))
        except Conflict:
            return self._pace.again

    async def close(self) -> None:
        """Serve no more; what is registered stays, for the program that comes after this one."""
        await self._deafen()

    async def _listen(self, webhook: Webhook) -> None:
        """Take the port, or change it; what was listened on before is given up once the new one is had.

        Where calls come already, the certificate that they trust is shown until another one is trusted.
        """
        pair = self._pair(webhook)
        first = self._shown if self._is_asked else pair
        same = self._served is not None and (self._served.bind, self._served.port) == (webhook.bind, webhook.port)
        if same and self._listening is not None:
            self._listening.show(first)
        else:
            opened = Listening(first, self._answer)
            await opened.start(webhook.bind, webhook.port)
            await self._deafen()
            self._listening = opened
        if not (same and self._is_asked):
            self._welcome = None
        self._forget_files(but=webhook)
        self._shown, self._next = first, None if pair == first else _Next(pair, self._now(), self._pace.heard)
        self._served, self._is_reached = webhook, False

    async def _deafen(self) -> None:
        listening, self._listening, self._served = self._listening, None, None
        self._forget_files()
        if listening is not None:
            await listening.close()

    def _answer(self, body: bytes) -> bytes:
        return answer(body, self._terms, self._node_of, self._tried)

    def _tried(self, owner: str) -> tuple[str, ...]:
        """Return the virtual nodes that pods of a controller shall not go to now."""
        return nodes_tried(self._home.nodes, self._topology.descheduler, self._now(), owner)

    def _node_of(self, namespace: str, name: str) -> str:
        """Return the node that was chosen for a claim, "" for none."""
        claim = self._home.claims.get(namespace, name)
        return str(claim.facts.selected) if claim else ""

    # The certificate.

    def _pair(self, webhook: Webhook) -> Pair:
        """Return the pair of the topology's files, or a new one of our own making; TensileError says what is wrong."""
        if webhook.tls_cert_file is None or webhook.tls_key_file is None:
            names = names_of(webhook) if self._own is None or webhook.is_reachable else self._own.names
            return self._own_pair(names)
        files = {"tlsCertFile": webhook.tls_cert_file, "tlsKeyFile": webhook.tls_key_file}
        paths = self._paths(webhook)
        kept = self._files.setdefault(paths, KeptFiles(self._home.watcher, paths, self._woken.set, read=read_regular))
        pair = Pair(*(_content(field, path, kept) for field, path in zip(files, paths, strict=True)))
        try:
            serving_tls(pair)
        except OSError as error:
            whose = f"webhook.tlsCertFile {files['tlsCertFile']} and webhook.tlsKeyFile {files['tlsKeyFile']}"
            raise TensileError(f"{whose}: no certificate and its key in PEM ({error}): give both anew") from None
        return pair

    def _own_pair(self, names: tuple[str, ...]) -> Pair:
        """Return the one that there is, where it is for these names, else another one, which takes its place in time."""
        own = self._own
        if own is not None and set(names) <= set(own.names) and not self._is_due(own.pair):
            return own.pair
        if own is not None:
            names = (*names, *(name for name in own.names if name not in names))[:_NAMES]
            self._retired = [*self._retired[1 - _RETIRED :], own.pair]
        self._own = _Own(names, self_signed("tensile", names[0], names, self._now(), LIFE))
        return self._own.pair

    def _paths(self, webhook: Webhook | None) -> tuple[Path, ...]:
        """Return the paths of certificate and key, none where the topology names none."""
        named = (webhook.tls_cert_file, webhook.tls_key_file) if webhook is not None else ()
        return tuple(self._home.directory / file for file in named if file is not None)

    def _forget_files(self, but: Webhook | None = None) -> None:
        """Watch the files of what was served no more."""
        for paths in self._files.keys() - {self._paths(but)}:
            self._files.pop(paths).close()

    def _prepare_next(self, webhook: Webhook) -> None:
        """Have another certificate at hand when the time has come, or the files say so."""
        newest = self._next.pair if self._next else self._shown
        if webhook.tls_cert_file is None and not self._is_due(newest):
            return
        pair = self._pair(webhook)
        if pair == self._shown:
            self._next = None
        elif pair != newest:
            self._next = _Next(pair, self._now(), self._pace.overlap)

    def _is_due(self, pair: Pair) -> bool:
        """Report whether a certificate nears its end."""
        leaf = certificates_in(pair.certificate)[0]
        begin, end = leaf.not_valid_before_utc, leaf.not_valid_after_utc
        return begin + _RENEWED_AT * (end - begin) <= self._now()

    def _show_next(self) -> None:
        """Show the certificate that was published long enough ago, or has waited for that for too long."""
        if self._next is None or self._listening is None:
            return
        pair, since, overlap, published = self._next
        overlap = overlap if published else self._pace.overlap * _UNPUBLISHED
        if (self._now() - (published or since)).total_seconds() < overlap:
            return
        self._show(self._listening, pair)

    def _show(self, listening: Listening, pair: Pair) -> None:
        listening.show(pair)
        self._shown, self._next = pair, None
        _log.info("the webhook shows another certificate")

    # What is registered.

    async def _looked(self, topology: Topology) -> float:
        """See to the webhook that is served."""
        try:
            self._prepare_next(topology.webhook)
            if topology.webhook.is_reachable:
                await self._registered(topology)
                self._trouble = ""
            else:
                self._welcomes()
                with suppress(Denied, NotOurs):
                    await self._stay_trusted(topology)
                self._say("set webhook.service or webhook.url: how the upper's apiserver reaches it")
        except Conflict:
            raise
        except TensileError as error:
            self._say(str(error))
            return self._pace.rest
        finally:
            self._show_next()
        return min(self._pace.look, self._next.overlap) if self._next else self._pace.look

    async def _registered(self, topology: Topology) -> None:
        """Have the apiserver know the webhook as it is, once a call on its way has come through."""
        upper, ref = self._home.upper, ref_of(topology)
        try:
            seen = await self._seen(topology)
        except (Denied, NotOurs):
            self._welcomes()
            raise
        trusted = bundle(self._mine(), bundle_in(seen or {}), self._dropped(), self._now())
        if not self._is_reached:
            seen = await self._trusted(ref, seen, trusted)
            if not await self._answers(topology, trusted, is_asked=seen is not None):
                return
            self._is_reached = topology is self._topology
        wanted = configuration(topology, self._home.owner, trusted, self._home.namespace)
        if seen is None:
            await self._made(ref, wanted)
        elif (patch := change(seen, wanted) if self._home.leads() else trusting(seen, trusted)) is not None:
            await upper.patch(ref, patch)
        else:
            self._is_asked = True
            self._note_published(trusted)
            return
        self._is_asked = True
        self._note_published(trusted)
        _log.info("the webhook is registered", name=ref.name, address=address_of(topology.webhook))

    async def _answers(self, topology: Topology, trusted: bytes, *, is_asked: bool) -> bool:
        """Call the address; False: not before the next certificate is shown, which may be for it. Else raises.

        Where nobody asks by the certificate that is shown (`is_asked`), the next one takes its place at once.
        """
        address = address_of(topology.webhook)
        if self._next is not None and is_asked:
            self._note_published(trusted)
            with suppress(TensileError):
                await call(address, trusted, _TURNS)
                return True
            return False
        if self._next is not None and self._listening is not None:
            self._show(self._listening, self._next.pair)
        await call(address, trusted, _TURNS)
        return True

    def _welcomes(self, seconds: float = 0.0) -> None:
        """Note that an apiserver may be sent here from in some seconds on: at once where none asks."""
        if self._welcome is None:
            self._welcome = self._clock() + seconds

    def _note_published(self, trusted: bytes) -> None:
        """Note since when the next certificate is trusted."""
        if self._next is not None and self._next.published is None:
            is_there = set(certificates_in(self._next.pair.certificate)) <= set(certificates_in(trusted))
            self._next = self._next._replace(published=self._now() if is_there else None)

    async def _trusted(self, ref: Ref, seen: Manifest | None, trusted: bytes) -> Manifest | None:
        """Have our certificate trusted at once where the apiserver asks already: it may come to us any moment."""
        if seen is None or (patch := trusting(seen, trusted)) is None:
            self._welcomes(0.0 if seen is None else self._pace.heard)
            return seen
        if self._is_trusted(bundle_in(seen)):
            self._welcomes(self._pace.heard)
        else:
            self._welcome = None
        changed: Manifest = orjson.loads(await self._home.upper.patch(ref, patch))
        self._welcomes(self._pace.heard)
        return changed

    async def _stay_trusted(self, topology: Topology) -> None:
        """Have what is registered still, at an address that the topology has no more, trust what is shown."""
        seen = await self._seen(topology)
        if seen is not None:
            trusted = bundle(self._mine(), bundle_in(seen), self._dropped(), self._now())
            await self._trusted(ref_of(topology), seen, trusted)
            self._note_published(trusted)

    def _is_trusted(self, known: bytes) -> bool:
        return set(certificates_in(self._shown.certificate)) <= set(certificates_in(known))

    async def _made(self, ref: Ref, wanted: Manifest) -> None:
        try:
            await self._home.upper.create(ref, wanted)
        except AlreadyExists as error:
            raise Conflict(error.message) from None

    async def _seen(self, topology: Topology) -> Manifest | None:
        """Return the configuration that is registered; raises NotOurs."""
        ref = ref_of(topology)
        try:
            seen: Manifest = orjson.loads(await self._home.upper.read(ref))
        except NotFound:
            return None
        if not is_ours(seen, self._home.owner):
            raise NotOurs(f"{ref} is not ours, and stays as it is: delete it, or give the topology another name")
        return seen

    def _mine(self) -> list[bytes]:
        return [self._shown.certificate, *([self._next.pair.certificate] if self._next else [])]

    def _dropped(self) -> list[bytes]:
        """Return what is shown no more."""
        return [pair.certificate for pair in self._retired]

    async def _took_back(self, topology: Topology) -> float | None:
        """Take back what is registered, where it is ours.

        A replica that has not heard of it yet may register it once more. One that does so ever again follows another
        topology: it has its way, or the two would make and delete it for ever.
        """
        if not self._home.leads():
            return self._pace.look
        try:
            seen = await self._seen(topology)
            if seen is not None and self._taken_back >= _TAKEN_BACK:
                _log.warning("another engine of this name registers the webhook again and again: it is left registered")
            elif seen is not None:
                meta = metadata(seen)
                version = meta["resourceVersion"]
                await self._home.upper.delete(ref_of(topology), uid=meta["uid"], version=version)
                _log.info("the webhook is not registered any more", name=meta["name"])
                self._taken_back += 1
                return self._pace.look
        except (NotFound, NotOurs):
            return None
        except Denied as error:
            words = "whether the webhook is registered still cannot be seen or changed: pods would wait for its answer"
            _log.warning(words, name=ref_of(topology).name, error=str(error))
            return None
        except ClusterError:
            return self._pace.rest
        return None

    def _say(self, trouble: str) -> None:
        """Tell, once, what keeps the webhook from being registered as it is."""
        if trouble != self._trouble:
            _log.warning("the webhook is served, and cannot be registered as it is", why=trouble)
        self._trouble = trouble


def _content(field: str, path: Path, kept: KeptFiles) -> bytes:
    try:
        return kept.read(path)
    except OSError as error:
        advice = error.advice if isinstance(error, Unfit) else "let the engine read it"
        raise TensileError(f"webhook.{field}: {path}: {error.strerror}: {advice}") from None


def _moved(served: Webhook | None, wanted: Webhook) -> bool:
    """Report whether it is to be served otherwise: elsewhere, under other names, with another certificate."""
    fields = ("bind", "port", "service", "url", "tls_cert_file", "tls_key_file")
    return any(getattr(served, field) != getattr(wanted, field) for field in fields)
