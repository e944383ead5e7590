"""Serves the webhook of the active topology: its port, its certificate, and its registration in the upper cluster.

All replicas serve it, so that creations never wait for a new leader. The leader also keeps the Secret with the
certificates and the registration, and deletes both when the webhook is disabled. They stay when the engine stops,
because this or another engine will come back. A replica that has no certificate creates a missing Secret itself: it is
not ready without, and a leader of another version or namespace may not create it.

Reviews are answered on every path, as in tensile-kube's webhook. A request can do no more than get an answer: bodies
are bounded, and a defect fails only that request.
"""

import asyncio
import errno
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import structlog
from aiohttp import web

from tensile.errors import Conflict, Denied, TensileError, described
from tensile.kube import net
from tensile.kube.cluster import Cluster
from tensile.kube.file_watch import FileCache, FileWatcher
from tensile.kube.files import read_regular
from tensile.kube.store import Cache, Delta
from tensile.kube.tls import KeyPair, pair_fault, serving_tls
from tensile.kubelet.api.certificates import read_pair
from tensile.names import Owner
from tensile.policy.descheduler.limits import nodes_to_avoid
from tensile.policy.tls_port import ClientBounds, TLSPort
from tensile.policy.webhook.admission import MutationTerms, terms_of
from tensile.policy.webhook.certificates import (
    Served,
    WebhookCertificates,
    ca_bundle,
    certificate_to_serve,
    certificates_of,
    check_host,
    ensure_current,
    with_certificate,
)
from tensile.policy.webhook.registration import MAX_BODY, WebhookRegistration, check_owner, names_of, secret_ref
from tensile.policy.webhook.review import MalformedReview, answer
from tensile.topology import Topology, Webhook

if TYPE_CHECKING:
    from tensile.objects import Ref

CHECK_SECONDS, ERROR_SECONDS, CONFLICT_SECONDS = 10.0, 5.0, 0.2
"""Seconds between two checks, after an error, and after a write conflict."""
_GRACE = 1.0
_BUSY_SECONDS = 1.0
"""Seconds for which connections in use may finish before idle ones are closed."""
_POLL_SECONDS = 0.02
_BODY_SECONDS = 5.0
_FILES = ("webhook.tlsCertFile", "webhook.tlsKeyFile")
_log = structlog.get_logger("tensile.webhook")

AnswerReview = Callable[[bytes], bytes]


class WebhookContext(NamedTuple):
    """The context of the webhook: its upper cluster, the owner, and the caches it reads.

    Paths of the topology are relative to `directory`, and `watcher` watches them. `claims` holds the upper's claims,
    `nodes` the virtual nodes with the descheduler's records, and `secrets` at least the Secret of the webhook.
    `namespace` is where this process runs, "" outside a cluster. `leads` reports whether this engine is the leader.
    """

    upper: Cluster
    owner: Owner
    directory: Path
    claims: Cache
    nodes: Cache
    secrets: Cache
    watcher: FileWatcher
    namespace: str = ""
    leads: Callable[[], bool] = lambda: True


class WebhookServer:
    """Serves the webhook of the active topology, from the first `serve` to `close`.

    `run` keeps its certificate and its registration. `now` returns the time of day, and `clock` the seconds of a
    monotonic clock.
    """

    def __init__(
        self,
        context: WebhookContext,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._context = context
        self._now = now
        self._clock = clock
        self._registration = WebhookRegistration(context.upper, context.owner, context.namespace)
        self._topology: Topology
        self._terms: MutationTerms
        self._listener: WebhookListener | None = None
        self._served: Served = ()
        self._own_certificates: WebhookCertificates | None = None
        self._files = FileCache(context.watcher, ())
        self._paths: tuple[Path, ...] = ()
        self._secret: Ref | None = None
        self._wake = asyncio.Event()
        self._problem = ""
        self.pending: tuple[str, ...] = ()
        """Why it is not served as the topology says."""
        context.secrets.subscribe(self._on_secret)
        context.secrets.on_sync(self._wake.set)

    @property
    def port(self) -> int:
        """The port it listens on, 0 for none."""
        return self._listener.port if self._listener else 0

    @property
    def certificate(self) -> bytes:
        """The certificate that it serves, in PEM, b"" for none."""
        pair = self._listener.shown if self._listener else None
        return pair.certificate if pair else b""

    @property
    def unregistered(self) -> tuple[str, ...]:
        """Why the upper apiserver does not call it as the topology says, () if it does."""
        if self._problem and self._topology.webhook.enabled and not self.pending:
            return (f"the webhook is not registered as configured: {self._problem}",)
        return self.pending

    def waits(self) -> str:
        """Return why the engine is not ready for reviews, "" if it is ready."""
        if not self._topology.webhook.enabled:
            return ""
        if self._listener is None:
            return f"the webhook is not serving yet: {' '.join(self.pending)}"
        reason = self._problem or "waiting for the Secrets of the upper cluster"
        return "" if self._listener.shown else f"the webhook has no certificate yet: {reason}"

    async def serve(self, topology: Topology) -> None:
        """Serve the webhook as a topology says; raises TensileError if that is not possible yet: `run` tries again."""
        webhook = topology.webhook
        self._topology, self._terms = topology, terms_of(topology, self._context.namespace)
        self._secret = None if webhook.tls_cert_file else secret_ref(topology, self._context.namespace)
        self._problem, self.pending = "", ()
        self._wake.set()
        if webhook.enabled:
            await self._listen(webhook)
            with suppress(TensileError):
                self._update_certificate(webhook)
        else:
            await self.close()
            self._served = ()

    async def run(self) -> None:
        """Check certificate and registration indefinitely, and at once when the topology or the Secret changes."""
        while True:
            self._wake.clear()
            rest = await self.reconcile()
            with suppress(TimeoutError):
                async with asyncio.timeout(rest):
                    await self._wake.wait()

    async def reconcile(self) -> float | None:
        """Check certificate and registration once; return the seconds until the next check, None for none."""
        topology, is_on = self._topology, self._topology.webhook.enabled
        try:
            if is_on:
                await self._keep(topology)
            elif self._context.leads():
                await self._registration.unregister(topology)
        except Conflict:
            return CONFLICT_SECONDS
        except TensileError as error:
            if str(error) != self._problem:
                what = "registration is not up to date" if is_on else "registration may still exist"
                _log.warning(f"the webhook {what}", why=str(error))
            self._problem = str(error)
            return ERROR_SECONDS if is_on or not isinstance(error, Denied) else None
        self._problem = ""
        return CHECK_SECONDS if is_on else None

    async def close(self) -> None:
        """Stop serving; the registration stays for the next engine."""
        listener, self._listener = self._listener, None
        self._files.close()
        if listener is not None:
            await listener.close()

    async def _keep(self, topology: Topology) -> None:
        """Serve the certificate of the moment; as the leader, also keep the Secret and the registration."""
        webhook, leads, ref, secrets = topology.webhook, self._context.leads(), self._secret, self._context.secrets
        await self._listen(webhook)
        try:
            if ref and (leads or (not self._served and secrets.synced and secrets.get(*ref[2:]) is None)):
                with self._explained(webhook):
                    written = await self._registration.keep_certificates(ref, names_of(webhook), self._now())
                secrets.apply_response(written)
        finally:
            self._update_certificate(webhook)
        if not webhook.is_reachable:
            raise TensileError("the webhook has no address: set webhook.service or webhook.url")
        if leads and self._served:
            with self._explained(webhook):
                await self._registration.register(topology, ca_bundle(self._served))

    @contextmanager
    def _explained(self, webhook: Webhook) -> Iterator[None]:
        """Add to an error that a Service does not lead to an engine outside the cluster."""
        try:
            yield
        except Conflict:
            raise
        except TensileError as error:
            if webhook.service is None or self._context.namespace:
                raise
            message = f"{error}; this engine runs outside the upper cluster: set webhook.url instead of webhook.service"
            raise TensileError(message) from None

    async def _listen(self, webhook: Webhook) -> None:
        """Open the port, unless it is open; raises TensileError if it is taken, or files cannot be used."""
        try:
            self._file_pair(webhook)
            if self._listener is None:
                listener = WebhookListener(certificate_to_serve(self._served, self._clock()), self._answer)
                await listener.start(webhook.bind, webhook.port)
                self._listener = listener
        except TensileError as error:
            self.pending = (str(error),)
            raise
        self.pending = ()

    def _update_certificate(self, webhook: Webhook) -> None:
        """Serve the certificate of the files, of the Secret, or our own; raises TensileError if it cannot be used.

        A Secret that was deleted, or is another's now, leaves the certificate that is served. So do files whose
        certificate is not for the webhook's address: the apiserver would not call it.
        """
        pair = self._file_pair(webhook)
        trust = pair.certificate if pair else b""
        if pair is None and (found := self._certificates(webhook)) is not None:
            pair, trust = found.serving, found.authority.certificate
        elif pair is not None and self._served and pair != self._served[-1].pair:
            check_host(pair, names_of(webhook)[0], self._paths[0])
        now = self._clock()
        self._served = with_certificate(self._served, pair, trust, now) if pair else self._served
        wanted = certificate_to_serve(self._served, now)
        if self._listener is not None and wanted is not None and wanted != self._listener.shown:
            self._listener.show(wanted)
            _log.info("the webhook serves a new certificate")

    def _certificates(self, webhook: Webhook) -> WebhookCertificates | None:
        """Return the certificates in the Secret, None if there is none yet; outside of a cluster our own."""
        if self._secret is None:
            self._own_certificates = ensure_current(self._own_certificates, names_of(webhook), self._now())
            return self._own_certificates
        entry = self._context.secrets.get(*self._secret[2:])
        found = certificates_of(check_owner(self._secret, entry.manifest(), self._context.owner)) if entry else None
        if entry and found is None:
            raise TensileError(f"{self._secret} contains no matching CA and certificate: the leader renews it")
        return found

    def _on_secret(self, delta: Delta) -> None:
        """Check at once when the Secret changes."""
        if self._secret is not None and (delta.entry.namespace, delta.entry.name) == self._secret[2:]:
            self._wake.set()

    def _file_pair(self, webhook: Webhook) -> KeyPair | None:
        """Return the certificate and key of the topology's files, None if it names none; raises TensileError."""
        named = (webhook.tls_cert_file, webhook.tls_key_file)
        paths = tuple(self._context.directory / file for file in named if file is not None)
        if paths != self._paths:
            self._files.close()
            self._paths, self._files = paths, FileCache(self._context.watcher, paths, self._wake.set, read=read_regular)
        if not paths:
            return None
        pair = read_pair(_FILES, paths, self._files.read)
        certificate, key = (f"{field}: {path}" for field, path in zip(_FILES, paths, strict=True))
        if fault := pair_fault(certificate, key, *pair):
            raise TensileError(str(fault))
        return pair

    def _answer(self, body: bytes) -> bytes:
        return answer(body, self._terms, self._node_of, self._nodes_to_avoid)

    def _nodes_to_avoid(self, owner: str) -> tuple[str, ...]:
        """Return the virtual nodes to which pods of a controller must not go now."""
        return nodes_to_avoid(self._context.nodes, self._topology.descheduler, self._now(), owner)

    def _node_of(self, namespace: str, name: str) -> str:
        """Return the node selected for a claim, "" for none."""
        claim = self._context.claims.get(namespace, name)
        return str(claim.facts.selected) if claim else ""


class WebhookListener:
    """The webhook's server on `bind`:`port` (0 for any free port).

    It accepts connections once it has a certificate, `shown`. `answer` returns the response to a review or raises
    MalformedReview. A body must arrive within `patience` seconds.
    """

    def __init__(self, pair: KeyPair | None, answer: AnswerReview, patience: float = _BODY_SECONDS) -> None:
        self.shown = pair
        self._answer = answer
        self._patience = patience
        self._tls_port: TLSPort | None = None
        self._is_closing = False

    @property
    def port(self) -> int:
        """The port it listens on, 0 before `start`."""
        return self._tls_port.port if self._tls_port else 0

    async def start(self, bind: str, port: int) -> None:
        """Start listening; raises TensileError, with what to change, if that is not possible."""
        try:
            opened = net.listening(bind, port)
        except OSError as error:
            where = f"webhook cannot listen on port {port} of {bind}"
            advice = f"{error.strerror or error}: check webhook.bind and webhook.port"
            if error.errno == errno.EADDRINUSE:
                advice = (
                    "another program uses the port: stop that program, or set another webhook.port, also in "
                    "webhook.url, and restart the engine"
                )
            raise net.refusal(error, f"{where}: {advice}") from None
        self._tls_port = TLSPort(opened, self._serve, ClientBounds(MAX_BODY, patience=self._patience))
        if self.shown is not None:
            self.show(self.shown)

    def show(self, pair: KeyPair) -> None:
        """Serve a certificate, from the next connection on; raises TensileError if TLS does not take it."""
        assert self._tls_port is not None, "it was started"
        try:
            self._tls_port.show(serving_tls(pair))
        except OSError as error:
            raise TensileError(f"TLS rejects the webhook's certificate ({error}): renew it") from None
        self.shown = pair

    async def close(self) -> None:
        """Stop listening; answer on open connections for one more second, and close each after its answer.

        An apiserver keeps its connections, also to an engine that is no endpoint of the Service any more. A connection
        cut during a review leaves that pod unprepared; one that ends with an answer does not.
        """
        self._is_closing = True
        if self._tls_port is not None:
            await self._tls_port.deafen()
            await self._wait_for_clients(self._tls_port)
            await self._tls_port.retire(_GRACE)

    async def _wait_for_clients(self, tls_port: TLSPort) -> None:
        """Wait until no client is connected; close the connections that are left after `_BUSY_SECONDS` seconds.

        They are cut at once, because aiohttp's own shutdown would leave them open longer and drop requests that arrive
        there.
        """
        with suppress(TimeoutError):
            async with asyncio.timeout(_BUSY_SECONDS):
                while tls_port.is_used:  # noqa: ASYNC110 - nothing tells
                    await asyncio.sleep(_POLL_SECONDS)
        tls_port.cut()

    async def _serve(self, request: web.BaseRequest) -> web.StreamResponse:
        response = await self._answered(request)
        if self._is_closing:
            response.force_close()
        return response

    async def _answered(self, request: web.BaseRequest) -> web.StreamResponse:
        if request.method == "GET" and request.path == "/healthz":
            return web.Response(text="ok")
        if request.method != "POST":
            return web.Response(status=HTTPStatus.METHOD_NOT_ALLOWED, text="send an AdmissionReview with POST\n")
        assert self._tls_port is not None
        body = await self._tls_port.body(request)
        if body is None:
            return web.Response(status=HTTPStatus.REQUEST_ENTITY_TOO_LARGE)
        try:
            return web.Response(body=self._answer(body), content_type="application/json")
        except MalformedReview as error:
            return web.Response(status=HTTPStatus.BAD_REQUEST, text=f"{error}\n")
        except Exception as error:  # noqa: BLE001 - a creation must not wait for what never comes
            _log.error("admission review failed, pod admitted unmodified (bug, please report)", error=described(error))
            return web.Response(status=HTTPStatus.INTERNAL_SERVER_ERROR, text="internal error (bug in tensile)\n")
