"""What a connection trusts and shows: PEM in, the `kubernetes` package's configuration and TLS context out."""

import ssl
from contextlib import nullcontext
from typing import NamedTuple

from tensile.errors import AccessError
from tensile.keyfile import file_of
from tensile.kube.aio import Configuration, RESTClientObject


class Papers(NamedTuple):
    """What a TLS context is made of, in PEM: the cluster's CA ("": the system's), our certificate and key ("": none).

    Holds a private key: never print it.
    """

    authority: bytes = b""
    certificate: bytes = b""
    key: bytes = b""

    def __repr__(self) -> str:
        return "Papers(...)"


def context(papers: Papers, origin: str) -> ssl.SSLContext:
    """Return the TLS context, which always checks the server's certificate and name.

    `origin` says in the AccessError where the papers are from.
    """
    _check(papers, origin)
    pair = file_of(papers.certificate + b"\n" + papers.key) if papers.certificate else nullcontext()
    with pair as file:
        configuration = Configuration(ca_cert_data=_text(papers.authority), cert_file=file)
        # Newer Pythons demand extensions that the CAs of many clusters do not have.
        configuration.disable_strict_ssl_verification = True
        try:
            made: ssl.SSLContext = RESTClientObject(configuration).ssl_context
        except ssl.SSLError:
            raise AccessError(f"{origin}: client-certificate and client-key are no pair in PEM", "check both") from None
    made.minimum_version = ssl.TLSVersion.TLSv1_2
    made.options |= ssl.OP_NO_RENEGOTIATION
    return made


def _check(papers: Papers, origin: str) -> None:
    """Refuse what ssl would not say a clear word about; for an encrypted key it would ask on the terminal."""
    if b"ENCRYPTED" in papers.key:
        raise AccessError(f"{origin}: client-key is encrypted", "give it without a password")
    if papers.authority:
        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cadata=_text(papers.authority) or "")
        except (ssl.SSLError, ValueError):
            raise AccessError(f"{origin}: certificate-authority holds no certificate", "give PEM") from None


def _text(pem: bytes) -> str | None:
    """Return certificates as text, None for none; what is written between them may be in any language."""
    return pem.decode("ascii", errors="ignore") if pem else None
