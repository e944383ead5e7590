"""Tests of certificate checks: each problem is reported with the certificate, the problem and a remedy."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from kubelet_lab import RecordingLogger
from kubelet_pki import CLIENT, DAY, SERVER, Identity, Pki, write

from tensile.errors import TensileError
from tensile.kube.tls import KeyPair, described, pair_fault, warnings
from tensile.kubelet.api.certificates import ClientCA, ServingCertificate, ServingFiles, tls_context

ADDRESS = "127.0.0.1"
PEM, PKCS8 = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
DAMAGED = b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"
DAMAGED_KEY = b"-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n"


@pytest.fixture(scope="module")
def pki(tmp_path_factory: pytest.TempPathFactory) -> Pki:
    """Create the CAs and identities once."""
    return Pki(tmp_path_factory.mktemp("pki"))


def encrypted(pki: Pki) -> bytes:
    """Return the serving key encrypted with a password."""
    key = serialization.load_pem_private_key(pki.serving.key, None)
    return key.private_bytes(PEM, PKCS8, serialization.BestAvailableEncryption(b"a password"))


BAD: dict[str, tuple[Callable[[Pki], tuple[bytes, bytes]], str, str]] = {
    "empty": (lambda pki: (b"", pki.serving.key), "tls.crt", "is empty"),
    "blank": (lambda pki: (b"\n \n", pki.serving.key), "tls.crt", "is empty"),
    "no PEM": (lambda pki: (b"\x30\x82\x01\x0a", pki.serving.key), "tls.crt", "no PEM certificate"),
    "the key in its place": (lambda pki: (pki.serving.key,) * 2, "tls.crt", "a private key but no certificate"),
    "damaged": (lambda pki: (DAMAGED, pki.serving.key), "tls.crt", "damaged"),
    "no key": (lambda pki: (pki.serving.certificate, b""), "tls.key", "is empty"),
    "key no PEM": (lambda pki: (pki.serving.certificate, b"rubbish"), "tls.key", "no PEM private key"),
    "the certificate as key": (lambda pki: (pki.serving.certificate,) * 2, "tls.key", "a certificate but no key"),
    "damaged key": (lambda pki: (pki.serving.certificate, DAMAGED_KEY), "tls.key", "damaged"),
    "cut key": (lambda pki: (pki.serving.certificate, pki.serving.key[:80]), "tls.key", "damaged"),
    "encrypted key": (lambda pki: (pki.serving.certificate, encrypted(pki)), "tls.key", "remove the password"),
    "other key": (
        lambda pki: (pki.serving.certificate, pki.servers.issue("other", usage=SERVER).key),
        "tls.crt",
        "does not match the key in kubelet.tlsKeyFile",
    ),
    "chain upside down": (
        lambda pki: (pki.servers.pem.encode() + pki.serving.certificate, pki.serving.key),
        "tls.crt",
        "is not the first",
    ),
}
"""Bad pairs: certificate and key, the file that the error names, and a part of the error."""


@pytest.mark.parametrize(("pair", "which", "what"), BAD.values(), ids=BAD)
def test_the_error_for_an_unusable_certificate_and_key_names_file_problem_and_remedy(
    tmp_path: Path, pki: Pki, pair: Callable[[Pki], tuple[bytes, bytes]], which: str, what: str
) -> None:
    """It starts with the topology field and contains no key."""
    files = write(tmp_path, Identity(*pair(pki)))
    with pytest.raises(TensileError) as error:
        ServingCertificate(RecordingLogger(), ADDRESS, files).context("virtual-a", "")
    message = str(error.value)
    field = "kubelet.tlsCertFile" if which == "tls.crt" else "kubelet.tlsKeyFile"
    assert message.startswith(f"{field}: {tmp_path / which}: ")
    assert what in message
    assert message.count(": ") >= 3
    assert "PRIVATE KEY-----\n" not in message


@pytest.mark.parametrize(
    ("spoil", "what"),
    [("absent", "No such file"), ("folder", "not a file")],
)
@pytest.mark.parametrize("which", ["tls.crt", "tls.key"])
def test_the_error_for_an_unreadable_file_names_only_that_file(
    tmp_path: Path, pki: Pki, which: str, spoil: str, what: str
) -> None:
    """The file is absent or a directory, and the other file is not mentioned."""
    files = write(tmp_path, pki.serving)
    (tmp_path / which).unlink()
    if spoil == "folder":
        (tmp_path / which).mkdir()
    with pytest.raises(TensileError, match=what) as error:
        ServingCertificate(RecordingLogger(), ADDRESS, files).context("virtual-a", "")
    other = "tls.key" if which == "tls.crt" else "tls.crt"
    assert which in str(error.value)
    assert other not in str(error.value)


def test_text_before_a_key_and_a_certificate_chain_are_accepted(tmp_path: Path, pki: Pki) -> None:
    """The key file may begin with comments or a certificate."""
    mixed = b"Bag Attributes\n  friendlyName: node\n" + pki.serving.certificate + pki.serving.key
    chain = pki.serving.certificate + pki.servers.pem.encode()
    log = RecordingLogger()
    ServingCertificate(log, ADDRESS, write(tmp_path, Identity(chain, mixed))).context("virtual-a", "")
    assert log.entries == []
    assert pair_fault("a", "b", chain, mixed) is None


DOUBTFUL = [
    ({"end": -DAY}, ADDRESS, ["it expired on"]),
    ({"begin": DAY, "end": 2 * DAY}, ADDRESS, ["it is not valid before"]),
    ({"usage": CLIENT}, ADDRESS, ["it is not a server certificate"]),
    ({}, "192.0.2.7", ["it is valid for 127.0.0.1, localhost, but the upper apiserver calls the nodes at 192.0.2.7"]),
    ({"plain": True}, ADDRESS, ["it has no subjectAltName (the common name is ignored)"]),
    ({"plain": True}, "node.example", ["DNS:node.example"]),
    (
        {"end": -DAY, "usage": CLIENT},
        "192.0.2.7",
        ["it expired on", "it is valid for 127", "it is not a server certificate"],
    ),
    ({}, "", []),
    ({}, "localhost", []),
]


@pytest.mark.parametrize(("made", "address", "expected"), DOUBTFUL)
def test_a_certificate_that_callers_may_refuse_is_served_and_warned_about_once(
    tmp_path: Path, pki: Pki, made: dict[str, object], address: str, expected: list[str]
) -> None:
    """Each warning has the file, and is not repeated for other nodes."""
    files = write(tmp_path, pki.servers.issue("node", **{"usage": SERVER, **made}))
    log = RecordingLogger()
    serving = ServingCertificate(log, address, files)
    for node in ("virtual-a", "virtual-b", "virtual-a"):
        serving.context(node, "")
    reasons = [str(fields["why"]) for _, fields in log.entries]
    assert len(reasons) == len(expected)
    for doubt, part in zip(reasons, expected, strict=True):
        assert doubt.startswith(f"kubelet.tlsCertFile: {files.certificate}: ")
        assert part in doubt


def test_a_certificate_that_expires_while_it_is_served_is_warned_about(tmp_path: Path, pki: Pki) -> None:
    """The files do not change; after a renewal, the next expiry is warned about again."""
    now = [datetime.now(UTC)]
    log = RecordingLogger()
    serving = ServingCertificate(log, ADDRESS, write(tmp_path, pki.serving), now=lambda: now[0])
    serving.context("virtual-a", "")
    assert log.entries == []
    now[0] += 2 * DAY
    serving.context("virtual-a", "")
    assert "it expired on" in str(log.entries)
    write(tmp_path, pki.servers.issue("renewed", usage=SERVER, end=4 * DAY))
    serving.context("virtual-a", "")
    assert len(log.entries) == 1
    now[0] += 3 * DAY
    serving.context("virtual-a", "")
    assert len(log.entries) == 2


def test_described_returns_subject_issuer_names_and_expiry(pki: Pki) -> None:
    """The description has one line."""
    text = described(x509.load_pem_x509_certificate(pki.serving.certificate))
    assert text.startswith("CN=serving, issued by CN=servers, for 127.0.0.1, localhost, until 20")
    bare = x509.load_pem_x509_certificate(pki.servers.issue("", plain=True).certificate)
    assert described(bare).startswith("no subject, issued by CN=servers, for no name, until")


def test_a_valid_certificate_causes_no_warning(pki: Pki) -> None:
    """This holds from its first to its last second; a second later the advice is to renew it."""
    good = x509.load_pem_x509_certificate(pki.serving.certificate)
    for moment in (good.not_valid_before_utc, good.not_valid_after_utc):
        assert list(warnings("it", good, ADDRESS, moment)) == []
    late = good.not_valid_after_utc + timedelta(seconds=1)
    assert [each.advice for each in warnings("it", good, ADDRESS, late)] == ["renew it"]


async def test_a_private_key_in_place_of_a_client_ca_is_reported_without_showing_it(tmp_path: Path, pki: Pki) -> None:
    """The warning differs from that for other invalid content."""
    file, log = tmp_path / "ca.crt", RecordingLogger()
    file.write_bytes(pki.serving.key)
    await ClientCA(log, file).pem()
    assert "a private key but no certificate" in str(log.entries)
    assert pki.serving.key.decode().splitlines()[1] not in str(log.entries)


async def test_a_client_ca_with_problems_is_used_and_warned_about(tmp_path: Path, pki: Pki) -> None:
    """A valid CA causes no warning."""
    file, log = tmp_path / "ca.crt", RecordingLogger()
    file.write_bytes(pki.apiserver.certificate + pki.expired.certificate)
    assert await ClientCA(log, file).pem() != ""
    reasons = [str(fields["why"]) for _, fields in log.entries]
    assert [("expired" in each, "not a CA certificate" in each) for each in reasons] == [
        (False, True),
        (True, False),
        (False, True),
    ]
    assert all("kube-apiserver" in each for each in reasons)
    log.entries.clear()
    file.write_text(pki.clients.pem)
    await ClientCA(log, file).pem()
    assert log.entries == []


def test_a_pair_that_only_openssl_rejects_is_an_error_with_its_message(tmp_path: Path) -> None:
    """The checks find no problem in a key that is too small."""
    key = rsa.generate_private_key(65537, 1024)
    name = x509.Name([x509.NameAttribute(x509.oid.NameOID.COMMON_NAME, "weak")])
    now = datetime.now(UTC)
    weak = x509.CertificateBuilder(name, name, key.public_key(), 1, now - DAY, now + DAY).sign(key, hashes.SHA256())
    secret = key.private_bytes(PEM, PKCS8, serialization.NoEncryption())
    files = write(tmp_path, Identity(weak.public_bytes(PEM), secret))
    with pytest.raises(TensileError, match="TLS rejects it"):
        ServingCertificate(RecordingLogger(), ADDRESS, ServingFiles(*files)).context("virtual-a", "")
    with pytest.raises(OSError, match="TOO_SMALL"):
        tls_context(KeyPair(weak.public_bytes(PEM), secret), "")
