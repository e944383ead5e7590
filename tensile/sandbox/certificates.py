"""Makes a cluster's certificate authority and what it signs.

Elliptic curve keys throughout: made in a millisecond, where an RSA key takes a tenth of a second and a sandbox has
thirty. The time is passed in; a certificate is valid from an hour before it, so that clocks may differ a little.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from ipaddress import ip_address

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

VALIDITY = timedelta(days=365)
LEEWAY = timedelta(hours=1)


@dataclass(frozen=True)
class Pair:
    """A certificate and its key, as PEM."""

    certificate: bytes
    key: bytes


@dataclass(frozen=True)
class Authority:
    """A certificate authority that signs until its own certificate ends; made by `authority`."""

    pair: Pair
    name: x509.Name
    key: ec.EllipticCurvePrivateKey
    now: datetime

    def issue(
        self, name: str, groups: Sequence[str] = (), *, hosts: Sequence[str] = (), addresses: Sequence[str] = ()
    ) -> Pair:
        """Sign a certificate for clients and servers.

        Kubernetes reads the common name as the user and the organizations as its groups.
        """
        key = new_key()
        builder = _builder(_name(name, groups), self.name, key, self.key, self.now)
        builder = builder.add_extension(_purposes(), critical=False)
        names = [*map(x509.DNSName, hosts), *(x509.IPAddress(ip_address(one)) for one in addresses)]
        if names:
            builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        return Pair(_pem(builder.sign(self.key, hashes.SHA256())), private_pem(key))


def authority(name: str, now: datetime) -> Authority:
    """Make a certificate authority of that common name."""
    key = new_key()
    subject = _name(name, ())
    builder = _builder(subject, subject, key, key, now)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    builder = builder.add_extension(_signing(), critical=True)
    certificate = _pem(builder.sign(key, hashes.SHA256()))
    return Authority(Pair(certificate, private_pem(key)), subject, key, now)


def new_key() -> ec.EllipticCurvePrivateKey:
    """Make a private key."""
    return ec.generate_private_key(ec.SECP256R1())


def private_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    """Return the private key as PEM."""
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )


def public_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    """Return the public half as PEM."""
    return key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)


def _name(common_name: str, organizations: Sequence[str]) -> x509.Name:
    """Return a subject: groups first, as Kubernetes' own tools write them."""
    groups = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, group) for group in organizations]
    return x509.Name([*groups, x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def _purposes() -> x509.ExtendedKeyUsage:
    """Return what every certificate here may be used for."""
    return x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH])


def _signing() -> x509.KeyUsage:
    """Return what an authority's key may be used for."""
    return x509.KeyUsage(
        digital_signature=True,
        key_cert_sign=True,
        crl_sign=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePrivateKey,
    signer: ec.EllipticCurvePrivateKey,
    now: datetime,
) -> x509.CertificateBuilder:
    """Begin a certificate; both key identifiers are there because strict verifiers ask for them."""
    builder = x509.CertificateBuilder(
        issuer_name=issuer,
        subject_name=subject,
        public_key=key.public_key(),
        serial_number=x509.random_serial_number(),
        not_valid_before=now - LEEWAY,
        not_valid_after=now + VALIDITY,
    )
    own = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    its = x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key())
    return builder.add_extension(own, critical=False).add_extension(its, critical=False)


def _pem(certificate: x509.Certificate) -> bytes:
    """Return a certificate as PEM."""
    return certificate.public_bytes(serialization.Encoding.PEM)
