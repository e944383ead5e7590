"""The certificates of the kubelet API: the one that it serves, and the authority that verifies its callers.

The serving certificate comes from files, is issued by the upper cluster, or is self-signed. Files are read for every
connection and compared by content, so a renewed certificate needs no restart, and a half-written pair changes nothing.
Without files, a certificate is requested from the upper cluster. Until one is issued, a self-signed certificate serves
clusters whose apiserver does not verify kubelets.

The authority comes from a file, or is the one that the upper cluster publishes. A rotated authority must be used
without a restart, so it is read again regularly. One that cannot be read for a moment must not reject every caller, so
the last good one stays. Until there has been one, no caller is admitted.
"""

import asyncio
import ssl
import time
from collections.abc import Awaitable, Callable, Collection, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding
from structlog.typing import FilteringBoundLogger

from tensile.errors import TensileError, Unreachable
from tensile.kube.files import read_regular
from tensile.kube.tls import (
    CertificateProblem,
    KeyPair,
    authority_fault,
    authority_warnings,
    described,
    pair_fault,
    self_signed,
    serving_tls,
    unreadable,
    warnings,
)
from tensile.objects import CONFIG_MAP, UPPER, Ref

_LIFE = timedelta(days=365)
_RENEWED_BEFORE = timedelta(days=30)
_FIELDS = ("kubelet.tlsCertFile", "kubelet.tlsKeyFile")
_FILE_ADVICE = (
    "an apiserver with --kubelet-certificate-authority rejects it: approve the CertificateSigningRequest, or set "
    "kubelet.tlsCertFile and kubelet.tlsKeyFile"
)


ReadFile = Callable[[Path], bytes]
"""Returns the content of a file; raises OSError."""
ReadClientCA = Callable[[], Awaitable[str]]
"""Returns the authority's certificates as PEM; raises TensileError or returns "" when there are none."""

FRESH_SECONDS = 60.0
"""How long a source's result is used before it is read again."""

CALLERS = Ref(UPPER, CONFIG_MAP, "kube-system", "extension-apiserver-authentication")
CALLERS_KEY = "client-ca-file"
PUBLISHED = "the upper cluster's ConfigMap kube-system/extension-apiserver-authentication"
"""The name of that object in messages; it is read, under CALLERS_KEY, when no file is given."""

_CLIENT_CA_ADVICE = "allow the engine to read it, or set kubelet.clientCAFile"

RETRY_SECONDS = 5.0
"""How long after a failure a source is read again, and how long a read may take."""


class ServingFiles(NamedTuple):
    """The paths of a serving certificate and its key."""

    certificate: Path
    key: Path


class _Known(NamedTuple):
    """A TLS context and what it was made of."""

    pair: KeyPair
    authority: str
    tls: ssl.SSLContext
    certificate: x509.Certificate


class HeldCertificates(NamedTuple):
    """The certificates for an address, by node: those that were issued, and what was last served."""

    address: str
    issued: dict[str, KeyPair]
    served: dict[str, _Known]


class ServingCertificate:
    """TLS contexts of the listeners, created again when a certificate or the client CA has changed.

    `address` is where the upper cluster calls; `advice` is logged with a self-signed certificate; `read` reads a file.
    """

    def __init__(
        self,
        log: FilteringBoundLogger,
        address: str,
        files: ServingFiles | None = None,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        advice: str = _FILE_ADVICE,
        *,
        read: ReadFile = read_regular,
    ) -> None:
        self._log = log
        self._read = read
        self._advice = advice
        self.address = address
        self._files = files
        self._now = now
        self._issued: dict[str, KeyPair] = {}
        self._self_signed: dict[str, tuple[KeyPair, datetime]] = {}
        self._contexts: dict[str, _Known] = {}
        self._problem = ""
        self._reported_warnings: dict[str, list[str]] = {}

    def context(self, node: str, authority: str) -> ssl.SSLContext:
        """Return the TLS context for a connection to that node's listener; the last good one while files are unusable.

        Raise TensileError when there has been none yet, naming the file, what is wrong with it and what to do.
        """
        known = self._contexts.get(node)
        try:
            pair = self._pair(node)
            if known is None or (known.pair, known.authority) != (pair, authority):
                known = self._contexts[node] = self._load(pair, authority)
            self._problem = ""
        except TensileError as error:
            self._report_problem(str(error), is_first=known is None)
            if known is not None and known.authority != authority:  # never verify callers by a former authority
                known = self._contexts[node] = self._load(known.pair, authority)
        if known is None:
            raise TensileError(self._problem)
        self._report_warnings(node, known)
        return known.tls

    def held(self) -> HeldCertificates:
        """Return the certificates that were issued, and those that are served, for `resume`."""
        return HeldCertificates(self.address, dict(self._issued), dict(self._contexts))

    def resume(self, held: HeldCertificates) -> None:
        """Go on with these certificates if they are for this address: until other files can be read, say."""
        if held.address == self.address:
            self._issued |= held.issued
            self._contexts |= held.served

    def take(self, node: str, pair: KeyPair) -> None:
        """Serve a node with a certificate that was issued for it, from the next connection on."""
        self._issued[node] = pair

    def issued(self, node: str) -> KeyPair | None:
        """Return the certificate that was issued for a node, None before."""
        return self._issued.get(node)

    def shown(self, node: str) -> str:
        """Return a description of the certificate that is served for a node."""
        known = self._contexts.get(node)
        return described(known.certificate) if known else "none yet"

    def expirations(self) -> dict[str, datetime]:
        """Return when the certificate of each node that is served expires; it is loaded first if it was renewed."""
        for node, known in tuple(self._contexts.items()):
            self.context(node, known.authority)
        return {node: known.certificate.not_valid_after_utc for node, known in self._contexts.items()}

    def forget(self, node: str) -> None:
        """Drop the state of a node that is no longer served, except the certificate that was issued for it."""
        self._self_signed.pop(node, None)
        self._contexts.pop(node, None)

    def retain(self, nodes: Collection[str]) -> None:
        """Drop the state of all nodes but these, as `forget` does."""
        for node in {*self._self_signed, *self._contexts}.difference(nodes):
            self.forget(node)

    def _pair(self, node: str) -> KeyPair:
        if self._files is not None:
            return read_pair(_FIELDS, self._files, self._read)
        return self._issued.get(node) or self._self_signed_pair(node)

    def _self_signed_pair(self, node: str) -> KeyPair:
        """Return the self-signed certificate, a new one when there is none or it expires soon."""
        pair, end = self._self_signed.get(node, (None, self._now()))
        if pair is None or end - _RENEWED_BEFORE <= self._now():
            end = self._now() + _LIFE
            pair = self_signed("system:nodes", f"system:node:{node}", (node, self.address), self._now(), _LIFE)
            self._self_signed[node] = (pair, end)
            self._log.warning("serving with a self-signed certificate", node=node, advice=self._advice)
        return pair

    def _load(self, pair: KeyPair, authority: str) -> _Known:
        """Return the TLS context of a pair; raise TensileError with what is wrong with it."""
        try:
            tls = tls_context(pair, authority)
            return _Known(pair, authority, tls, x509.load_pem_x509_certificates(pair.certificate)[0])
        except (OSError, ValueError) as error:
            names = self._pair_names()
            fault = pair_fault(*names, *pair) or CertificateProblem(
                names[0], f"TLS rejects it ({error})", "use another one"
            )
            raise TensileError(str(fault)) from error

    def _pair_names(self) -> tuple[str, str]:
        """Return the names of the served certificate and key for messages."""
        if self._files is None:
            return "the certificate that the upper cluster issued", "its request"
        return f"{_FIELDS[0]}: {self._files.certificate}", f"{_FIELDS[1]}: {self._files.key}"

    def _report_problem(self, problem: str, *, is_first: bool) -> None:
        """Record what is wrong with the files; log it once, but not when it will be raised."""
        if problem != self._problem and not is_first:
            self._log.warning("the serving certificate cannot be reloaded: the previous one stays in use", why=problem)
        self._problem = problem

    def _report_warnings(self, node: str, known: _Known) -> None:
        """Log once why callers may refuse a certificate; for a self-signed one that has been logged already."""
        if self._files is None and node not in self._issued:
            return
        found = [
            str(warning) for warning in warnings(self._pair_names()[0], known.certificate, self.address, self._now())
        ]
        subject = node if self._files is None else ""
        if found != self._reported_warnings.get(subject, []):
            for warning in found:
                self._log.warning("clients may reject the serving certificate", node=node, why=warning)
        self._reported_warnings[subject] = found


def read_pair(fields: Sequence[str], files: Sequence[Path], read: ReadFile) -> KeyPair:
    """Return a certificate and its key; raise TensileError that names a file and its field in the topology."""
    found = []
    for field, file in zip(fields, files, strict=True):
        try:
            found.append(read(file))
        except OSError as error:
            raise TensileError(str(unreadable(f"{field}: {file}", error))) from error
    return KeyPair(*found)


def tls_context(pair: KeyPair, authority: str) -> ssl.SSLContext:
    """Return the TLS context of a listener: 1.2 or newer, a client certificate requested and, if sent, verified.

    A client certificate is optional, because a token may come instead; one of another authority ends the handshake. No
    session tickets are issued, so that every connection verifies again. Raise OSError when the pair does not fit.
    """
    context = serving_tls(pair)
    context.options |= ssl.OP_NO_TICKET
    context.num_tickets = 0
    if authority:
        context.verify_mode = ssl.CERT_OPTIONAL
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
        context.load_verify_locations(cadata=authority)
    return context


class ClientCA:
    """The certificates, as PEM, that verify callers' certificates; `read` reads the file."""

    def __init__(
        self,
        log: FilteringBoundLogger,
        file: Path | None = None,
        source: ReadClientCA | None = None,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        *,
        read: ReadFile = read_regular,
    ) -> None:
        self._log = log
        self._file = file
        self._source = source
        self._clock = clock
        self._now = now
        self._read = read
        self.which = f"kubelet.clientCAFile: {file}" if file else PUBLISHED
        self._text = ""
        self._pem = ""
        self._problem = ""
        self._due = clock()
        self._lock = asyncio.Lock()

    async def pem(self) -> str:
        """Return the active certificates; "" when none have been readable so far."""
        if self._file is not None:
            self._read_file(self._file)
        elif self._source is not None:
            async with self._lock:
                await self._refresh(self._source)
        return self._pem

    def _read_file(self, file: Path) -> None:
        try:
            self._activate(self._read(file).decode(errors="replace"))
        except OSError as error:
            self._report_problem(unreadable(self.which, error))

    async def _refresh(self, source: ReadClientCA) -> None:
        """Read the source when that is due, and wait for it only as long as a caller can."""
        if self._clock() < self._due:
            return
        try:
            async with asyncio.timeout(RETRY_SECONDS):
                self._activate(await source())
        except (TensileError, TimeoutError) as error:
            is_silent = isinstance(error, Unreachable | TimeoutError)
            advice = "it is read as soon as the upper cluster answers" if is_silent else _CLIENT_CA_ADVICE
            self._report_problem(CertificateProblem(self.which, str(error) or "no response in time", advice))
        self._due = self._clock() + (RETRY_SECONDS if self._problem else FRESH_SECONDS)

    def _activate(self, text: str) -> None:
        """Activate certificates, encoded again: OpenSSL accepts ASCII only, and bundles have comments."""
        if text and text == self._text:
            self._problem = ""
        elif fault := authority_fault(self.which, text.encode()):
            self._report_problem(fault)
        else:
            found = x509.load_pem_x509_certificates(text.encode())
            self._pem = "".join(certificate.public_bytes(Encoding.PEM).decode() for certificate in found)
            self._text, self._problem = text, ""
            for warning in authority_warnings(self.which, found, self._now()):
                self._log.warning("client certificates may be rejected", why=str(warning))

    def _report_problem(self, fault: CertificateProblem) -> None:
        """Log what is wrong, once until it changes."""
        if str(fault) != self._problem:
            effect = "the previous one stays in use" if self._pem else "every request is rejected"
            self._log.warning("the client CA cannot be used", why=str(fault), effect=effect)
        self._problem = str(fault)
