"""Certificates and kubeconfigs for tests: two authorities, and what each has signed."""

import base64
import ipaddress
import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import yaml
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from tensile.objects import Manifest


class Authority:
    """A certificate authority that signs for 127.0.0.1 and for people."""

    def __init__(self, name: str) -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        certificate = _builder(self._name, self._name, self._key.public_key()).add_extension(
            x509.BasicConstraints(ca=True, path_length=None), critical=True
        )
        self.pem = certificate.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)

    def sign(self, name: str, *, expired: bool = False) -> tuple[bytes, bytes]:
        """Return a certificate for `name` and 127.0.0.1, and its key, in PEM."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        builder = _builder(subject, self._name, key.public_key(), expired=expired).add_extension(
            x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1")), x509.DNSName(name)]),
            critical=False,
        )
        certificate = builder.sign(self._key, hashes.SHA256())
        return certificate.public_bytes(serialization.Encoding.PEM), _key_pem(key)


def _key_pem(key: ec.EllipticCurvePrivateKey, password: bytes = b"") -> bytes:
    """Write a key, locked when there is a password."""
    locked = serialization.BestAvailableEncryption(password) if password else serialization.NoEncryption()
    return key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, locked)


def _builder(
    subject: x509.Name, issuer: x509.Name, public: ec.EllipticCurvePublicKey, *, expired: bool = False
) -> x509.CertificateBuilder:
    """Begin a certificate that is valid today, or was until an hour ago."""
    now = datetime.now(UTC)
    until = now - timedelta(hours=1) if expired else now + timedelta(days=1)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(until)
    )


class Papers:
    """Two authorities; the first has signed the server and `alice`."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.authority = Authority("first")
        self.other = Authority("other")
        self.server, self.server_key = self.authority.sign("server")
        self.alice, self.alice_key = self.authority.sign("alice")

    def locked_key(self) -> bytes:
        """Return a key that asks for a password."""
        return _key_pem(ec.generate_private_key(ec.SECP256R1()), b"secret")

    def server_context(self, *, expired: bool = False, ask: bool = False, fresh: bool = False) -> ssl.SSLContext:
        """Return the TLS context of a server; with `ask` it wants a certificate of the first authority's.

        Its certificate is always the same one, unless it is `fresh`.
        """
        certificate, key = self.server, self.server_key
        if expired or fresh:
            certificate, key = self.authority.sign("server", expired=expired)
        chain = self.directory / ("expired.pem" if expired else "server.pem")
        chain.write_bytes(certificate + key)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(chain)
        if ask:
            context.load_verify_locations(cadata=self.authority.pem.decode())
            context.verify_mode = ssl.CERT_REQUIRED
        return context


def inline(pem: bytes) -> str:
    """Encode PEM as kubeconfigs hold it."""
    return base64.b64encode(pem).decode()


def kubeconfig(
    user: Manifest, cluster: Manifest | None = None, *, server: str = "https://127.0.0.1:6443", **top: Any
) -> str:
    """Write a kubeconfig with one context, `here`, that is current."""
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "here",
        "contexts": [{"name": "here", "context": {"cluster": "there", "user": "me"}}],
        "clusters": [{"name": "there", "cluster": {"server": server, **(cluster or {})}}],
        "users": [{"name": "me", "user": user}],
        **top,
    }
    return yaml.safe_dump(config)
