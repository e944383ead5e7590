"""Tests of serving certificates and the client CA: from files, self-signed, renewed and broken."""

import asyncio
import os
import ssl
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

import pytest
from cryptography import x509
from kubelet_lab import RecordingLogger
from kubelet_pki import SERVER, Pki, write

from tensile.errors import TensileError, Unreachable
from tensile.kube.tls import KeyPair, expiration, self_signed
from tensile.kubelet.api.certificates import ClientCA, ServingCertificate, tls_context

NOW = datetime(2030, 1, 1, tzinfo=UTC)


class Clock:
    """A clock that changes only when the test sets it."""

    def __init__(self) -> None:
        self.date = NOW

    def now(self) -> datetime:
        """Return the date and time."""
        return self.date

    def seconds(self) -> float:
        """Return the time in seconds."""
        return self.date.timestamp()


def presented_certificate(context: ssl.SSLContext) -> x509.Certificate:
    """Return the certificate that a server with this context presents, by a handshake in memory."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    client_context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client_context.check_hostname = False
    client_context.verify_mode = ssl.CERT_NONE
    client = client_context.wrap_bio(to_client, to_server)
    server = context.wrap_bio(to_server, to_client, server_side=True)
    for side in (client, server, client):
        try:
            side.do_handshake()
        except ssl.SSLWantReadError:
            continue
    return x509.load_der_x509_certificate(client.getpeercert(binary_form=True) or b"")


def test_a_self_signed_certificate_matches_the_node() -> None:
    """It names the node and its address, is for servers only, and is valid for a year from just before now."""
    made = presented_certificate(
        ServingCertificate(RecordingLogger(), "10.0.0.7", now=lambda: NOW).context("virtual-a", "")
    )
    names = made.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["virtual-a"]
    assert names.get_values_for_type(x509.IPAddress) == [ip_address("10.0.0.7")]
    assert made.not_valid_before_utc < NOW < made.not_valid_after_utc == NOW + timedelta(days=365)
    usage = made.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    assert list(usage) == [x509.oid.ExtendedKeyUsageOID.SERVER_AUTH]
    assert not made.extensions.get_extension_for_class(x509.BasicConstraints).value.ca


def test_expirations_lists_the_certificate_of_each_served_node() -> None:
    """A certificate that was issued since the last connection is included, a forgotten node is not."""
    clock = Clock()
    certificate = ServingCertificate(RecordingLogger(), "10.0.0.7", now=clock.now)
    certificate.context("a", "")
    certificate.context("b", "")
    certificate.take("b", self_signed("o", "b", ["b"], NOW, timedelta(days=3)))
    assert certificate.expirations() == {"a": NOW + timedelta(days=365), "b": NOW + timedelta(days=3)}
    certificate.forget("a")
    assert certificate.expirations() == {"b": NOW + timedelta(days=3)}


def test_a_certificate_may_have_a_dns_address_and_a_long_node_name() -> None:
    """The address may be a DNS name, and the node's name as long as Kubernetes allows."""
    node = ".".join(["n" * 60] * 4)
    made = presented_certificate(
        ServingCertificate(RecordingLogger(), "kubelet.example", now=lambda: NOW).context(node, "")
    )
    names = made.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == [node, "kubelet.example"]


def test_a_self_signed_certificate_is_reused_and_logged_with_a_warning() -> None:
    """It is served until thirty days before its end, and a warning names the value to set."""
    clock, log = Clock(), RecordingLogger()
    serving = ServingCertificate(log, "10.0.0.7", now=clock.now)
    first = serving.context("virtual-a", "")
    assert serving.context("virtual-a", "") is first
    assert [event for event, _ in log.entries] == ["serving with a self-signed certificate"]
    assert "kubelet.tlsCertFile" in str(log.entries)
    clock.date = NOW + timedelta(days=334)
    assert serving.context("virtual-a", "") is first
    clock.date = NOW + timedelta(days=335)
    assert presented_certificate(serving.context("virtual-a", "")).not_valid_after_utc == clock.date + timedelta(
        days=365
    )


def test_each_node_has_its_own_certificate() -> None:
    """A node that was forgotten gets a new certificate."""
    serving = ServingCertificate(RecordingLogger(), "10.0.0.7")
    first, other = (
        presented_certificate(serving.context("virtual-a", "")),
        presented_certificate(serving.context("virtual-b", "")),
    )
    assert first.subject != other.subject
    serving.forget("virtual-a")
    assert presented_certificate(serving.context("virtual-a", "")).serial_number != first.serial_number


def test_certificate_files_are_served_and_reloaded(tmp_path: Path, pki: Pki) -> None:
    """A renewed certificate is presented from the next connection on, without a warning."""
    log = RecordingLogger()
    first, second = (pki.servers.issue(name, usage=SERVER) for name in ("first", "second"))
    serving = ServingCertificate(log, "127.0.0.1", write(tmp_path, first))
    assert presented_certificate(serving.context("virtual-a", "")).subject.rfc4514_string() == "CN=first"
    write(tmp_path, second)
    assert presented_certificate(serving.context("virtual-a", "")).subject.rfc4514_string() == "CN=second"
    assert log.entries == []


def broken(tmp_path: Path, pki: Pki, what: str) -> None:
    """Break the two files in one way."""
    good, other = pki.servers.issue("good"), pki.servers.issue("other")
    write(tmp_path, good)
    if what == "half renewed":
        (tmp_path / "tls.crt").write_bytes(other.certificate)
    elif what == "truncated":
        (tmp_path / "tls.key").write_bytes(good.key[:60])
    elif what == "empty":
        (tmp_path / "tls.crt").write_bytes(b"")
    else:
        (tmp_path / "tls.key").unlink()


@pytest.mark.parametrize("what", ["half renewed", "truncated", "empty", "absent"])
def test_broken_certificate_files_keep_the_last_good_pair(tmp_path: Path, pki: Pki, what: str) -> None:
    """The problem is logged once, and a good pair is used again immediately."""
    log = RecordingLogger()
    files = write(tmp_path, pki.servers.issue("first", usage=SERVER))
    serving = ServingCertificate(log, "127.0.0.1", files)
    context = serving.context("virtual-a", "")
    broken(tmp_path, pki, what)
    assert serving.context("virtual-a", "") is context
    assert serving.context("virtual-a", "") is context
    assert len(log.entries) == 1
    write(tmp_path, pki.servers.issue("third"))
    assert presented_certificate(serving.context("virtual-a", "")).subject.rfc4514_string() == "CN=third"


def test_tls_is_at_least_1_2_without_session_tickets(pki: Pki) -> None:
    """Client certificates are requested only if there is a CA that can verify them."""
    context = tls_context(KeyPair(*pki.serving), pki.clients.pem)
    assert context.minimum_version == ssl.TLSVersion.TLSv1_2
    assert (context.num_tickets, context.verify_mode) == (0, ssl.CERT_OPTIONAL)
    assert context.options & ssl.OP_NO_TICKET
    assert tls_context(KeyPair(*pki.serving), "").verify_mode == ssl.CERT_NONE


async def test_a_client_ca_file_is_reloaded_when_it_changes(tmp_path: Path, pki: Pki) -> None:
    """A changed file applies immediately, and a bundle contributes all of its certificates."""
    file, log = tmp_path / "ca.crt", RecordingLogger()
    authority = ClientCA(log, file)
    file.write_text(pki.clients.pem)
    assert await authority.pem() == pki.clients.pem
    file.write_text(f"# Größe, a comment that is not ASCII\n{pki.clients.pem}\n{pki.others.pem}", encoding="utf-8")
    assert await authority.pem() == pki.clients.pem + pki.others.pem
    assert log.entries == []


@pytest.mark.parametrize(
    ("content", "what"),
    [
        ("pipe", "not a file"),
        (b"", "it is empty"),
        (b"no certificate", "no PEM certificate"),
        (b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n", "damaged"),
        (None, "No such file"),
    ],
)
async def test_a_bad_client_ca_file_keeps_the_last_good_ca(
    tmp_path: Path, pki: Pki, content: bytes | str | None, what: str
) -> None:
    """Without any good CA none is used, and the problem is logged once with the file and its effect."""
    file, log = tmp_path / "ca.crt", RecordingLogger()
    if isinstance(content, bytes):
        file.write_bytes(content)
    elif content:
        os.mkfifo(file)
    authority = ClientCA(log, file)
    assert [await authority.pem(), await authority.pem()] == ["", ""]
    [(_, log_fields)] = log.entries
    assert what in str(log_fields["why"])
    file.unlink(missing_ok=True)
    file.write_text(pki.clients.pem)
    assert await authority.pem() == pki.clients.pem
    file.unlink()
    assert await authority.pem() == pki.clients.pem
    assert all(str(fields["why"]).startswith(f"kubelet.clientCAFile: {file}: ") for _, fields in log.entries)
    assert [fields["effect"] for _, fields in log.entries] == [
        "every request is rejected",
        "the previous one stays in use",
    ]


class Source:
    """The CA that the upper cluster publishes, with a count of requests and an error that can be set."""

    def __init__(self, pem: str) -> None:
        self.pem = pem
        self.asked = 0
        self.error: Exception | None = None

    async def __call__(self) -> str:
        """Return the CA."""
        self.asked += 1
        await asyncio.sleep(0)
        if self.error is not None:
            raise self.error
        return self.pem


async def test_the_client_ca_of_the_upper_is_refreshed_each_minute(pki: Pki) -> None:
    """The source is requested once a minute, however many callers there are."""
    clock, source = Clock(), Source(pki.clients.pem)
    authority = ClientCA(RecordingLogger(), source=source, clock=clock.seconds)
    await asyncio.gather(*(authority.pem() for _ in range(5)))
    assert source.asked == 1
    source.pem = pki.others.pem
    clock.date += timedelta(seconds=59)
    assert await authority.pem() == pki.clients.pem
    clock.date += timedelta(seconds=1)
    assert await authority.pem() == pki.others.pem


@pytest.mark.parametrize("error", [Unreachable("gone"), TimeoutError(), TensileError("no such key")])
async def test_an_unreachable_upper_is_retried_after_five_seconds(pki: Pki, error: Exception) -> None:
    """While the source fails there is no client CA, and callers in that time cause no further request."""
    clock, source, log = Clock(), Source(pki.clients.pem), RecordingLogger()
    source.error = error
    authority = ClientCA(log, source=source, clock=clock.seconds)
    assert [await authority.pem(), await authority.pem()] == ["", ""]
    assert (source.asked, len(log.entries)) == (1, 1)
    source.error = None
    clock.date += timedelta(seconds=5)
    assert await authority.pem() == pki.clients.pem


async def test_the_last_client_ca_is_kept_if_the_upper_fails(pki: Pki) -> None:
    """A CA, once known, stays in use after a failure, or after an answer without a valid CA."""
    clock, source = Clock(), Source(pki.clients.pem)
    authority = ClientCA(RecordingLogger(), source=source, clock=clock.seconds)
    await authority.pem()
    for source.error, source.pem in ((Unreachable("gone"), ""), (None, ""), (None, "rubbish")):
        clock.date += timedelta(minutes=1)
        assert await authority.pem() == pki.clients.pem
    assert source.asked == 4


async def test_there_is_no_client_ca_without_file_and_source() -> None:
    """With neither a file nor a source the CA is empty."""
    assert await ClientCA(RecordingLogger()).pem() == ""


@pytest.mark.parametrize("pem", [b"", b"no certificate"])
def test_a_credential_without_a_readable_certificate_has_no_expiration(pem: bytes) -> None:
    """A credential with no certificate, or an unreadable one, yields None."""
    assert expiration(pem) is None
    assert expiration(self_signed("o", "b", ["b"], NOW, timedelta(days=3)).certificate) == NOW + timedelta(days=3)
