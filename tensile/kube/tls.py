"""TLS contexts for connections to clusters and for our listeners, from certificates and keys in PEM.

A listener without a configured certificate gets a self-signed one, or one under a CA that is created for it. Keys are
never written to a disk if the system can keep them in memory.
"""

import ssl
from collections.abc import Iterable
from contextlib import nullcontext
from datetime import datetime, timedelta
from ipaddress import ip_address
from typing import NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from tensile.errors import AccessError
from tensile.kube.aio import Configuration, RESTClientObject
from tensile.kube.files import file_of

_SKEW = timedelta(hours=1)
_LONGEST_COMMON_NAME = 64


class TLSMaterial(NamedTuple):
    """The inputs of a TLS context, in PEM: the cluster's CA ("": the system's), our certificate and key ("": none).

    It contains a private key: never print it.
    """

    authority: bytes = b""
    certificate: bytes = b""
    key: bytes = b""

    def __repr__(self) -> str:
        return "Papers(...)"


class KeyPair(NamedTuple):
    """A certificate (with its chain) and its key, both in PEM. Its text hides the key."""

    certificate: bytes
    key: bytes

    def __repr__(self) -> str:
        return "KeyPair(...)"


def context(papers: TLSMaterial, origin: str) -> ssl.SSLContext:
    """Return the TLS context, which always verifies the server's certificate and name.

    `origin` names the source in the AccessError.
    """
    _check(papers, origin)
    pair = file_of(papers.certificate + b"\n" + papers.key) if papers.certificate else nullcontext()
    with pair as file:
        configuration = Configuration(ca_cert_data=_text(papers.authority), cert_file=file)
        # Newer Python versions require extensions that the CAs of many clusters do not have.
        configuration.disable_strict_ssl_verification = True
        try:
            made: ssl.SSLContext = RESTClientObject(configuration).ssl_context
        except ssl.SSLError:
            raise AccessError(
                f"{origin}: client-certificate and client-key are not a matching pair in PEM", "check both"
            ) from None
    made.minimum_version = ssl.TLSVersion.TLSv1_2
    made.options |= ssl.OP_NO_RENEGOTIATION
    return made


def _check(papers: TLSMaterial, origin: str) -> None:
    """Raise AccessError for input that ssl rejects unclearly. For an encrypted key, ssl would ask on the terminal."""
    if b"ENCRYPTED" in papers.key:
        raise AccessError(f"{origin}: client-key is encrypted", "use a key without a password")
    if papers.authority:
        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cadata=_text(papers.authority) or "")
        except (ssl.SSLError, ValueError):
            raise AccessError(f"{origin}: certificate-authority contains no certificate", "use PEM") from None


def _text(pem: bytes) -> str | None:
    """Return certificates as text, None for none. Comments between them may be in any language."""
    return pem.decode("ascii", errors="ignore") if pem else None


def self_signed(organization: str, common_name: str, names: Iterable[str], now: datetime, life: timedelta) -> KeyPair:
    """Create a self-signed serving certificate for `names` (IP addresses or DNS names), like `issued`."""
    return issued(organization, common_name, names, now, life)


def issued(
    organization: str,
    common_name: str,
    names: Iterable[str],
    now: datetime,
    life: timedelta,
    *,
    authority: KeyPair | None = None,
    signs: bool = False,
) -> KeyPair:
    """Create a certificate that a CA (None: its own key) signs; with `signs` it is a CA for serving certificates.

    It is valid from an hour before `now`. The common name, which clients do not verify, is truncated to its maximum
    length. The CA's key is an elliptic curve key.
    """
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name(
        [
            x509.NameAttribute(NameOID.ORGANIZATION_NAME, organization),
            x509.NameAttribute(NameOID.COMMON_NAME, common_name[:_LONGEST_COMMON_NAME]),
        ]
    )
    issuer = x509.load_pem_x509_certificate(authority.certificate).subject if authority else name
    signer = serialization.load_pem_private_key(authority.key, None) if authority else key
    assert isinstance(signer, ec.EllipticCurvePrivateKey), "authorities have EC keys"
    known, own = signer.public_key(), key.public_key()
    certificate = (
        x509.CertificateBuilder(issuer, name, own, x509.random_serial_number())
        .not_valid_before(now - _SKEW)
        .not_valid_after(now + life)
        .add_extension(x509.SubjectAlternativeName([alternative(one) for one in names]), critical=False)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.BasicConstraints(ca=signs, path_length=0 if signs else None), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(own), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(known), critical=False)
        .sign(signer, hashes.SHA256())
    )
    plain = serialization.NoEncryption()
    pem, pkcs8 = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    return KeyPair(certificate.public_bytes(pem), key.private_bytes(pem, pkcs8, plain))


def expiration(pem: bytes) -> datetime | None:
    """Return when the first of some certificates in PEM expires, None if there is none that can be read."""
    try:
        return x509.load_pem_x509_certificates(pem)[0].not_valid_after_utc if pem else None
    except ValueError:
        return None


def alternative(address: str) -> x509.GeneralName:
    """Return an address as a certificate's alternative name: an IP address, or a DNS name."""
    try:
        return x509.IPAddress(ip_address(address))
    except ValueError:
        return x509.DNSName(address)


def serving_tls(pair: KeyPair) -> ssl.SSLContext:
    """Create a listener's TLS context: 1.2 or newer, no client certificates. Raises OSError for an invalid pair."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION
    with file_of(pair.key + b"\n" + pair.certificate) as path:
        context.load_cert_chain(path, password=_no_password)
    return context


def _no_password() -> bytes:
    """Return no password: an encrypted key is an error, not a question on a terminal."""
    return b""
