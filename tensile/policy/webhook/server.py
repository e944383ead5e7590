"""Serves the webhook of the active topology: its port, certificate and registration in the upper cluster.

The webhook is registered only after a call to its own address, as the apiserver makes it, has succeeded: a registered
webhook that does not answer delays every creation by the timeout. A configuration of our name that is not ours is left
as it is. It is deleted when the webhook is disabled, but not when the engine stops, because this or another engine will
come back. Only the leader writes the configuration, since other engines may be set up differently and would overwrite
it in turn. The others only add their certificates to its bundle, and register it if it does not exist.
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
from tensile.kube.file_watch import FileCache, FileWatcher
from tensile.kube.files import UnreadableFile, read_regular
from tensile.kube.store import Cache
from tensile.kube.tls import KeyPair, self_signed, serving_tls
from tensile.names import Owner
from tensile.objects import Manifest, Ref, metadata
from tensile.policy.descheduler.records import nodes_tried
from tensile.policy.webhook.admission import MutationTerms, terms_of
from tensile.policy.webhook.listener import WebhookListener, call
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
"""Lifetime of a self-signed certificate; its key is kept in memory, so each start creates a new one."""
_RENEWED_AT = 0.7
_UNPUBLISHED = 10.0
"""Overlap periods after which an unpublished certificate is served all the same; another engine may publish it."""
_RETIRED = 3
_NAMES = 8
"""Maximum of names in a self-signed certificate."""
_TAKEN_BACK = 3
"""How often the registration is deleted after one edit of the topology."""
_TURNS = 8
"""Calls in a row to the address: of engines that share it and start together, none trusts the others yet."""
_log = structlog.get_logger("tensile.webhook")


class WebhookTimings(NamedTuple):
    """Seconds between checks of the registration, after an error, of overlap, and after a write conflict.

    A published certificate is served after `overlap`, when every apiserver has received it. A certificate served from
    the start counts as received `heard` seconds after its publication; the engine is not ready before. After a conflict
    with another engine's write the check is repeated after `again`.
    """

    look: float = 10.0
    rest: float = 5.0
    overlap: float = 20.0
    heard: float = 2.0
    again: float = 0.2


class ForeignRegistration(TensileError):
    """The configuration of our name is not ours."""


class _Next(NamedTuple):
    """The next certificate: since when it exists, and since when it is published (None: not yet).

    It is served `overlap` seconds after its publication.
    """

    pair: KeyPair
    since: datetime
    overlap: float
    published: datetime | None = None


class _Own(NamedTuple):
    """The self-signed certificate and its names; it is kept when the address changes, because apiservers trust it.

    A certificate for a new address also covers the former ones, which stay registered until the new one is reached.
    """

    names: tuple[str, ...]
    pair: KeyPair


class WebhookContext(NamedTuple):
    """The context of the webhook: its upper cluster, the owner, and the caches it reads.

    Paths of the topology are relative to `directory`, and `watcher` watches them. `claims` holds the upper's claims,
    and `nodes` the virtual nodes with the descheduler's records. `namespace` is where this process runs, "" outside a
    cluster. `leads` reports whether this engine is the leader.
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
    """Serves the webhook of the active topology, from the first `serve` to `close`.

    `run` maintains its certificate and its registration. `now` returns the time of day, and `clock` the seconds of a
    monotonic clock: if the time of day is set back, readiness must not be delayed again.
    """

    def __init__(
        self,
        home: WebhookContext,
        pace: WebhookTimings | None = None,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._home = home
        self._pace = pace or WebhookTimings()
        self._now = now
        self._clock = clock
        self._topology: Topology
        self._terms: MutationTerms
        self._listening: WebhookListener | None = None
        self._is_wanted = False
        self._own: _Own | None = None
        self._served: Webhook | None = None
        self._shown: KeyPair
        self._next: _Next | None = None
        self._retired: list[KeyPair] = []
        self._is_reached = self._is_asked = False
        """Whether the address has answered, and whether an apiserver calls one of the addresses."""
        self._taken_back = 0
        self._welcome: float | None = None
        """When, by `clock`, an apiserver may call this engine; None while that is not known."""
        self._woken = asyncio.Event()
        self._files: dict[tuple[Path, ...], FileCache] = {}
        self._trouble = ""

    @property
    def port(self) -> int:
        """The port it listens on, 0 for none."""
        return self._listening.port if self._listening else 0

    def waits(self) -> str:
        """Return why the engine is not ready for reviews, "" if it is ready.

        An apiserver that calls the webhook already would not trust a new certificate yet. If several engines serve one
        Service, the others answer until then.
        """
        if self._is_wanted and self._listening is None:
            return "the webhook is not served yet: its port cannot be had"
        if self._served is None or (self._welcome is not None and self._welcome <= self._clock()):
            return ""
        return "the upper's apiserver does not trust the webhook's certificate yet"

    async def serve(self, topology: Topology) -> None:
        """Serve the webhook as a topology says; raises TensileError, with nothing changed, if that is not possible."""
        webhook = topology.webhook
        self._is_wanted = webhook.enabled
        if webhook.enabled and (self._listening is None or _moved(self._served, webhook)):
            await self._listen(webhook)
        self._topology, self._terms, self._taken_back = topology, terms_of(topology, self._home.namespace), 0
        if not webhook.enabled:
            await self._deafen()
        self._woken.set()

    async def run(self) -> None:
        """Check certificate and registration indefinitely, and at once when the topology changes."""
        while True:
            self._woken.clear()
            rest = await self.look()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._woken.wait(), rest)

    async def look(self) -> float | None:
        """Check certificate and registration once; return the seconds until the next check, None for none."""
        topology = self._topology
        try:
            return await (self._looked(topology) if topology.webhook.enabled else self._took_back(topology))
        except Conflict:
            return self._pace.again

    async def close(self) -> None:
        """Stop serving; the registration stays for the next engine."""
        await self._deafen()

    async def _listen(self, webhook: Webhook) -> None:
        """Open the port, or move to another one; the former port is closed once the new one is open.

        If an apiserver calls already, the certificate that it trusts is served until the next one is trusted.
        """
        pair = self._pair(webhook)
        first = self._shown if self._is_asked else pair
        same = self._served is not None and (self._served.bind, self._served.port) == (webhook.bind, webhook.port)
        if same and self._listening is not None:
            self._listening.show(first)
        else:
            opened = WebhookListener(first, self._answer)
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
        """Return the virtual nodes to which pods of a controller must not go now."""
        return nodes_tried(self._home.nodes, self._topology.descheduler, self._now(), owner)

    def _node_of(self, namespace: str, name: str) -> str:
        """Return the node selected for a claim, "" for none."""
        claim = self._home.claims.get(namespace, name)
        return str(claim.facts.selected) if claim else ""

    # Certificate

    def _pair(self, webhook: Webhook) -> KeyPair:
        """Return the certificate and key of the topology's files, or a self-signed pair; raises TensileError."""
        if webhook.tls_cert_file is None or webhook.tls_key_file is None:
            names = names_of(webhook) if self._own is None or webhook.is_reachable else self._own.names
            return self._own_pair(names)
        files = {"tlsCertFile": webhook.tls_cert_file, "tlsKeyFile": webhook.tls_key_file}
        paths = self._paths(webhook)
        kept = self._files.setdefault(paths, FileCache(self._home.watcher, paths, self._woken.set, read=read_regular))
        pair = KeyPair(*(_content(field, path, kept) for field, path in zip(files, paths, strict=True)))
        try:
            serving_tls(pair)
        except OSError as error:
            whose = f"webhook.tlsCertFile {files['tlsCertFile']} and webhook.tlsKeyFile {files['tlsKeyFile']}"
            raise TensileError(f"{whose}: no certificate and its key in PEM ({error}): give both anew") from None
        return pair

    def _own_pair(self, names: tuple[str, ...]) -> KeyPair:
        """Return the self-signed pair if it covers these names and is not due, else a new one that replaces it."""
        own = self._own
        if own is not None and set(names) <= set(own.names) and not self._is_due(own.pair):
            return own.pair
        if own is not None:
            names = (*names, *(name for name in own.names if name not in names))[:_NAMES]
            self._retired = [*self._retired[1 - _RETIRED :], own.pair]
        self._own = _Own(names, self_signed("tensile", names[0], names, self._now(), LIFE))
        return self._own.pair

    def _paths(self, webhook: Webhook | None) -> tuple[Path, ...]:
        """Return the paths of certificate and key, empty if the topology names none."""
        named = (webhook.tls_cert_file, webhook.tls_key_file) if webhook is not None else ()
        return tuple(self._home.directory / file for file in named if file is not None)

    def _forget_files(self, but: Webhook | None = None) -> None:
        """Stop watching the files of other settings than `but`."""
        for paths in self._files.keys() - {self._paths(but)}:
            self._files.pop(paths).close()

    def _prepare_next(self, webhook: Webhook) -> None:
        """Prepare the next certificate when the present one is due or the files have changed."""
        newest = self._next.pair if self._next else self._shown
        if webhook.tls_cert_file is None and not self._is_due(newest):
            return
        pair = self._pair(webhook)
        if pair == self._shown:
            self._next = None
        elif pair != newest:
            self._next = _Next(pair, self._now(), self._pace.overlap)

    def _is_due(self, pair: KeyPair) -> bool:
        """Report whether a certificate is to be renewed."""
        leaf = certificates_in(pair.certificate)[0]
        begin, end = leaf.not_valid_before_utc, leaf.not_valid_after_utc
        return begin + _RENEWED_AT * (end - begin) <= self._now()

    def _show_next(self) -> None:
        """Serve the next certificate if its overlap is over, or if it stayed unpublished for too long."""
        if self._next is None or self._listening is None:
            return
        pair, since, overlap, published = self._next
        overlap = overlap if published else self._pace.overlap * _UNPUBLISHED
        if (self._now() - (published or since)).total_seconds() < overlap:
            return
        self._show(self._listening, pair)

    def _show(self, listening: WebhookListener, pair: KeyPair) -> None:
        listening.show(pair)
        self._shown, self._next = pair, None
        _log.info("the webhook shows another certificate")

    # Registration

    async def _looked(self, topology: Topology) -> float:
        """Update certificate and registration; return the seconds until the next check."""
        try:
            self._prepare_next(topology.webhook)
            if topology.webhook.is_reachable:
                await self._registered(topology)
                self._trouble = ""
            else:
                self._welcomes()
                with suppress(Denied, ForeignRegistration):
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
        """Register the webhook as it is, once a call to its address has succeeded."""
        upper, ref = self._home.upper, ref_of(topology)
        try:
            seen = await self._seen(topology)
        except (Denied, ForeignRegistration):
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
        """Call the address; False if that must wait for the next certificate, which may be the one for it. Else raises.

        If no apiserver relies on the present certificate (`is_asked`), the next one replaces it at once.
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
        """Be ready in some seconds, unless a time is set already; at once if no apiserver calls yet."""
        if self._welcome is None:
            self._welcome = self._clock() + seconds

    def _note_published(self, trusted: bytes) -> None:
        """Record since when the next certificate is in the bundle."""
        if self._next is not None and self._next.published is None:
            is_there = set(certificates_in(self._next.pair.certificate)) <= set(certificates_in(trusted))
            self._next = self._next._replace(published=self._now() if is_there else None)

    async def _trusted(self, ref: Ref, seen: Manifest | None, trusted: bytes) -> Manifest | None:
        """Add our certificate to an existing configuration at once: an apiserver may call this engine at any moment.

        Returns the configuration as it is afterwards.
        """
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
        """Keep the served certificate trusted in a configuration that is still registered for a former address."""
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
        """Return the registered configuration, None for none; raises NotOurs."""
        ref = ref_of(topology)
        try:
            seen: Manifest = orjson.loads(await self._home.upper.read(ref))
        except NotFound:
            return None
        if not is_ours(seen, self._home.owner):
            raise ForeignRegistration(
                f"{ref} is not ours, and stays as it is: delete it, or give the topology another name"
            )
        return seen

    def _mine(self) -> list[bytes]:
        return [self._shown.certificate, *([self._next.pair.certificate] if self._next else [])]

    def _dropped(self) -> list[bytes]:
        """Return the certificates that are no longer served."""
        return [pair.certificate for pair in self._retired]

    async def _took_back(self, topology: Topology) -> float | None:
        """Delete the registration if it is ours; return the seconds until the next check, None for none.

        A replica that has not received the edit yet may register it once more. An engine that does so repeatedly
        follows another topology: its registration is left, because both would otherwise create and delete it
        indefinitely.
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
        except (NotFound, ForeignRegistration):
            return None
        except Denied as error:
            words = "whether the webhook is registered still cannot be seen or changed: pods would wait for its answer"
            _log.warning(words, name=ref_of(topology).name, error=str(error))
            return None
        except ClusterError:
            return self._pace.rest
        return None

    def _say(self, trouble: str) -> None:
        """Log, once, what prevents the registration."""
        if trouble != self._trouble:
            _log.warning("the webhook is served, and cannot be registered as it is", why=trouble)
        self._trouble = trouble


def _content(field: str, path: Path, kept: FileCache) -> bytes:
    try:
        return kept.read(path)
    except OSError as error:
        advice = error.advice if isinstance(error, UnreadableFile) else "let the engine read it"
        raise TensileError(f"webhook.{field}: {path}: {error.strerror}: {advice}") from None


def _moved(served: Webhook | None, wanted: Webhook) -> bool:
    """Report whether address, names or certificate files of the webhook have changed."""
    fields = ("bind", "port", "service", "url", "tls_cert_file", "tls_key_file")
    return any(getattr(served, field) != getattr(wanted, field) for field in fields)
