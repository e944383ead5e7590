"""Tests of the files of a cluster's credentials."""

import base64
import ssl
from datetime import datetime
from pathlib import Path

import pytest
import yaml
from cryptography import x509
from cryptography.x509.oid import NameOID

from tensile.sandbox import credentials
from tensile.sandbox.state import Layout


@pytest.fixture
def written(lower: Layout, now: datetime) -> Layout:
    """The layout of a cluster whose credentials are written."""
    credentials.write(lower, now)
    return lower


def certificate(path: Path) -> x509.Certificate:
    """Read a certificate."""
    return x509.load_pem_x509_certificate(path.read_bytes())


def user_of(kubeconfig: Path) -> tuple[str, list[str]]:
    """Return the user and the groups in the client certificate of a kubeconfig."""
    (entry,) = yaml.safe_load(kubeconfig.read_text())["users"]
    subject = x509.load_pem_x509_certificate(base64.b64decode(entry["user"]["client-certificate-data"])).subject
    (name,) = subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    groups = subject.get_attributes_for_oid(NameOID.ORGANIZATION_NAME)
    return str(name.value), [str(one.value) for one in groups]


def test_the_users_kubeconfig_is_the_administrators(written: Layout) -> None:
    """The kubeconfig for users permits every operation in its cluster."""
    assert user_of(written.kubeconfig) == ("kubernetes-admin", ["system:masters"])


@pytest.mark.parametrize(
    ("component", "user"),
    [
        ("kube-controller-manager", ("system:kube-controller-manager", [])),
        ("kube-scheduler", ("system:kube-scheduler", [])),
        ("kwok", ("kwok", ["system:masters"])),
    ],
)
def test_each_component_has_a_separate_user(written: Layout, component: str, user: tuple[str, list[str]]) -> None:
    """The audit log distinguishes the components, and the default roles of Kubernetes apply to them."""
    assert user_of(written.pki / f"{component}.kubeconfig") == user


def test_every_kubeconfig_points_at_its_own_cluster(written: Layout) -> None:
    """All kubeconfigs of a cluster have that cluster's server."""
    paths = [written.kubeconfig, *written.pki.glob("*.kubeconfig")]
    servers = {yaml.safe_load(path.read_text())["clusters"][0]["cluster"]["server"] for path in paths}
    assert len(paths) == 4
    assert servers == {written.server}


@pytest.mark.parametrize("stem", ["apiserver", "kubelet", "kubelet-client", "admin", "endpoint"])
def test_one_authority_signs_all_certificates(written: Layout, stem: str) -> None:
    """Client and server certificates are signed by the cluster's authority."""
    authority = certificate(written.pki / "ca.crt")
    certificate(written.pki / f"{stem}.crt").verify_directly_issued_by(authority)


def test_the_front_proxy_has_a_separate_authority(written: Layout) -> None:
    """An authority of users cannot sign a proxy that impersonates users."""
    proxy = certificate(written.pki / "front-proxy.crt")
    proxy.verify_directly_issued_by(certificate(written.pki / "front-proxy-ca.crt"))
    with pytest.raises(ValueError, match="Issuer"):
        proxy.verify_directly_issued_by(certificate(written.pki / "ca.crt"))


def test_the_apiservers_certificate_has_all_its_names(written: Layout) -> None:
    """Pods use the name and the address of its Service, users the loopback address."""
    extension = certificate(written.pki / "apiserver.crt").extensions
    names = extension.get_extension_for_class(x509.SubjectAlternativeName).value
    assert "kubernetes.default.svc" in names.get_values_for_type(x509.DNSName)
    assert {"127.0.0.1", "10.97.0.1"} == {str(one) for one in names.get_values_for_type(x509.IPAddress)}


def test_the_kubelets_certificate_is_for_loopback(written: Layout) -> None:
    """The apiserver verifies the address that it dials by the kubelet's certificate."""
    extension = certificate(written.pki / "kubelet.crt").extensions
    names = extension.get_extension_for_class(x509.SubjectAlternativeName).value
    assert [str(one) for one in names.get_values_for_type(x509.IPAddress)] == ["127.0.0.1"]


def test_only_the_owner_can_read_keys_and_kubeconfigs(written: Layout) -> None:
    """Their file mode is 0600."""
    secret = [written.kubeconfig, *written.pki.glob("*.key"), *written.pki.glob("*.kubeconfig")]
    assert len(secret) == 15
    assert {path.stat().st_mode & 0o777 for path in secret} == {0o600}


def test_all_folders_of_the_cluster_exist(written: Layout) -> None:
    """Programs that start afterwards find the folders that they write to."""
    assert all(path.is_dir() for path in (written.output, written.logs, written.work))


def test_two_clusters_do_not_trust_each_other(lower: Layout, upper: Layout, now: datetime) -> None:
    """The upper cluster's authority did not sign the certificate of a lower's administrator."""
    credentials.write(lower, now)
    credentials.write(upper, now)
    with pytest.raises(ValueError, match="Issuer"):
        certificate(lower.pki / "admin.crt").verify_directly_issued_by(certificate(upper.pki / "ca.crt"))


def test_the_scheduler_has_a_client_certificate_for_an_extender(written: Layout) -> None:
    """The certificate beside its kubeconfig is the scheduler's, and matches the key."""
    shown = certificate(written.pki / "kube-scheduler.crt")
    (name,) = shown.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    assert name.value == "system:kube-scheduler"
    ssl.create_default_context().load_cert_chain(written.pki / "kube-scheduler.crt", written.pki / "kube-scheduler.key")
