"""Certificates of a sandbox's cluster: one for the proxy itself, and one for each user that it represents.

A client certificate cannot be passed on, because only its owner has the key. So the proxy authenticates to the
apiserver with a new certificate of the same user and groups, signed by the same authority.
"""

import ssl
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from tensile.sandbox.credentials import Authority, CertificatePair
from tensile.sandbox.state import LOOPBACK


class User(NamedTuple):
    """The owner of a certificate: its common name, and its organizations; both are empty for an anonymous client."""

    name: str = ""
    groups: tuple[str, ...] = ()


def signer_of(pki: Path) -> Authority:
    """Return a cluster's certificate authority; `pki` is its directory of keys."""
    pair = CertificatePair((pki / "ca.crt").read_bytes(), (pki / "ca.key").read_bytes())
    key = load_pem_private_key(pair.key, None)
    assert isinstance(key, EllipticCurvePrivateKey)
    return Authority(pair, x509.load_pem_x509_certificate(pair.certificate).subject, key, datetime.now(UTC))


def user_of(certificate: dict[str, Any] | None) -> User:
    """Return the owner of a client certificate (in the form of the ssl module)."""
    fields: list[tuple[str, str]] = [pair for part in (certificate or {}).get("subject", ()) for pair in part]
    names = [value for key, value in fields if key == "commonName"]
    return User(names[0] if names else "", tuple(value for key, value in fields if key == "organizationName"))


class TLSContexts:
    """The TLS contexts of one cluster's proxy; certificates that it issues are written to `directory`."""

    def __init__(self, pki: Path, directory: Path) -> None:
        self._authority = pki / "ca.crt"
        self._signer = signer_of(pki)
        self._directory = directory
        self._client_contexts: dict[User, ssl.SSLContext] = {}

    def server_context(self) -> ssl.SSLContext:
        """Return the TLS context of the server side, where clients may use a certificate of the cluster's authority."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.verify_mode = ssl.CERT_OPTIONAL
        context.load_verify_locations(self._authority)
        context.load_cert_chain(*self._written("proxy", self._signer.issue("proxy", addresses=(LOOPBACK,))))
        return context

    def client_context(self, user: User) -> ssl.SSLContext:
        """Return the TLS context with which the proxy authenticates to the apiserver as a user."""
        if user not in self._client_contexts:
            context = ssl.create_default_context(cafile=str(self._authority))
            if user.name:
                pair = self._signer.issue(user.name, user.groups)
                context.load_cert_chain(*self._written(f"user-{len(self._client_contexts)}", pair))
            self._client_contexts[user] = context
        return self._client_contexts[user]

    def _written(self, stem: str, pair: CertificatePair) -> tuple[Path, Path]:
        paths = self._directory / f"{stem}.crt", self._directory / f"{stem}.key"
        for path, content in zip(paths, (pair.certificate, pair.key), strict=True):
            path.write_bytes(content)
        return paths
