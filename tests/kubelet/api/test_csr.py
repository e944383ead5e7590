"""Tests of serving certificates that the upper cluster issues: requested, awaited, refused and renewed."""

import asyncio
from base64 import b64decode, b64encode
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from typing import Any

import orjson
import pytest
from answering import FakeCluster
from cryptography import x509
from kubelet_lab import RecordingLogger
from kubelet_pki import Pki
from tasks import background
from virtualtime import clock, in_virtual_time

from tensile.errors import AlreadyExists, ClusterError, Denied, NotFound, Unauthorized, Unreachable
from tensile.kubelet.api.certificates import ServingCertificate
from tensile.kubelet.api.csr import (
    LONGEST_NODE,
    REFUSED_SECONDS,
    CertificateRequester,
    CSRStatus,
    PendingReason,
    csr_status,
    pending_reason,
    poll_interval,
    renewal,
    request_for,
)

NODE, ADDRESS = "virtual-a", "192.0.2.7"
NOW = datetime(2030, 1, 1, tzinfo=UTC)
LIFE = timedelta(days=100)
HOUR, DAY = 3600, 86400


def asked_for(manifest: dict[str, Any]) -> x509.CertificateSigningRequest:
    """Return the X.509 request inside a CertificateSigningRequest."""
    return x509.load_pem_x509_csr(b64decode(manifest["spec"]["request"]))


def status(*conditions: tuple[str, str], certificate: bytes = b"") -> bytes:
    """Return a CertificateSigningRequest with that status."""
    listed = [{"type": kind, "reason": "ByHand", "message": message} for kind, message in conditions]
    issued = {"certificate": b64encode(certificate).decode()} if certificate else {}
    return orjson.dumps({"status": {"conditions": listed, **issued}})


def test_a_request_has_the_subject_names_and_usages_of_the_kubelet_serving_signer() -> None:
    """It contains only the published address, or the node's name if there is no address."""
    request = request_for(NODE, ADDRESS)
    csr = asked_for(request.manifest)
    names = csr.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert csr.subject.rfc4514_string() == f"CN=system:node:{NODE},O=system:nodes"
    assert names.get_values_for_type(x509.DNSName) == []
    assert names.get_values_for_type(x509.IPAddress) == [ip_address(ADDRESS)]
    assert request.manifest["spec"]["signerName"] == "kubernetes.io/kubelet-serving"
    assert request.manifest["spec"]["usages"] == ["digital signature", "server auth"]
    assert csr.is_signature_valid
    assert "PRIVATE" not in str(request.manifest)
    named = asked_for(request_for(NODE, "").manifest).extensions
    assert named.get_extension_for_class(x509.SubjectAlternativeName).value.get_values_for_type(x509.DNSName) == [NODE]


def test_requests_have_different_names_and_keys() -> None:
    """Two requests of a node differ in name and key, and both names begin with the node's name."""
    first, second = request_for(NODE, ADDRESS), request_for(NODE, ADDRESS)
    assert first.name != second.name
    assert first.key != second.key
    assert first.name.startswith(f"tensile-{NODE}-")
    assert first.manifest["metadata"] == {"name": first.name}


def test_the_longest_node_name_fits_into_the_common_name() -> None:
    """It makes a common name of 64 characters; the address may be unknown or a DNS name."""
    node = "n" * LONGEST_NODE
    csr = asked_for(request_for(node, "").manifest)
    [common_name] = csr.subject.get_attributes_for_oid(x509.oid.NameOID.COMMON_NAME)
    assert len(common_name.value) == 64
    names = asked_for(request_for(node, "node.example").manifest).extensions
    assert "node.example" in str(names)


def test_the_status_of_a_request_is_parsed(pki: Pki) -> None:
    """The states are pending, approved, issued, denied, failed, and issued for another key."""
    request = request_for(NODE, ADDRESS)
    issued = pki.servers.granted(b64decode(request.manifest["spec"]["request"]), NOW, NOW + LIFE)
    assert csr_status(b"{}", request.key) == CSRStatus()
    assert csr_status(status(("Approved", "")), request.key) == CSRStatus(approved=True)
    assert csr_status(status(("Approved", ""), certificate=issued), request.key) == CSRStatus(issued, approved=True)
    assert csr_status(status(("Denied", "not here")), request.key).refusal == "denied: not here"
    assert csr_status(status(("Approved", ""), ("Failed", "")), request.key).refusal == "failed: ByHand"
    for wrong in (pki.serving.certificate, b"rubbish"):
        found = csr_status(status(("Approved", ""), certificate=wrong), request.key)
        assert found.certificate == b""
        assert "does not match the key" in found.refusal


def test_a_pending_reason_is_given_after_its_delay() -> None:
    """A missing approval is reported after a moment with the command, a missing signer after a minute."""
    pending, approved = CSRStatus(), CSRStatus(approved=True)
    assert pending_reason("x", pending, 0.1) == PendingReason()
    assert pending_reason("x", pending, 1.0) == PendingReason("approval", "kubectl certificate approve x")
    assert pending_reason("x", approved, 59.0) == PendingReason()
    assert "--cluster-signing-cert-file" in pending_reason("x", approved, 61.0).remedy


def test_a_certificate_is_renewed_after_seven_tenths_of_its_life(pki: Pki) -> None:
    """A certificate of a hundred days is renewed after seventy."""
    request = b64decode(request_for(NODE, ADDRESS).manifest["spec"]["request"])
    assert renewal(pki.servers.granted(request, NOW, NOW + LIFE)) == NOW + timedelta(days=70)


def test_the_polling_interval_grows_with_the_wait() -> None:
    """A request is read each second at first, and once a minute in the end."""
    assert [poll_interval(waited) for waited in (0, 5, 20, 100, 600, 86400)] == [1, 1, 2, 10, 60, 60]


class SigningCluster(FakeCluster):
    """An upper cluster that answers each request with what `decide` returns for its position."""

    def __init__(self, decide: Callable[[int, bytes], bytes | ClusterError]) -> None:
        super().__init__("")
        self.requests: list[dict[str, Any]] = []
        self.reads = 0
        self.losing = False
        self._decide = decide

    async def create(self, ref: Any, body: dict[str, Any]) -> bytes:
        """Store a request once; its answer may get lost."""
        if any(each["metadata"]["name"] == ref.name for each in self.requests):
            raise AlreadyExists("is there", status=409)
        answer = await super().create(ref, body)
        self.requests.append(body)
        if self.losing:
            raise Unreachable("the answer was lost")
        return answer

    async def read(self, ref: Any) -> bytes:
        """Return the request of that name with its status."""
        self.reads += 1
        [place] = [place for place, each in enumerate(self.requests) if each["metadata"]["name"] == ref.name]
        found = self._decide(place, b64decode(self.requests[place]["spec"]["request"]))
        if isinstance(found, ClusterError):
            raise found
        return found


class CertificateRequesterHarness:
    """A certificate requester of one node with such a cluster, which runs while a test sleeps in virtual time."""

    def __init__(self, decide: Callable[[int, bytes], bytes | ClusterError]) -> None:
        self.upper = SigningCluster(decide)
        self.log = RecordingLogger()
        self.ahead = timedelta()
        self.serving = ServingCertificate(self.log, ADDRESS, now=self.now)
        self.enrolment = CertificateRequester(self.upper, self.serving, self.log, self.now)

    def now(self) -> datetime:
        """Return the date, which is `ahead` of the clock."""
        return NOW + timedelta(seconds=clock()) + self.ahead

    def running(self) -> AbstractAsyncContextManager[object]:
        """Run the requester in the background."""
        return background(self.enrolment.run(NODE))

    def log_entries(self, event: str) -> list[dict[str, object]]:
        """Return the fields of the log entries of an event."""
        return [fields for known, fields in self.log.entries if known == event]


def granting(pki: Pki, office: Callable[[], "CertificateRequesterHarness"]) -> Callable[[int, bytes], bytes]:
    """Return a function that grants each request for a hundred days from the current date of the fixture."""

    def decide(_place: int, request: bytes) -> bytes:
        now = office().now()
        return status(("Approved", ""), certificate=pki.servers.granted(request, now, now + LIFE))

    return decide


@in_virtual_time
async def test_an_issued_certificate_is_served(pki: Pki) -> None:
    """It is presented from the next connection on, with its key, and no warning is logged."""
    office = CertificateRequesterHarness(granting(pki, lambda: office))
    async with office.running():
        await asyncio.sleep(10)
    office.serving.context(NODE, "")
    assert NODE in office.serving.shown(NODE)
    assert "CN=servers" in office.serving.shown(NODE)
    assert [event for event, _ in office.log.entries] == ["serving with the certificate that the upper cluster issued"]


@in_virtual_time
async def test_the_approve_command_is_logged_once(pki: Pki) -> None:
    """A request that is pending for days is logged once with the command to copy, and the node is served."""
    office = CertificateRequesterHarness(lambda _place, _request: status())
    async with office.running():
        await asyncio.sleep(2 * DAY)
    [entry] = office.log_entries("waiting for a serving certificate")
    assert entry["do"] == f"kubectl certificate approve {office.upper.requests[0]['metadata']['name']}"
    assert entry["waits_for"] == "approval"
    assert len(office.upper.requests) == 1
    assert office.upper.reads < 3000
    assert office.serving.context(NODE, "")


@in_virtual_time
async def test_a_certificate_is_renewed_with_a_new_key_after_seventy_of_a_hundred_days(pki: Pki) -> None:
    """If the clock jumps ahead, the renewal follows within an hour."""
    office = CertificateRequesterHarness(granting(pki, lambda: office))
    async with office.running():
        await asyncio.sleep(145 * DAY)
        assert len(office.upper.requests) == 3
        office.ahead = timedelta(days=70)
        await asyncio.sleep(HOUR)
    assert len(office.upper.requests) == 4
    first, second = (asked_for(each).public_key() for each in office.upper.requests[:2])
    assert first != second


REFUSALS = [
    (status(("Denied", "unknown node")), "denied: unknown node"),
    (status(("Approved", ""), ("Failed", "no such usage")), "failed: no such usage"),
    (NotFound("gone", status=404), "was deleted"),
]


@pytest.mark.parametrize(("answer", "message"), REFUSALS)
@in_virtual_time
async def test_a_refused_request_is_logged_and_repeated_after_a_pause(
    pki: Pki, answer: bytes | ClusterError, message: str
) -> None:
    """A request that is denied, failed or deleted is logged with the reason, and replaced after 15 minutes."""
    office = CertificateRequesterHarness(lambda _place, _request: answer)
    async with office.running():
        await asyncio.sleep(2.5 * REFUSED_SECONDS)
    assert len(office.upper.requests) == 3
    log_entry = office.log_entries("no serving certificate was issued")[0]
    assert message in str(log_entry["why"])
    assert str(log_entry["do"]).startswith("approve the next request")


@pytest.mark.parametrize("error", [Denied("forbidden", status=403), Unauthorized("who?", status=401)])
@in_virtual_time
async def test_missing_rights_are_logged_with_the_resource_and_an_alternative(pki: Pki, error: ClusterError) -> None:
    """The engine logs which resource it may not create, and retries later."""
    office = CertificateRequesterHarness(granting(pki, lambda: office))
    office.upper.queue_responses("create", error)
    async with office.running():
        await asyncio.sleep(REFUSED_SECONDS - 1)
        assert office.serving.issued(NODE) is None
        await asyncio.sleep(10)
        assert office.serving.issued(NODE) is not None
    [entry] = office.log_entries("no serving certificate was issued")
    assert "certificatesigningrequests" in str(entry["do"])
    assert "kubelet.tlsCertFile" in str(entry["do"])


@in_virtual_time
async def test_a_request_is_retried_while_the_upper_is_unreachable(pki: Pki) -> None:
    """The same request is sent, and then read, until the upper cluster answers."""
    granted = granting(pki, lambda: office)

    def decide(place: int, request: bytes) -> bytes | ClusterError:
        return Unreachable("gone") if office.upper.reads < 3 else granted(place, request)

    office = CertificateRequesterHarness(decide)
    office.upper.queue_responses("create", Unreachable("gone"), Unreachable("gone"))
    async with office.running():
        await asyncio.sleep(60)
    assert office.serving.issued(NODE) is not None
    assert len(office.upper.requests) == 1
    assert [event for event, _ in office.log.entries if "waiting" not in event] == [
        "serving with the certificate that the upper cluster issued"
    ]


@in_virtual_time
async def test_a_request_with_a_lost_answer_is_not_sent_under_another_name(pki: Pki) -> None:
    """Such a request exists, so the requester reads it instead of creating a second one."""
    office = CertificateRequesterHarness(granting(pki, lambda: office))
    office.upper.losing = True
    async with office.running():
        await asyncio.sleep(60)
    assert office.serving.issued(NODE) is not None
    assert len(office.upper.requests) == 1


@in_virtual_time
async def test_a_node_with_too_long_a_name_requests_no_certificate(pki: Pki) -> None:
    """Its name does not fit into a certificate, so the log names the value to set instead."""
    office = CertificateRequesterHarness(granting(pki, lambda: office))
    await office.enrolment.run("n" * (LONGEST_NODE + 1))
    assert office.upper.requests == []
    assert "kubelet.tlsCertFile" in str(office.log.entries)


@in_virtual_time
async def test_an_issued_certificate_is_kept_while_the_node_is_not_served(pki: Pki) -> None:
    """A node that is served again uses its certificate and requests no other."""
    office = CertificateRequesterHarness(granting(pki, lambda: office))
    async with office.running():
        await asyncio.sleep(10)
    office.serving.forget(NODE)
    async with office.running():
        await asyncio.sleep(DAY)
    assert len(office.upper.requests) == 1
