"""Serving certificates and the authority of callers: given, made, renewed, broken."""

import asyncio
import os
import ssl
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

import pytest
from cryptography import x509
from kubelet_lab import Notes
from kubelet_pki import SERVER, Pki, write

from tensile.errors import TensileError, Unreachable
from tensile.kube.tls import KeyPair, expiration, self_signed
from tensile.kubelet.api.certificates import ClientCA, ServingCertificate, tls_context

NOW = datetime(2030, 1, 1, tzinfo=UTC)


class Clock:
    """A clock that stands until it is set."""

    def __init__(self) -> None:
        self.date = NOW

    def now(self) -> datetime:
        """Tell date and time."""
        return self.date

    def seconds(self) -> float:
        """Tell the seconds."""
        return self.date.timestamp()


def shown(context: ssl.SSLContext) -> x509.Certificate:
    """Return the certificate that a server with this context shows, by a handshake in memory."""
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


def test_a_certificate_of_our_own_fits_the_node() -> None:
    """Our own certificate names the node and its address, is for servers only and lasts a year from just before now."""
    made = shown(ServingCertificate(Notes(), "10.0.0.7", now=lambda: NOW).context("virtual-a", ""))
    names = made.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["virtual-a"]
    assert names.get_values_for_type(x509.IPAddress) == [ip_address("10.0.0.7")]
    assert made.not_valid_before_utc < NOW < made.not_valid_after_utc == NOW + timedelta(days=365)
    usage = made.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    assert list(usage) == [x509.oid.ExtendedKeyUsageOID.SERVER_AUTH]
    assert not made.extensions.get_extension_for_class(x509.BasicConstraints).value.ca


def test_it_tells_when_what_is_served_expires() -> None:
    """Of each node that is served, also of a certificate that was issued since the last connection."""
    clock = Clock()
    certificate = ServingCertificate(Notes(), "10.0.0.7", now=clock.now)
    certificate.context("a", "")
    certificate.context("b", "")
    certificate.take("b", self_signed("o", "b", ["b"], NOW, timedelta(days=3)))
    assert certificate.expirations() == {"a": NOW + timedelta(days=365), "b": NOW + timedelta(days=3)}
    certificate.forget("a")
    assert certificate.expirations() == {"b": NOW + timedelta(days=3)}


def test_an_address_may_be_a_name_and_a_node_long() -> None:
    """The address may be a DNS name, and a node's name as long as Kubernetes allows."""
    node = ".".join(["n" * 60] * 4)
    made = shown(ServingCertificate(Notes(), "kubelet.example", now=lambda: NOW).context(node, ""))
    names = made.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == [node, "kubelet.example"]


def test_our_own_certificate_is_made_once_and_warned_of() -> None:
    """The same certificate is served until it nears its end, and each making is warned of with what to set."""
    clock, log = Clock(), Notes()
    serving = ServingCertificate(log, "10.0.0.7", now=clock.now)
    first = serving.context("virtual-a", "")
    assert serving.context("virtual-a", "") is first
    assert [event for event, _ in log.entries] == ["serving with a self-signed certificate"]
    assert "kubelet.tlsCertFile" in str(log.entries)
    clock.date = NOW + timedelta(days=334)
    assert serving.context("virtual-a", "") is first
    clock.date = NOW + timedelta(days=335)
    assert shown(serving.context("virtual-a", "")).not_valid_after_utc == clock.date + timedelta(days=365)


def test_nodes_have_certificates_of_their_own() -> None:
    """Each node gets its own, and a node that was forgotten a new one."""
    serving = ServingCertificate(Notes(), "10.0.0.7")
    first, other = shown(serving.context("virtual-a", "")), shown(serving.context("virtual-b", ""))
    assert first.subject != other.subject
    serving.forget("virtual-a")
    assert shown(serving.context("virtual-a", "")).serial_number != first.serial_number


def test_given_files_are_served_and_followed(tmp_path: Path, pki: Pki) -> None:
    """The certificate of the files is shown, and a renewed one from the next connection on, without a warning."""
    log = Notes()
    first, second = (pki.servers.issue(name, usage=SERVER) for name in ("first", "second"))
    serving = ServingCertificate(log, "127.0.0.1", write(tmp_path, first))
    assert shown(serving.context("virtual-a", "")).subject.rfc4514_string() == "CN=first"
    write(tmp_path, second)
    assert shown(serving.context("virtual-a", "")).subject.rfc4514_string() == "CN=second"
    assert log.entries == []


def broken(tmp_path: Path, pki: Pki, what: str) -> None:
    """Make the two files bad in one way."""
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
def test_broken_files_change_nothing(tmp_path: Path, pki: Pki, what: str) -> None:
    """While the files are no pair, the last good one stays, said once; a good pair counts again at once."""
    log = Notes()
    files = write(tmp_path, pki.servers.issue("first", usage=SERVER))
    serving = ServingCertificate(log, "127.0.0.1", files)
    context = serving.context("virtual-a", "")
    broken(tmp_path, pki, what)
    assert serving.context("virtual-a", "") is context
    assert serving.context("virtual-a", "") is context
    assert len(log.entries) == 1
    write(tmp_path, pki.servers.issue("third"))
    assert shown(serving.context("virtual-a", "")).subject.rfc4514_string() == "CN=third"


def test_tls_is_modern_and_resumes_nothing(pki: Pki) -> None:
    """TLS is 1.2 or newer, returns no tickets and asks for client certificates only when it can verify them."""
    context = tls_context(KeyPair(*pki.serving), pki.clients.pem)
    assert context.minimum_version == ssl.TLSVersion.TLSv1_2
    assert (context.num_tickets, context.verify_mode) == (0, ssl.CERT_OPTIONAL)
    assert context.options & ssl.OP_NO_TICKET
    assert tls_context(KeyPair(*pki.serving), "").verify_mode == ssl.CERT_NONE


async def test_an_authority_file_is_followed(tmp_path: Path, pki: Pki) -> None:
    """The authority of a file counts, a changed one at once, and a bundle gives all of its certificates."""
    file, log = tmp_path / "ca.crt", Notes()
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
async def test_a_bad_authority_file_locks_nobody_out(
    tmp_path: Path, pki: Pki, content: bytes | str | None, what: str
) -> None:
    """Without a good authority there is none; once there was one it stays; what is wrong is said once with the file."""
    file, log = tmp_path / "ca.crt", Notes()
    if isinstance(content, bytes):
        file.write_bytes(content)
    elif content:
        os.mkfifo(file)
    authority = ClientCA(log, file)
    assert [await authority.pem(), await authority.pem()] == ["", ""]
    [(_, said)] = log.entries
    assert what in str(said["why"])
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
    """What the upper publishes, how often it was asked, and whether it fails."""

    def __init__(self, pem: str) -> None:
        self.pem = pem
        self.asked = 0
        self.error: Exception | None = None

    async def __call__(self) -> str:
        """Return it."""
        self.asked += 1
        await asyncio.sleep(0)
        if self.error is not None:
            raise self.error
        return self.pem


async def test_an_authority_from_the_upper_is_refreshed_each_minute(pki: Pki) -> None:
    """The source is asked once a minute, however many callers come."""
    clock, source = Clock(), Source(pki.clients.pem)
    authority = ClientCA(Notes(), source=source, clock=clock.seconds)
    await asyncio.gather(*(authority.pem() for _ in range(5)))
    assert source.asked == 1
    source.pem = pki.others.pem
    clock.date += timedelta(seconds=59)
    assert await authority.pem() == pki.clients.pem
    clock.date += timedelta(seconds=1)
    assert await authority.pem() == pki.others.pem


@pytest.mark.parametrize("error", [Unreachable("gone"), TimeoutError(), TensileError("no such key")])
async def test_an_upper_out_of_reach_is_asked_again_soon(pki: Pki, error: Exception) -> None:
    """While the source fails nobody is let in by it, and it is asked again every five seconds, not for each caller."""
    clock, source, log = Clock(), Source(pki.clients.pem), Notes()
    source.error = error
    authority = ClientCA(log, source=source, clock=clock.seconds)
    assert [await authority.pem(), await authority.pem()] == ["", ""]
    assert (source.asked, len(log.entries)) == (1, 1)
    source.error = None
    clock.date += timedelta(seconds=5)
    assert await authority.pem() == pki.clients.pem


async def test_a_failure_of_the_upper_keeps_the_last_authority(pki: Pki) -> None:
    """Once known, the authority stays through a failure, or an answer without one."""
    clock, source = Clock(), Source(pki.clients.pem)
    authority = ClientCA(Notes(), source=source, clock=clock.seconds)
    await authority.pem()
    for source.error, source.pem in ((Unreachable("gone"), ""), (None, ""), (None, "rubbish")):
        clock.date += timedelta(minutes=1)
        assert await authority.pem() == pki.clients.pem
    assert source.asked == 4


async def test_no_authority_at_all() -> None:
    """With neither file nor source there is none."""
    assert await ClientCA(Notes()).pem() == ""


@pytest.mark.parametrize("pem", [b"", b"no certificate"])
def test_what_is_no_certificate_does_not_expire(pem: bytes) -> None:
    """A credential without one, or with one that cannot be read, has no date."""
    assert expiration(pem) is None
    assert expiration(self_signed("o", "b", ["b"], NOW, timedelta(days=3)).certificate) == NOW + timedelta(days=3)
