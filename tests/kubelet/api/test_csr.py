"""Serving certificates that the upper cluster issues: asked for, awaited, refused, renewed."""

import asyncio
from base64 import b64decode, b64encode
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from typing import Any

import orjson
import pytest
from answering import Answering
from cryptography import x509
from kubelet_lab import Notes
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
    pause,
    pending_reason,
    renewal,
    request_for,
)

NODE, ADDRESS = "virtual-a", "192.0.2.7"
NOW = datetime(2030, 1, 1, tzinfo=UTC)
LIFE = timedelta(days=100)
HOUR, DAY = 3600, 86400


def asked_for(manifest: dict[str, Any]) -> x509.CertificateSigningRequest:
    """Read the request inside a CertificateSigningRequest."""
    return x509.load_pem_x509_csr(b64decode(manifest["spec"]["request"]))


def status(*conditions: tuple[str, str], certificate: bytes = b"") -> bytes:
    """Return a CertificateSigningRequest with that status."""
    listed = [{"type": kind, "reason": "ByHand", "message": words} for kind, words in conditions]
    issued = {"certificate": b64encode(certificate).decode()} if certificate else {}
    return orjson.dumps({"status": {"conditions": listed, **issued}})


def test_a_request_is_what_the_signer_takes() -> None:
    """Organisation, common name, the published address alone, and no use but serving; without an address, the node."""
    request = request_for(NODE, ADDRESS)
    asked = asked_for(request.manifest)
    names = asked.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert asked.subject.rfc4514_string() == f"CN=system:node:{NODE},O=system:nodes"
    assert names.get_values_for_type(x509.DNSName) == []
    assert names.get_values_for_type(x509.IPAddress) == [ip_address(ADDRESS)]
    assert request.manifest["spec"]["signerName"] == "kubernetes.io/kubelet-serving"
    assert request.manifest["spec"]["usages"] == ["digital signature", "server auth"]
    assert asked.is_signature_valid
    assert "PRIVATE" not in str(request.manifest)
    named = asked_for(request_for(NODE, "").manifest).extensions
    assert named.get_extension_for_class(x509.SubjectAlternativeName).value.get_values_for_type(x509.DNSName) == [NODE]


def test_requests_have_names_of_their_own() -> None:
    """Two requests have two keys and two names, which begin with the node's and fit into an object's."""
    first, second = request_for(NODE, ADDRESS), request_for(NODE, ADDRESS)
    assert first.name != second.name
    assert first.key != second.key
    assert first.name.startswith(f"tensile-{NODE}-")
    assert first.manifest["metadata"] == {"name": first.name}


def test_a_longest_name_fits() -> None:
    """The longest name that is asked for makes a common name of 64 characters; an address may be unknown or a name."""
    node = "n" * LONGEST_NODE
    asked = asked_for(request_for(node, "").manifest)
    [common_name] = asked.subject.get_attributes_for_oid(x509.oid.NameOID.COMMON_NAME)
    assert len(common_name.value) == 64
    names = asked_for(request_for(node, "node.example").manifest).extensions
    assert "node.example" in str(names)


def test_a_standing_is_read(pki: Pki) -> None:
    """Pending, approved, issued, denied, failed, and a certificate of another key."""
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


def test_what_is_lacking_is_said_in_time() -> None:
    """Approval after a moment, with the exact command; the signer after a minute, with what it needs."""
    pending, approved = CSRStatus(), CSRStatus(approved=True)
    assert pending_reason("x", pending, 0.1) == PendingReason()
    assert pending_reason("x", pending, 1.0) == PendingReason("approval", "kubectl certificate approve x")
    assert pending_reason("x", approved, 59.0) == PendingReason()
    assert "--cluster-signing-cert-file" in pending_reason("x", approved, 61.0).remedy


def test_the_next_one_is_asked_for_at_seven_tenths(pki: Pki) -> None:
    """A certificate of a hundred days is renewed after seventy."""
    request = b64decode(request_for(NODE, ADDRESS).manifest["spec"]["request"])
    assert renewal(pki.servers.granted(request, NOW, NOW + LIFE)) == NOW + timedelta(days=70)


def test_patience_grows() -> None:
    """Looked at each second at first, and once a minute in the end."""
    assert [pause(waited) for waited in (0, 5, 20, 100, 600, 86400)] == [1, 1, 2, 10, 60, 60]


class Signer(Answering):
    """An upper cluster whose people do with requests what `decide` says, by how many have come."""

    def __init__(self, decide: Callable[[int, bytes], bytes | ClusterError]) -> None:
        super().__init__("")
        self.requests: list[dict[str, Any]] = []
        self.looks = 0
        self.losing = False
        self._decide = decide

    async def create(self, ref: Any, body: dict[str, Any]) -> bytes:
        """Take a request, once; the answer may get lost on its way back."""
        if any(each["metadata"]["name"] == ref.name for each in self.requests):
            raise AlreadyExists("is there", status=409)
        answer = await super().create(ref, body)
        self.requests.append(body)
        if self.losing:
            raise Unreachable("the answer was lost")
        return answer

    async def read(self, ref: Any) -> bytes:
        """Tell how the request of that name stands."""
        self.looks += 1
        [place] = [place for place, each in enumerate(self.requests) if each["metadata"]["name"] == ref.name]
        found = self._decide(place, b64decode(self.requests[place]["spec"]["request"]))
        if isinstance(found, ClusterError):
            raise found
        return found


class Office:
    """An enrolment of one node before such a cluster, which goes on for as long as a test sleeps in virtual time."""

    def __init__(self, decide: Callable[[int, bytes], bytes | ClusterError]) -> None:
        self.upper = Signer(decide)
        self.log = Notes()
        self.ahead = timedelta()
        self.serving = ServingCertificate(self.log, ADDRESS, now=self.now)
        self.enrolment = CertificateRequester(self.upper, self.serving, self.log, self.now)

    def now(self) -> datetime:
        """Tell the date, `ahead` of the clock."""
        return NOW + timedelta(seconds=clock()) + self.ahead

    def running(self) -> AbstractAsyncContextManager[object]:
        """Run the enrolment meanwhile."""
        return background(self.enrolment.run(NODE))

    def said(self, event: str) -> list[dict[str, object]]:
        """Return what was said of a kind."""
        return [fields for known, fields in self.log.entries if known == event]


def granting(pki: Pki, office: Callable[[], "Office"]) -> Callable[[int, bytes], bytes]:
    """Decide to grant each request at once, for a hundred days from the office's now."""

    def decide(_place: int, request: bytes) -> bytes:
        now = office().now()
        return status(("Approved", ""), certificate=pki.servers.granted(request, now, now + LIFE))

    return decide


@in_virtual_time
async def test_an_issued_certificate_is_served(pki: Pki) -> None:
    """What was issued for the node is served at its next connection, with its key, and nothing was warned of."""
    office = Office(granting(pki, lambda: office))
    async with office.running():
        await asyncio.sleep(10)
    office.serving.context(NODE, "")
    assert NODE in office.serving.shown(NODE)
    assert "CN=servers" in office.serving.shown(NODE)
    assert [event for event, _ in office.log.entries] == ["serving with the certificate that the upper cluster issued"]


@in_virtual_time
async def test_the_approve_command_is_said_once(pki: Pki) -> None:
    """A request that waits for days is said once, with the command to copy; the node is served meanwhile."""
    office = Office(lambda _place, _request: status())
    async with office.running():
        await asyncio.sleep(2 * DAY)
    [words] = office.said("waiting for a serving certificate")
    assert words["do"] == f"kubectl certificate approve {office.upper.requests[0]['metadata']['name']}"
    assert words["waits_for"] == "approval"
    assert len(office.upper.requests) == 1
    assert office.upper.looks < 3000
    assert office.serving.context(NODE, "")


@in_virtual_time
async def test_a_certificate_is_renewed_at_seven_tenths_of_its_life(pki: Pki) -> None:
    """The next one is asked for after seventy of a hundred days, with a new key; soon where the date is changed."""
    office = Office(granting(pki, lambda: office))
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


@pytest.mark.parametrize(("answer", "words"), REFUSALS)
@in_virtual_time
async def test_a_refusal_is_said_and_rested_after(pki: Pki, answer: bytes | ClusterError, words: str) -> None:
    """Denied, failed or deleted: said with the reason, and asked again after a quarter of an hour, not at once."""
    office = Office(lambda _place, _request: answer)
    async with office.running():
        await asyncio.sleep(2.5 * REFUSED_SECONDS)
    assert len(office.upper.requests) == 3
    told = office.said("no serving certificate was issued")[0]
    assert words in str(told["why"])
    assert str(told["do"]).startswith("approve the next request")


@pytest.mark.parametrize("error", [Denied("forbidden", status=403), Unauthorized("who?", status=401)])
@in_virtual_time
async def test_missing_rights_are_said(pki: Pki, error: ClusterError) -> None:
    """An engine that may not ask says which right it lacks, and tries again later."""
    office = Office(granting(pki, lambda: office))
    office.upper.answer("create", error)
    async with office.running():
        await asyncio.sleep(REFUSED_SECONDS - 1)
        assert office.serving.issued(NODE) is None
        await asyncio.sleep(10)
        assert office.serving.issued(NODE) is not None
    [words] = office.said("no serving certificate was issued")
    assert "certificatesigningrequests" in str(words["do"])
    assert "kubelet.tlsCertFile" in str(words["do"])


@in_virtual_time
async def test_an_upper_out_of_reach_is_waited_for(pki: Pki) -> None:
    """While the upper does not answer, the same request is sent, and then looked at, until it does."""
    granted = granting(pki, lambda: office)

    def decide(place: int, request: bytes) -> bytes | ClusterError:
        return Unreachable("gone") if office.upper.looks < 3 else granted(place, request)

    office = Office(decide)
    office.upper.answer("create", Unreachable("gone"), Unreachable("gone"))
    async with office.running():
        await asyncio.sleep(60)
    assert office.serving.issued(NODE) is not None
    assert len(office.upper.requests) == 1
    assert [event for event, _ in office.log.entries if "waiting" not in event] == [
        "serving with the certificate that the upper cluster issued"
    ]


@in_virtual_time
async def test_a_request_that_arrived_unheard_is_the_same(pki: Pki) -> None:
    """A request whose answer was lost exists: it is looked at, not sent again under another name."""
    office = Office(granting(pki, lambda: office))
    office.upper.losing = True
    async with office.running():
        await asyncio.sleep(60)
    assert office.serving.issued(NODE) is not None
    assert len(office.upper.requests) == 1


@in_virtual_time
async def test_a_name_too_long_is_not_asked_for(pki: Pki) -> None:
    """A node whose name does not fit into a certificate gets none, and is told what to do instead."""
    office = Office(granting(pki, lambda: office))
    await office.enrolment.run("n" * (LONGEST_NODE + 1))
    assert office.upper.requests == []
    assert "kubelet.tlsCertFile" in str(office.log.entries)


@in_virtual_time
async def test_what_was_issued_outlives_a_pause(pki: Pki) -> None:
    """A node that is served no more and comes back has its certificate still, and asks for no other."""
    office = Office(granting(pki, lambda: office))
    async with office.running():
        await asyncio.sleep(10)
    office.serving.forget(NODE)
    async with office.running():
        await asyncio.sleep(DAY)
    assert len(office.upper.requests) == 1
