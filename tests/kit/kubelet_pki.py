"""Certificate authorities and identities for the tests, made for each run."""

import ssl
import tempfile
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from tensile.kubelet.api.certificates import ServingFiles

DAY = timedelta(days=1)
CLIENT = ExtendedKeyUsageOID.CLIENT_AUTH
SERVER = ExtendedKeyUsageOID.SERVER_AUTH


class Identity(NamedTuple):
    """A certificate and its key, both PEM."""

    certificate: bytes
    key: bytes


def _name(common_name: str, organisations: tuple[str, ...] = ()) -> x509.Name:
    units = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, each) for each in organisations]
    people = [x509.NameAttribute(NameOID.COMMON_NAME, common_name)] if common_name else []
    return x509.Name([*units, *people])


class Authority:
    """One certificate authority."""

    def __init__(self, name: str) -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _name(name)
        now = datetime.now(UTC)
        self._certificate = (
            x509.CertificateBuilder(self._name, self._name, self._key.public_key(), x509.random_serial_number())
            .not_valid_before(now - 10 * DAY)
            .not_valid_after(now + 10 * DAY)
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .sign(self._key, hashes.SHA256())
        )
        self.pem = self._certificate.public_bytes(serialization.Encoding.PEM).decode()

    def issue(
        self,
        common_name: str,
        organisations: tuple[str, ...] = (),
        usage: x509.ObjectIdentifier | None = CLIENT,
        end: timedelta = DAY,
        begin: timedelta = -5 * DAY,
        *,
        host: str = "localhost",
        plain: bool = False,
    ) -> Identity:
        """Make a certificate for a client or, with the usage SERVER, for a server on loopback (None: for either).

        A `plain` certificate has neither alternative names nor an extended key usage.
        """
        key = ec.generate_private_key(ec.SECP256R1())
        subject = _name(common_name, organisations)
        addresses = x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1")), x509.DNSName(host)])
        builder = (
            x509.CertificateBuilder(self._name, subject, key.public_key(), x509.random_serial_number())
            .not_valid_before(datetime.now(UTC) + begin)
            .not_valid_after(datetime.now(UTC) + end)
        )
        if usage is not None and not plain:
            builder = builder.add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
        if not plain:
            builder = builder.add_extension(addresses, critical=False)
        certificate = builder.sign(self._key, hashes.SHA256())
        pem, pkcs8 = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
        secret = key.private_bytes(pem, pkcs8, serialization.NoEncryption())
        return Identity(certificate.public_bytes(pem), secret)

    def granted(self, request: bytes, begin: datetime, end: datetime) -> bytes:
        """Sign a certificate signing request (PEM), as a cluster's signer does."""
        csr = x509.load_pem_x509_csr(request)
        names = csr.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        certificate = (
            x509.CertificateBuilder(self._name, csr.subject, csr.public_key(), x509.random_serial_number())
            .not_valid_before(begin)
            .not_valid_after(end)
            .add_extension(x509.ExtendedKeyUsage([SERVER]), critical=False)
            .add_extension(names, critical=False)
            .sign(self._key, hashes.SHA256())
        )
        return certificate.public_bytes(serialization.Encoding.PEM)


def load(context: ssl.SSLContext, identity: Identity) -> None:
    """Load this identity into a TLS context."""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory, "pair.pem")
        path.write_bytes(identity.certificate + identity.key)
        context.load_cert_chain(path)


def write(directory: Path, identity: Identity) -> ServingFiles:
    """Write an identity into two files."""
    files = ServingFiles(directory / "tls.crt", directory / "tls.key")
    files.certificate.write_bytes(identity.certificate)
    files.key.write_bytes(identity.key)
    return files


class Pki:
    """Two authorities for clients (a trusted one and another), one for servers, and the identities that tests use."""

    def __init__(self, directory: Path) -> None:
        self.clients = Authority("clients")
        self.others = Authority("others")
        self.servers = Authority("servers")
        self.apiserver = self.clients.issue("kube-apiserver", ("system:masters", "operators"))
        self.powerless = self.clients.issue("nobody-special", ("guests",))
        self.foreign = self.others.issue("kube-apiserver", ("system:masters",))
        self.expired = self.clients.issue("kube-apiserver", end=-DAY)
        self.server_only = self.clients.issue("kube-apiserver", usage=SERVER)
        self.nameless = self.clients.issue("", ("system:masters",))
        self.serving = self.servers.issue("serving", usage=SERVER)
        self.serving_files = write(directory, self.serving)
        self._clients: dict[Identity | None, ssl.SSLContext] = {}
        self._server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        load(self._server, self.serving)

    def client_context(self, identity: Identity | None) -> ssl.SSLContext:
        """Return the cached TLS context of a client that trusts the servers and presents `identity`, or none."""
        if identity not in self._clients:
            self._clients[identity] = ssl.create_default_context(cadata=self.servers.pem)
            if identity is not None:
                load(self._clients[identity], identity)
        return self._clients[identity]

    def server_context(self) -> ssl.SSLContext:
        """Return the cached TLS context of the scripted lower apiserver."""
        return self._server
