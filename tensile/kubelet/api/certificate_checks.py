"""Checks of certificates and keys: which one is wrong, what is wrong, and what to do about it.

Certificates that do not fit are a frequent question, and TLS libraries name neither the file nor the remedy. So the
known mistakes are checked one by one, and the library's own message comes last.
"""

import re
from collections.abc import Iterator
from datetime import datetime
from ipaddress import ip_address
from typing import NamedTuple

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_private_key
from cryptography.x509.oid import ExtendedKeyUsageOID

from tensile.kube.files import UnreadableFile

_KEY = re.compile(rb"-----BEGIN ([A-Z ]*)PRIVATE KEY-----.*?-----END \1PRIVATE KEY-----", re.DOTALL)
_KEYLIKE = b"PRIVATE KEY-----"
_CERTIFICATE = b"-----BEGIN CERTIFICATE-----"
_SERVERS = (ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.ANY_EXTENDED_KEY_USAGE)


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
        _no_certificate(certificate_of, certificate)
        or _no_key(key_of, key)
        or _strangers(certificate_of, key_of, certificate, key)
    )


def authority_fault(which: str, text: bytes) -> CertificateProblem | None:
    """Return why PEM cannot be an authority that verifies callers' certificates."""
    return _no_certificate(which, text)


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


def _no_certificate(which: str, text: bytes) -> CertificateProblem | None:
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


def _strangers(certificate_of: str, key_of: str, certificate: bytes, key: bytes) -> CertificateProblem | None:
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
