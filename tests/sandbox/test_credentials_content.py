"""Tests of certificates and kubeconfigs, with the libraries that other programs read them with."""

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
    """Verify a client certificate by the strict rules of the web, and raise if it is invalid."""
    store = Store([loaded(authority.pair)])
    PolicyBuilder().store(store).time(when).build_client_verifier().verify(loaded(pair), [])


def verify_server(pair: CertificatePair, authority: Authority, when: datetime, host: str) -> None:
    """Verify a server certificate by the strict rules of the web, and raise if it is invalid."""
    store = Store([loaded(authority.pair)])
    subject = x509.DNSName(host)
    PolicyBuilder().store(store).time(when).build_server_verifier(subject).verify(loaded(pair), [])


def test_a_client_certificate_names_the_user_and_its_groups(signer: Authority) -> None:
    """Kubernetes reads the user from the common name and the groups from the organizations."""
    certificate = loaded(signer.issue("somebody", ("one", "two")))
    assert attributes(certificate, NameOID.COMMON_NAME) == ["somebody"]
    assert attributes(certificate, NameOID.ORGANIZATION_NAME) == ["one", "two"]


def test_a_certificate_is_for_clients_and_servers(signer: Authority) -> None:
    """Each certificate has both extended key usages."""
    usage = loaded(signer.issue("a")).extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    assert set(usage) == {ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH}


def test_a_server_certificate_has_host_names_and_addresses(signer: Authority) -> None:
    """Clients check the names and addresses in the certificate."""
    pair = signer.issue("server", hosts=("localhost",), addresses=("127.0.0.1", "10.96.0.1"))
    names = loaded(pair).extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["localhost"]
    assert [str(one) for one in names.get_values_for_type(x509.IPAddress)] == ["127.0.0.1", "10.96.0.1"]


def test_a_strict_verifier_accepts_a_client(signer: Authority, now: datetime) -> None:
    """The certificate has the key identifiers and usages that newer TLS libraries require."""
    verify_client(signer.issue("a", hosts=("a",)), signer, now)


def test_a_strict_verifier_accepts_a_server(signer: Authority, now: datetime) -> None:
    """A server is accepted under the host name in its certificate."""
    verify_server(signer.issue("s", hosts=("localhost",)), signer, now, "localhost")


def test_a_certificate_of_another_authority_is_refused(signer: Authority, other: Authority, now: datetime) -> None:
    """An authority of the same name with another key is not enough."""
    with pytest.raises(VerificationError):
        verify_client(other.issue("a", hosts=("a",)), signer, now)


def test_a_server_is_refused_under_another_name(signer: Authority, now: datetime) -> None:
    """A certificate is valid only for its own names."""
    with pytest.raises(VerificationError):
        verify_server(signer.issue("s", hosts=("localhost",)), signer, now, "example.org")


@pytest.mark.parametrize("days", [-1, 366])
def test_a_certificate_is_invalid_outside_of_its_period(signer: Authority, now: datetime, days: int) -> None:
    """It is refused a day before it was issued, and 366 days after."""
    with pytest.raises(VerificationError):
        verify_client(signer.issue("a", hosts=("a",)), signer, now + timedelta(days=days))


def test_a_certificate_is_valid_for_clocks_that_are_slightly_behind(signer: Authority, now: datetime) -> None:
    """It is valid half an hour before it was issued."""
    verify_client(signer.issue("a", hosts=("a",)), signer, now - timedelta(minutes=30))


def test_an_issued_certificate_is_no_authority(signer: Authority) -> None:
    """Only the authority itself can sign certificates."""
    authority = loaded(signer.pair).extensions.get_extension_for_class(x509.BasicConstraints).value
    assert authority.ca
    with pytest.raises(x509.ExtensionNotFound):
        loaded(signer.issue("a")).extensions.get_extension_for_class(x509.BasicConstraints)


def test_a_key_belongs_to_its_certificate(signer: Authority, tmp_path: Path) -> None:
    """A TLS library loads them as a pair, and refuses the key of another certificate."""
    pair = signer.issue("a")
    (tmp_path / "crt").write_bytes(pair.certificate)
    (tmp_path / "key").write_bytes(pair.key)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_cert_chain(tmp_path / "crt", tmp_path / "key")
    (tmp_path / "key").write_bytes(signer.issue("a").key)
    with pytest.raises(ssl.SSLError):
        context.load_cert_chain(tmp_path / "crt", tmp_path / "key")


def test_the_public_key_matches_the_private_key() -> None:
    """Tokens are signed with the private key and verified with the public key."""
    key = credentials.new_key()
    public = serialization.load_pem_public_key(credentials.public_pem(key))
    private = serialization.load_pem_private_key(credentials.private_pem(key), None)
    assert public == private.public_key()


@pytest.fixture
def config(signer: Authority) -> tuple[dict[str, object], CertificatePair]:
    """A parsed kubeconfig, and the certificate pair in it."""
    pair = signer.issue("boss")
    text = credentials.render("upper", "https://127.0.0.1:1", "upper-admin", signer.pair.certificate, pair)
    return yaml.safe_load(text), pair


def test_a_kubeconfig_has_one_current_context(config: tuple[dict, CertificatePair]) -> None:
    """The context joins the only cluster and the only user."""
    content, _ = config
    assert content["kind"] == "Config"
    assert content["current-context"] == "upper"
    assert content["contexts"] == [{"name": "upper", "context": {"cluster": "upper", "user": "upper-admin"}}]


def test_a_kubeconfig_has_its_certificates_inline(config: tuple[dict, CertificatePair], signer: Authority) -> None:
    """No other file has to be copied with it."""
    content, pair = config
    (cluster,) = content["clusters"]
    (user,) = content["users"]
    assert cluster["cluster"]["server"] == "https://127.0.0.1:1"
    assert base64.b64decode(cluster["cluster"]["certificate-authority-data"]) == signer.pair.certificate
    assert base64.b64decode(user["user"]["client-certificate-data"]) == pair.certificate
    assert base64.b64decode(user["user"]["client-key-data"]) == pair.key
