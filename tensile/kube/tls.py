"""TLS contexts for connections to clusters and for our listeners, and checks of the certificates and keys for them.

A listener without a configured certificate gets a self-signed one, or one under a CA that is created for it. Keys are
never written to a disk if the system can keep them in memory.

Certificates that do not fit are a frequent question, and TLS libraries name neither the file nor the remedy. So the
known mistakes are checked one by one, and the library's own message comes last.
"""

import re
import ssl
from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from datetime import datetime, timedelta
from ipaddress import ip_address
from typing import NamedTuple

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_private_key
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from tensile.errors import AccessError
from tensile.kube.aio import Configuration, RESTClientObject
from tensile.kube.files import UnreadableFile, file_of

_SKEW = timedelta(hours=1)
_LONGEST_COMMON_NAME = 64
_KEY = re.compile(rb"-----BEGIN ([A-Z ]*)PRIVATE KEY-----.*?-----END \1PRIVATE KEY-----", re.DOTALL)
_KEYLIKE = b"PRIVATE KEY-----"
_CERTIFICATE = b"-----BEGIN CERTIFICATE-----"
_SERVERS = (ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.ANY_EXTENDED_KEY_USAGE)


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


def context(material: TLSMaterial, origin: str) -> ssl.SSLContext:
    """Return the TLS context, which always verifies the server's certificate and name.

    `origin` names the source in the AccessError.
    """
    _check(material, origin)
    pair = file_of(material.certificate + b"\n" + material.key) if material.certificate else nullcontext()
    with pair as file:
        configuration = Configuration(ca_cert_data=_text(material.authority), cert_file=file)
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


def _check(material: TLSMaterial, origin: str) -> None:
    """Raise AccessError for input that ssl rejects unclearly. For an encrypted key, ssl would ask on the terminal."""
    if b"ENCRYPTED" in material.key:
        raise AccessError(f"{origin}: client-key is encrypted", "use a key without a password")
    if material.authority:
        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cadata=_text(material.authority) or "")
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
    authority_key, public_key = signer.public_key(), key.public_key()
    certificate = (
        x509.CertificateBuilder(issuer, name, public_key, x509.random_serial_number())
        .not_valid_before(now - _SKEW)
        .not_valid_after(now + life)
        .add_extension(x509.SubjectAlternativeName([alternative(one) for one in names]), critical=False)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.BasicConstraints(ca=signs, path_length=0 if signs else None), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public_key), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key), critical=False)
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


class CertificateProblem(NamedTuple):
    """A problem with a certificate: which one, what it is, and what to do."""

    which: str
    what: str
    advice: str

    def __str__(self) -> str:
        return f"{self.which}: {self.what}: {self.advice}"


def unreadable(which: str, error: OSError) -> CertificateProblem:
    """Return why a file cannot be read."""
    if isinstance(error, UnreadableFile):
        return CertificateProblem(which, f"cannot be read ({error.strerror})", error.advice)
    advice = {
        FileNotFoundError: "set a path that exists; a relative path starts at the folder of the topology file",
        PermissionError: "allow the user of the engine process to read it",
    }.get(type(error), "make it readable")
    return CertificateProblem(which, f"cannot be read ({error.strerror or error})", advice)


def pair_fault(certificate_of: str, key_of: str, certificate: bytes, key: bytes) -> CertificateProblem | None:
    """Return why a certificate and a key, as PEM, cannot be served; None when no reason is found.

    `certificate_of` and `key_of` name them in messages.
    """
    return (
        authority_fault(certificate_of, certificate)
        or _no_key(key_of, key)
        or _pair_mismatch(certificate_of, key_of, certificate, key)
    )


def warnings(which: str, certificate: x509.Certificate, address: str, now: datetime) -> Iterator[CertificateProblem]:
    """Yield why callers may refuse a certificate that can be served; `address` is where they call the node."""
    yield from _out_of_date(which, certificate, now)
    names = names_of(certificate)
    if address and address not in names:
        named = (
            f"it is valid for {', '.join(names)}" if names else "it has no subjectAltName (the common name is ignored)"
        )
        advice = f"issue it with {_alternative(address)} in its subjectAltNames, or set kubelet.nodeAddress"
        yield CertificateProblem(which, f"{named}, but the upper apiserver calls the nodes at {address}", advice)
    if not _is_for_servers(certificate):
        yield CertificateProblem(
            which, "it is not a server certificate", "issue it with the extended key usage serverAuth"
        )


def authority_warnings(which: str, certificates: list[x509.Certificate], now: datetime) -> Iterator[CertificateProblem]:
    """Yield why certificates of an authority cannot verify callers."""
    for each in certificates:
        name = f"{which}: {each.subject.rfc4514_string() or 'a certificate without a name'}"
        yield from _out_of_date(name, each, now)
        if not _is_authority(each):
            advice = "use the certificate of the CA that signed the upper apiserver's --kubelet-client-certificate"
            yield CertificateProblem(
                name, "it is not a CA certificate, so only clients with exactly this certificate are accepted", advice
            )


def described(certificate: x509.Certificate) -> str:
    """Return one line with a certificate's subject, issuer, names and end."""
    names = ", ".join(names_of(certificate)) or "no name"
    subject, issuer = certificate.subject.rfc4514_string() or "no subject", certificate.issuer.rfc4514_string()
    return f"{subject}, issued by {issuer}, for {names}, until {date_of(certificate.not_valid_after_utc)}"


def authority_fault(which: str, text: bytes) -> CertificateProblem | None:
    """Return why PEM cannot be a certificate, or an authority that verifies callers' certificates."""
    if not text.strip():
        return CertificateProblem(which, "it is empty", "write the PEM certificate to it")
    if _CERTIFICATE not in text:
        found = "a private key but no certificate" if _KEYLIKE in text else "no PEM certificate"
        return CertificateProblem(which, f"it contains {found}", f"use a file that begins with {_CERTIFICATE.decode()}")
    try:
        x509.load_pem_x509_certificates(text)
    except ValueError as error:
        return CertificateProblem(which, f"the certificate in it is damaged ({error})", "copy the complete file again")
    return None


def _no_key(which: str, text: bytes) -> CertificateProblem | None:
    if not text.strip():
        return CertificateProblem(which, "it is empty", "write the PEM key to it")
    if _KEYLIKE not in text:
        found = "a certificate but no key" if _CERTIFICATE in text else "no PEM private key"
        return CertificateProblem(
            which, f"it contains {found}", "use a file whose first line ends with PRIVATE KEY-----"
        )
    try:
        load_pem_private_key(_key_of(text), None)
    except TypeError:
        return CertificateProblem(which, "the key is encrypted", "remove the password: openssl pkey -in OLD -out NEW")
    except UnsupportedAlgorithm:
        return CertificateProblem(which, "the key has an unsupported type", "use RSA or an elliptic curve")
    except ValueError:
        return CertificateProblem(which, "the key in it is damaged", "copy the complete file again")
    return None


def _pair_mismatch(certificate_of: str, key_of: str, certificate: bytes, key: bytes) -> CertificateProblem | None:
    """Return the fault if the first certificate of the file is not that of the key, by their public keys."""
    own = spelled(load_pem_private_key(_key_of(key), None).public_key())
    chain = [spelled(each.public_key()) for each in x509.load_pem_x509_certificates(certificate)]
    if own == chain[0]:
        return None
    if own in chain:
        return CertificateProblem(
            certificate_of, "the node's certificate is not the first one in it", "put it before the CA certificates"
        )
    return CertificateProblem(certificate_of, f"it does not match the key in {key_of}", "renew both together")


def _key_of(text: bytes) -> bytes:
    """Return only the PEM block of the key: tools write parameters, comments or certificates before it."""
    found = _KEY.search(text)
    return found.group() if found else text


def spelled(key: object) -> bytes:
    """Return a public key as bytes, for comparison."""
    return key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)  # type: ignore[attr-defined,no-any-return]


def _out_of_date(which: str, certificate: x509.Certificate, now: datetime) -> Iterator[CertificateProblem]:
    begin, end = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    if end < now:
        yield CertificateProblem(which, f"it expired on {date_of(end)}", "renew it")
    if begin > now:
        yield CertificateProblem(
            which, f"it is not valid before {date_of(begin)}", "correct the clock of this machine, or issue it again"
        )


def names_of(certificate: x509.Certificate | x509.CertificateSigningRequest) -> list[str]:
    """Return the addresses and DNS names that a certificate is or will be for; as in Go, not the common name."""
    try:
        found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return []
    return [*map(str, found.get_values_for_type(x509.IPAddress)), *found.get_values_for_type(x509.DNSName)]


def other_names(certificate: x509.Certificate, host: str) -> str:
    """Return the names of a certificate as text, "nothing" for none; "" if they, or a wildcard, cover the host."""
    names = names_of(certificate)
    is_covered = host in names or f"*.{host.partition('.')[2]}" in names
    return "" if is_covered else ", ".join(names) or "nothing"


def _is_for_servers(certificate: x509.Certificate) -> bool:
    """Report whether it may be a server's; a certificate without extended key usages may be used for anything."""
    try:
        usages = certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    except x509.ExtensionNotFound:
        return True
    return any(usage in _SERVERS for usage in usages)


def _is_authority(certificate: x509.Certificate) -> bool:
    try:
        return certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    except x509.ExtensionNotFound:
        return False


def _alternative(address: str) -> str:
    try:
        return f"IP:{ip_address(address)}"
    except ValueError:
        return f"DNS:{address}"


def date_of(moment: datetime) -> str:
    """Return a time (UTC) as text for people, to the minute."""
    return moment.strftime("%Y-%m-%d %H:%M UTC")
