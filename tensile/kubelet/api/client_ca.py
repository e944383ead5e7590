"""The certificate authority that verifies callers: from a file, or as published by the upper cluster.

A rotated authority must be used without a restart, so it is read again regularly. One that cannot be read for a moment
must not reject every caller, so the last good one stays. Until there has been one, no caller is admitted.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from tensile.errors import TensileError
from tensile.kube.files import read_regular
from tensile.kubelet.api.certificate_checks import CertificateProblem, authority_fault, authority_warnings, unreadable
from tensile.kubelet.api.pods import Log
from tensile.kubelet.api.serving_certificate import ReadFile
from tensile.objects import CONFIG_MAP, UPPER, Ref

ReadClientCA = Callable[[], Awaitable[str]]
"""Returns the authority's certificates as PEM; raises TensileError or returns "" when there are none."""

FRESH_SECONDS = 60.0
"""How long a source's result is used before it is read again."""

CALLERS = Ref(UPPER, CONFIG_MAP, "kube-system", "extension-apiserver-authentication")
CALLERS_KEY = "client-ca-file"
PUBLISHED = "the upper cluster's ConfigMap kube-system/extension-apiserver-authentication"
"""The name of the object above in messages; it is read, under CALLERS_KEY, when no file is given."""

_ADVICE = "allow the engine to read it, or set kubelet.clientCAFile"

RETRY_SECONDS = 5.0
"""How long after a failure a source is read again, and how long a read may take."""


class ClientCA:
    """The certificates, as PEM, that verify callers' certificates; `read` reads the file."""

    def __init__(
        self,
        log: Log,
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
        self._trouble = ""
        self._due = clock()
        self._asking = asyncio.Lock()

    async def pem(self) -> str:
        """Return the active certificates; "" when none have been readable so far."""
        if self._file is not None:
            self._heed(self._file)
        elif self._source is not None:
            async with self._asking:
                await self._refresh(self._source)
        return self._pem

    def _heed(self, file: Path) -> None:
        try:
            self._take(self._read(file).decode(errors="replace"))
        except OSError as error:
            self._troubled(unreadable(self.which, error))

    async def _refresh(self, source: ReadClientCA) -> None:
        """Read the source when that is due, and wait for it only as long as a caller can."""
        if self._clock() < self._due:
            return
        try:
            async with asyncio.timeout(RETRY_SECONDS):
                self._take(await source())
        except (TensileError, TimeoutError) as error:
            self._troubled(CertificateProblem(self.which, str(error) or "no response in time", _ADVICE))
        self._due = self._clock() + (RETRY_SECONDS if self._trouble else FRESH_SECONDS)

    def _take(self, text: str) -> None:
        """Activate certificates, encoded again: OpenSSL accepts ASCII only, and bundles have comments."""
        if text and text == self._text:
            self._trouble = ""
        elif fault := authority_fault(self.which, text.encode()):
            self._troubled(fault)
        else:
            found = x509.load_pem_x509_certificates(text.encode())
            self._pem = "".join(each.public_bytes(Encoding.PEM).decode() for each in found)
            self._text, self._trouble = text, ""
            for doubt in authority_warnings(self.which, found, self._now()):
                self._log.warning("client certificates may be rejected", why=str(doubt))

    def _troubled(self, fault: CertificateProblem) -> None:
        """Log what is wrong, once until it changes."""
        if str(fault) != self._trouble:
            effect = "the previous one stays in use" if self._pem else "every request is rejected"
            self._log.warning("the client CA cannot be used", why=str(fault), effect=effect)
        self._trouble = str(fault)
