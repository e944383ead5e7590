"""Creates a cluster's CA, certificates, keys and kubeconfigs, and writes them to its folder.

One CA per cluster signs clients, servers and kubelets, as with `kubeadm` (except etcd's). So one file serves as the
apiserver's `client-ca-file` and as `--kubelet-certificate-authority`.

All keys are elliptic curve keys, which take a millisecond to create; an RSA key takes a tenth of a second, and a
sandbox has thirty keys. Certificates are valid from an hour before the time that is passed in, since clocks may differ.

Kubeconfigs have inline certificates, so that one file can be copied and handed on. They are rendered from a template,
since their shape never changes and people read them.
"""

from base64 import b64encode
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from tensile.sandbox.state import LOOPBACK, Layout

VALIDITY = timedelta(days=365)
LEEWAY = timedelta(hours=1)
ADMINISTRATORS = "system:masters"
NODES = "system:nodes"
ADDONS = "addons"
METRICS_SERVICE = "sandbox-metrics"
METRICS_NAMESPACE = "kube-system"
"""The Service by which an apiserver finds its metrics API."""
KUBELET_CLIENT = "kube-apiserver-kubelet-client"
FRONT_PROXY_CLIENT = "front-proxy-client"
SCHEDULER = "kube-scheduler"
ENDPOINT = "endpoint"
COMPONENT_USERS = {
    "kube-controller-manager": ("system:kube-controller-manager", ()),
    SCHEDULER: ("system:kube-scheduler", ()),
    "kwok": ("kwok", (ADMINISTRATORS,)),
}
APISERVER_NAMES = ("localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc")
TEMPLATE = """\
apiVersion: v1
kind: Config
current-context: {name}
clusters:
- name: {name}
  cluster:
    server: {server}
    certificate-authority-data: {authority}
users:
- name: {user}
  user:
    client-certificate-data: {certificate}
    client-key-data: {key}
contexts:
- name: {name}
  context:
    cluster: {name}
    user: {user}
"""


@dataclass(frozen=True)
class CertificatePair:
    """A certificate and its key, as PEM."""

    certificate: bytes
    key: bytes


@dataclass(frozen=True)
class Authority:
    """A certificate authority that signs certificates; created by `authority`."""

    pair: CertificatePair
    name: x509.Name
    key: ec.EllipticCurvePrivateKey
    now: datetime

    def issue(
        self, name: str, groups: Sequence[str] = (), *, hosts: Sequence[str] = (), addresses: Sequence[str] = ()
    ) -> CertificatePair:
        """Return a new certificate for clients and servers.

        Kubernetes reads the common name as the user and the organizations as its groups.
        """
        key = new_key()
        builder = _builder(_name(name, groups), self.name, key, self.key, self.now)
        builder = builder.add_extension(_purposes(), critical=False)
        names = [*map(x509.DNSName, hosts), *(x509.IPAddress(ip_address(one)) for one in addresses)]
        if names:
            builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        return CertificatePair(_pem(builder.sign(self.key, hashes.SHA256())), private_pem(key))


def write(layout: Layout, now: datetime) -> Authority:
    """Write all credentials of the cluster's processes and users, and return its CA."""
    for directory in (layout.pki, layout.output, layout.logs, layout.work):
        directory.mkdir(parents=True, exist_ok=True)
    signer = authority(f"{layout.name}-ca", now)
    write_pair(layout.pki / "ca", signer.pair)
    _write_servers(layout, signer)
    _write_clients(layout, signer)
    _write_front_proxy(layout, now)
    _write_account_keys(layout)
    if layout.network:
        _write_node(layout, signer)
    return signer


def write_pair(stem: Path, pair: CertificatePair) -> None:
    """Write STEM.crt and STEM.key."""
    write_secret(stem.with_suffix(".crt"), pair.certificate)
    write_secret(stem.with_suffix(".key"), pair.key)


def write_secret(path: Path, content: bytes) -> None:
    """Write a file that only its owner can read."""
    path.touch(mode=0o600)
    path.write_bytes(content)


def kubelet_pair(signer: Authority) -> CertificatePair:
    """Return a serving certificate for a kubelet API on loopback."""
    return signer.issue("system:node:sandbox", (NODES,), hosts=("localhost",), addresses=(LOOPBACK,))


def _write_servers(layout: Layout, signer: Authority) -> None:
    """Write the serving certificates of the apiserver, the kubelet API and the addons, which are clients too."""
    addresses = (LOOPBACK, layout.service_address, *([layout.gateway] if layout.network else ()))
    pair = signer.issue("kube-apiserver", hosts=APISERVER_NAMES, addresses=addresses)
    write_pair(layout.pki / "apiserver", pair)
    write_pair(layout.pki / "kubelet", kubelet_pair(signer))
    hosts = ("localhost", f"{METRICS_SERVICE}.{METRICS_NAMESPACE}.svc")
    write_pair(layout.pki / ADDONS, signer.issue(ADDONS, (ADMINISTRATORS,), hosts=hosts, addresses=(LOOPBACK,)))


def _write_node(layout: Layout, signer: Authority) -> None:
    """Write a real node's serving certificate, and its kubeconfig with the rights of a kubelet."""
    name = f"system:node:{layout.node_names[0]}"
    pair = signer.issue(name, (NODES,), addresses=(layout.node_address,))
    write_pair(layout.pki / "node-serving", pair)
    server = f"https://{layout.gateway}:{layout.ports.apiserver}"
    text = render(layout.name, server, name, signer.pair.certificate, signer.issue(name, (NODES,)))
    write_secret(layout.pki / "node.kubeconfig", text.encode())


def _write_clients(layout: Layout, signer: Authority) -> None:
    """Write the client certificates and the kubeconfigs.

    Three client certificates have their own files: the apiserver's for kubelets, the scheduler's for an extender, and
    that of our own endpoint, which does not read YAML.
    """
    write_pair(layout.pki / "kubelet-client", signer.issue(KUBELET_CLIENT))
    write_pair(layout.pki / ENDPOINT, signer.issue(ENDPOINT, (ADMINISTRATORS,)))
    admin = signer.issue("kubernetes-admin", (ADMINISTRATORS,))
    write_pair(layout.pki / "admin", admin)
    _write_kubeconfig(layout, layout.kubeconfig, f"{layout.name}-admin", signer, admin)
    for component, (user, groups) in COMPONENT_USERS.items():
        path, pair = layout.pki / f"{component}.kubeconfig", signer.issue(user, groups)
        _write_kubeconfig(layout, path, component, signer, pair)
        if component == SCHEDULER:
            write_pair(layout.pki / component, pair)


def _write_kubeconfig(layout: Layout, path: Path, user: str, signer: Authority, pair: CertificatePair) -> None:
    """Write a kubeconfig that only its owner can read."""
    text = render(layout.name, layout.server, user, signer.pair.certificate, pair)
    write_secret(path, text.encode())


def _write_front_proxy(layout: Layout, now: datetime) -> None:
    """Write the front proxy's credentials; their CA must differ from the one that signs users."""
    signer = authority(f"{layout.name}-front-proxy-ca", now)
    write_pair(layout.pki / "front-proxy-ca", signer.pair)
    write_pair(layout.pki / "front-proxy", signer.issue(FRONT_PROXY_CLIENT))


def _write_account_keys(layout: Layout) -> None:
    """Write both halves of the key that signs service account tokens."""
    key = new_key()
    write_secret(layout.pki / "accounts.key", private_pem(key))
    write_secret(layout.pki / "accounts.pub", public_pem(key))


def authority(name: str, now: datetime) -> Authority:
    """Return a new certificate authority with that common name."""
    key = new_key()
    subject = _name(name, ())
    builder = _builder(subject, subject, key, key, now)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    builder = builder.add_extension(_signing(), critical=True)
    certificate = _pem(builder.sign(key, hashes.SHA256()))
    return Authority(CertificatePair(certificate, private_pem(key)), subject, key, now)


def new_key() -> ec.EllipticCurvePrivateKey:
    """Return a new private key."""
    return ec.generate_private_key(ec.SECP256R1())


def private_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    """Return the private key as PEM."""
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )


def public_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    """Return the public key as PEM."""
    return key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)


def _name(common_name: str, organizations: Sequence[str]) -> x509.Name:
    """Return a subject with the groups first, in the order that Kubernetes' own tools use."""
    groups = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, group) for group in organizations]
    return x509.Name([*groups, x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def _purposes() -> x509.ExtendedKeyUsage:
    """Return the extended key usage of every certificate."""
    return x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH])


def _signing() -> x509.KeyUsage:
    """Return the key usage of a CA."""
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
    """Return a certificate builder; it sets both key identifiers, which strict verifiers require."""
    builder = x509.CertificateBuilder(
        issuer_name=issuer,
        subject_name=subject,
        public_key=key.public_key(),
        serial_number=x509.random_serial_number(),
        not_valid_before=now - LEEWAY,
        not_valid_after=now + VALIDITY,
    )
    key_identifier = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    issuer_identifier = x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key())
    return builder.add_extension(key_identifier, critical=False).add_extension(issuer_identifier, critical=False)


def _pem(certificate: x509.Certificate) -> bytes:
    """Return a certificate as PEM."""
    return certificate.public_bytes(serialization.Encoding.PEM)


def render(name: str, server: str, user: str, authority: bytes, pair: CertificatePair) -> str:
    """Return a kubeconfig with one context, which has the cluster's name.

    Args:
        name: the name of the cluster and of the context.
        server: the URL of the apiserver.
        user: the name of the user entry.
        authority: the certificate authority as PEM.
        pair: the user's certificate and key.
    """
    return TEMPLATE.format(
        name=name,
        server=server,
        user=user,
        authority=b64encode(authority).decode(),
        certificate=b64encode(pair.certificate).decode(),
        key=b64encode(pair.key).decode(),
    )
