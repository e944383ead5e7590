"""The files of a cluster's credentials."""

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
    """A cluster whose credentials are on disk."""
    credentials.write(lower, now)
    return lower


def certificate(path: Path) -> x509.Certificate:
    """Read a certificate."""
    return x509.load_pem_x509_certificate(path.read_bytes())


def user_of(kubeconfig: Path) -> tuple[str, list[str]]:
    """Return the user and the groups that a kubeconfig's certificate speaks for."""
    (entry,) = yaml.safe_load(kubeconfig.read_text())["users"]
    subject = x509.load_pem_x509_certificate(base64.b64decode(entry["user"]["client-certificate-data"])).subject
    (name,) = subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    groups = subject.get_attributes_for_oid(NameOID.ORGANIZATION_NAME)
    return str(name.value), [str(one.value) for one in groups]


def test_the_users_kubeconfig_is_the_administrators(written: Layout) -> None:
    """The kubeconfig that is handed out may do everything in its cluster."""
    assert user_of(written.kubeconfig) == ("kubernetes-admin", ["system:masters"])


@pytest.mark.parametrize(
    ("component", "user"),
    [
        ("kube-controller-manager", ("system:kube-controller-manager", [])),
        ("kube-scheduler", ("system:kube-scheduler", [])),
        ("kwok", ("kwok", ["system:masters"])),
    ],
)
def test_each_component_has_a_user_of_its_own(written: Layout, component: str, user: tuple[str, list[str]]) -> None:
    """An audit log tells the components apart, and the roles of Kubernetes fit them."""
    assert user_of(written.pki / f"{component}.kubeconfig") == user


def test_every_kubeconfig_points_at_its_own_cluster(written: Layout) -> None:
    """No kubeconfig of a cluster leads elsewhere."""
    paths = [written.kubeconfig, *written.pki.glob("*.kubeconfig")]
    servers = {yaml.safe_load(path.read_text())["clusters"][0]["cluster"]["server"] for path in paths}
    assert len(paths) == 4
    assert servers == {written.server}


@pytest.mark.parametrize("stem", ["apiserver", "kubelet", "kubelet-client", "admin", "endpoint"])
def test_one_authority_signs_all_certificates(written: Layout, stem: str) -> None:
    """What clients show and what servers show is signed by the cluster's authority."""
    authority = certificate(written.pki / "ca.crt")
    certificate(written.pki / f"{stem}.crt").verify_directly_issued_by(authority)


def test_the_front_proxy_has_an_authority_apart(written: Layout) -> None:
    """Whoever can sign users cannot sign those who speak for users."""
    proxy = certificate(written.pki / "front-proxy.crt")
    proxy.verify_directly_issued_by(certificate(written.pki / "front-proxy-ca.crt"))
    with pytest.raises(ValueError, match="Issuer"):
        proxy.verify_directly_issued_by(certificate(written.pki / "ca.crt"))


def test_the_apiserver_answers_to_all_its_names(written: Layout) -> None:
    """Pods reach it by its Service, people by loopback."""
    extension = certificate(written.pki / "apiserver.crt").extensions
    names = extension.get_extension_for_class(x509.SubjectAlternativeName).value
    assert "kubernetes.default.svc" in names.get_values_for_type(x509.DNSName)
    assert {"127.0.0.1", "10.97.0.1"} == {str(one) for one in names.get_values_for_type(x509.IPAddress)}


def test_kubelets_are_on_loopback(written: Layout) -> None:
    """The apiserver finds the address that it dials in the kubelet's certificate."""
    extension = certificate(written.pki / "kubelet.crt").extensions
    names = extension.get_extension_for_class(x509.SubjectAlternativeName).value
    assert [str(one) for one in names.get_values_for_type(x509.IPAddress)] == ["127.0.0.1"]


def test_nobody_else_can_read_what_is_secret(written: Layout) -> None:
    """Keys and kubeconfigs are readable by their owner alone."""
    secret = [written.kubeconfig, *written.pki.glob("*.key"), *written.pki.glob("*.kubeconfig")]
    assert len(secret) == 15
    assert {path.stat().st_mode & 0o777 for path in secret} == {0o600}


def test_all_folders_of_the_cluster_are_there(written: Layout) -> None:
    """Whatever starts afterwards finds the folder that it writes to."""
    assert all(path.is_dir() for path in (written.output, written.logs, written.work))


def test_two_clusters_do_not_trust_each_other(lower: Layout, upper: Layout, now: datetime) -> None:
    """A lower's administrator is nobody in the upper cluster."""
    credentials.write(lower, now)
    credentials.write(upper, now)
    with pytest.raises(ValueError, match="Issuer"):
        certificate(lower.pki / "admin.crt").verify_directly_issued_by(certificate(upper.pki / "ca.crt"))


def test_the_scheduler_shows_an_extender_who_it_is(written: Layout) -> None:
    """The certificate beside its kubeconfig is its own, and its key goes with it."""
    shown = certificate(written.pki / "kube-scheduler.crt")
    (name,) = shown.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    assert name.value == "system:kube-scheduler"
    ssl.create_default_context().load_cert_chain(written.pki / "kube-scheduler.crt", written.pki / "kube-scheduler.key")
