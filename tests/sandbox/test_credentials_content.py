"""Certificates and kubeconfigs, judged by the libraries that others use to read them."""

import base64
import ssl
from datetime import datetime, timedelta
from pathlib import Path

import pytest
import yaml
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from cryptography.x509.verification import PolicyBuilder, Store, VerificationError

from tensile.sandbox import credentials
from tensile.sandbox.credentials import Authority, CertificatePair


@pytest.fixture
def signer(now: datetime) -> Authority:
    """An authority."""
    return credentials.authority("test-ca", now)


@pytest.fixture
def other(now: datetime) -> Authority:
    """Another authority of the same name."""
    return credentials.authority("test-ca", now)


def loaded(pair: CertificatePair) -> x509.Certificate:
    """Return the certificate of a pair."""
    return x509.load_pem_x509_certificate(pair.certificate)


def attributes(certificate: x509.Certificate, kind: x509.ObjectIdentifier) -> list[str]:
    """Return the values of one kind of name attribute of the subject."""
    return [str(one.value) for one in certificate.subject.get_attributes_for_oid(kind)]


def verify_client(pair: CertificatePair, authority: Authority, when: datetime) -> None:
    """Check a client certificate as strictly as the web does; raises when it is not good."""
    store = Store([loaded(authority.pair)])
    PolicyBuilder().store(store).time(when).build_client_verifier().verify(loaded(pair), [])


def verify_server(pair: CertificatePair, authority: Authority, when: datetime, host: str) -> None:
    """Check a server's certificate as strictly as the web does."""
    store = Store([loaded(authority.pair)])
    subject = x509.DNSName(host)
    PolicyBuilder().store(store).time(when).build_server_verifier(subject).verify(loaded(pair), [])


def test_a_client_certificate_names_the_user_and_its_groups(signer: Authority) -> None:
    """Kubernetes reads the user from the common name and the groups from the organizations."""
    certificate = loaded(signer.issue("somebody", ("one", "two")))
    assert attributes(certificate, NameOID.COMMON_NAME) == ["somebody"]
    assert attributes(certificate, NameOID.ORGANIZATION_NAME) == ["one", "two"]


def test_a_certificate_may_be_shown_by_clients_and_by_servers(signer: Authority) -> None:
    """One kind of certificate serves for both sides."""
    usage = loaded(signer.issue("a")).extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    assert set(usage) == {ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH}


def test_a_server_certificate_names_hosts_and_addresses(signer: Authority) -> None:
    """The names that clients check are in the certificate."""
    pair = signer.issue("server", hosts=("localhost",), addresses=("127.0.0.1", "10.96.0.1"))
    names = loaded(pair).extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["localhost"]
    assert [str(one) for one in names.get_values_for_type(x509.IPAddress)] == ["127.0.0.1", "10.96.0.1"]


def test_a_strict_verifier_accepts_a_client(signer: Authority, now: datetime) -> None:
    """What newer TLS libraries insist on (key identifiers, usages) is there."""
    verify_client(signer.issue("a", hosts=("a",)), signer, now)


def test_a_strict_verifier_accepts_a_server(signer: Authority, now: datetime) -> None:
    """A server is accepted under its name."""
    verify_server(signer.issue("s", hosts=("localhost",)), signer, now, "localhost")


def test_a_certificate_of_another_authority_is_refused(signer: Authority, other: Authority, now: datetime) -> None:
    """The name of an authority is not enough."""
    with pytest.raises(VerificationError):
        verify_client(other.issue("a", hosts=("a",)), signer, now)


def test_a_server_is_refused_under_another_name(signer: Authority, now: datetime) -> None:
    """A certificate is good for its own names alone."""
    with pytest.raises(VerificationError):
        verify_server(signer.issue("s", hosts=("localhost",)), signer, now, "example.org")


@pytest.mark.parametrize("days", [-1, 366])
def test_a_certificate_has_an_end(signer: Authority, now: datetime, days: int) -> None:
    """A certificate counts neither a day before it was made nor a year after."""
    with pytest.raises(VerificationError):
        verify_client(signer.issue("a", hosts=("a",)), signer, now + timedelta(days=days))


def test_a_clock_may_be_a_little_behind(signer: Authority, now: datetime) -> None:
    """Half an hour before it was made a certificate already counts."""
    verify_client(signer.issue("a", hosts=("a",)), signer, now - timedelta(minutes=30))


def test_what_an_authority_signs_signs_nothing(signer: Authority) -> None:
    """Only the authority itself is one."""
    authority = loaded(signer.pair).extensions.get_extension_for_class(x509.BasicConstraints).value
    assert authority.ca
    with pytest.raises(x509.ExtensionNotFound):
        loaded(signer.issue("a")).extensions.get_extension_for_class(x509.BasicConstraints)


def test_key_and_certificate_belong_together(signer: Authority, tmp_path: Path) -> None:
    """A TLS library takes the pair as one."""
    pair = signer.issue("a")
    (tmp_path / "crt").write_bytes(pair.certificate)
    (tmp_path / "key").write_bytes(pair.key)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_cert_chain(tmp_path / "crt", tmp_path / "key")
    (tmp_path / "key").write_bytes(signer.issue("a").key)
    with pytest.raises(ssl.SSLError):
        context.load_cert_chain(tmp_path / "crt", tmp_path / "key")


def test_the_public_key_is_the_private_ones() -> None:
    """Tokens signed with one half are checked with the other."""
    key = credentials.new_key()
    public = serialization.load_pem_public_key(credentials.public_pem(key))
    private = serialization.load_pem_private_key(credentials.private_pem(key), None)
    assert public == private.public_key()


@pytest.fixture
def config(signer: Authority) -> tuple[dict[str, object], CertificatePair]:
    """A kubeconfig as a YAML reader sees it, and the pair that is in it."""
    pair = signer.issue("boss")
    text = credentials.render("upper", "https://127.0.0.1:1", "upper-admin", signer.pair.certificate, pair)
    return yaml.safe_load(text), pair


def test_a_kubeconfig_has_one_context_and_it_is_the_current_one(config: tuple[dict, CertificatePair]) -> None:
    """The context ties the one cluster to the one user."""
    content, _ = config
    assert content["kind"] == "Config"
    assert content["current-context"] == "upper"
    assert content["contexts"] == [{"name": "upper", "context": {"cluster": "upper", "user": "upper-admin"}}]


def test_a_kubeconfig_holds_its_certificates_inline(config: tuple[dict, CertificatePair], signer: Authority) -> None:
    """Nothing else has to be copied with the file."""
    content, pair = config
    (cluster,) = content["clusters"]
    (user,) = content["users"]
    assert cluster["cluster"]["server"] == "https://127.0.0.1:1"
    assert base64.b64decode(cluster["cluster"]["certificate-authority-data"]) == signer.pair.certificate
    assert base64.b64decode(user["user"]["client-certificate-data"]) == pair.certificate
    assert base64.b64decode(user["user"]["client-key-data"]) == pair.key
