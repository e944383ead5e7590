"""Certificates and kubeconfigs for tests: two authorities, and certificates that they signed."""

import base64
import ssl
from datetime import timedelta
from pathlib import Path
from typing import Any

import kubelet_pki
import yaml
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from tensile.objects import Manifest


class SigningAuthority:
    """A certificate authority that signs for 127.0.0.1 and for users."""

    def __init__(self, name: str) -> None:
        self._signer = kubelet_pki.Authority(name)
        self.pem = self._signer.pem.encode()

    def sign(self, name: str, *, expired: bool = False) -> tuple[bytes, bytes]:
        """Return a certificate for `name` and 127.0.0.1, and its key, in PEM."""
        made = self._signer.issue(name, usage=None, end=timedelta(hours=-1 if expired else 24), host=name)
        return made.certificate, made.key


class CertificateSet:
    """Two authorities; the first has signed the server and `alice`."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.authority = SigningAuthority("first")
        self.other_authority = SigningAuthority("other")
        self.server, self.server_key = self.authority.sign("server")
        self.alice, self.alice_key = self.authority.sign("alice")

    def encrypted_key(self) -> bytes:
        """Return a key that is encrypted with a password."""
        return ec.generate_private_key(ec.SECP256R1()).private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"secret"),
        )

    def server_context(
        self, *, expired: bool = False, require_client_certificate: bool = False, fresh: bool = False
    ) -> ssl.SSLContext:
        """Return the TLS context of a server, which may require a client certificate of the first authority.

        Its certificate is always the same one, unless it is `fresh`.
        """
        certificate, key = self.server, self.server_key
        if expired or fresh:
            certificate, key = self.authority.sign("server", expired=expired)
        chain = self.directory / ("expired.pem" if expired else "server.pem")
        chain.write_bytes(certificate + key)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(chain)
        if require_client_certificate:
            context.load_verify_locations(cadata=self.authority.pem.decode())
            context.verify_mode = ssl.CERT_REQUIRED
        return context


def inline(pem: bytes) -> str:
    """Encode PEM as kubeconfigs hold it."""
    return base64.b64encode(pem).decode()


def kubeconfig(
    user: Manifest, cluster: Manifest | None = None, *, server: str = "https://127.0.0.1:6443", **top: Any
) -> str:
    """Return the text of a kubeconfig with one context, `here`, that is current."""
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "here",
        "contexts": [{"name": "here", "context": {"cluster": "there", "user": "me"}}],
        "clusters": [{"name": "there", "cluster": {"server": server, **(cluster or {})}}],
        "users": [{"name": "me", "user": user}],
        **top,
    }
    return str(yaml.dump(config, Dumper=yaml.CSafeDumper))
