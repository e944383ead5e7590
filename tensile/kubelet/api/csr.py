"""Request a virtual node's serving certificate from the upper cluster by a CertificateSigningRequest, and renew it.

A person or a controller of the cluster has to approve each request, which may take days or never happen. So nothing
waits for it: the node is served meanwhile, and the log names the missing command. The engine never approves a request
itself. The signer checks the form only: the node as common name, its published addresses, and no usage but serving.
"""

import asyncio
from base64 import b64decode, b64encode
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from hashlib import sha256
from typing import NamedTuple

import orjson
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from structlog.typing import FilteringBoundLogger

from tensile.errors import AlreadyExists, ClusterError, Denied, NotFound, Unauthorized
from tensile.kube.cluster import Cluster
from tensile.kube.net import insist
from tensile.kube.tls import KeyPair, alternative, spelled
from tensile.kubelet.api.certificates import ServingCertificate
from tensile.objects import SIGNING_REQUEST, UPPER, Manifest, Ref

SIGNER = "kubernetes.io/kubelet-serving"
LONGEST_NODE = 64 - len("system:node:")
"""Maximum characters of a node's name that fit into a certificate's common name."""

RENEWED_AT = 0.7
"""The part of a certificate's lifetime after which the next one is requested."""

APPROVED_SECONDS = 0.5
UNSIGNED_SECONDS = 60.0
"""How long a request may wait for approval, and an approved one for its certificate, before that is logged."""

_MIN_POLL_SECONDS, _MAX_POLL_SECONDS, _POLL_FRACTION = 1.0, 60.0, 0.1
_LONGEST_NAME = 200
REFUSED_SECONDS = 900.0
"""How long after a refusal the next request is made."""
AFTER_REFUSAL = (
    f"approve the next request: the engine makes it {REFUSED_SECONDS / 60:g} minutes after the refusal, or when it "
    "restarts"
)
_CHECK_SECONDS = 3600.0
_RIGHTS = "certificatesigningrequests.certificates.k8s.io"


class SigningRequest(NamedTuple):
    """A request as it is sent, with its name and the key (PEM) that the certificate is for."""

    name: str
    manifest: Manifest
    key: bytes


class CSRStatus(NamedTuple):
    """The state of a request: `certificate` (PEM) when issued, `refusal` when it never will be, or `approved`."""

    certificate: bytes = b""
    refusal: str = ""
    approved: bool = False


class PendingReason(NamedTuple):
    """What a request waits for, and what an operator can do about it; "" while that is not reported yet."""

    what: str = ""
    remedy: str = ""


def request_for(node: str, address: str) -> SigningRequest:
    """Return a new key and the request for a node with its name and `address` (an IP address or DNS name).

    The request's name follows from the key, so that sending it twice creates one object.
    """
    key = ec.generate_private_key(ec.SECP256R1())
    form, pkcs8 = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    digest = sha256(spelled(key.public_key())).hexdigest()[:12]
    name = f"tensile-{node[:_LONGEST_NAME].rstrip('.-')}-{digest}"
    content = _signed(node, address, key).public_bytes(form)
    return SigningRequest(name, _manifest(name, content), key.private_bytes(form, pkcs8, serialization.NoEncryption()))


def csr_status(raw: bytes, key: bytes) -> CSRStatus:
    """Return the state of a request; a certificate for another key counts as a refusal."""
    request = orjson.loads(raw)
    if refused := refusal_of(request):
        return CSRStatus(refusal=refused)
    certificate = b64decode((request.get("status") or {}).get("certificate") or "")
    if certificate and not _matches_key(certificate, key):
        return CSRStatus(refusal="the issued certificate does not match the key of the request")
    return CSRStatus(certificate, approved="Approved" in _conditions(request))


def refusal_of(request: Manifest) -> str:
    """Return why a request will never be issued: that it was denied, or failed; "" if it may still be."""
    conditions = _conditions(request)
    refused = ((kind, conditions[kind]) for kind in ("Denied", "Failed") if kind in conditions)
    return next((f"{kind.lower()}: {_reason(condition)}" for kind, condition in refused), "")


def _conditions(request: Manifest) -> dict[str, Manifest]:
    return {each["type"]: each for each in (request.get("status") or {}).get("conditions") or ()}


def pending_reason(name: str, status: CSRStatus, waited: float) -> PendingReason:
    """Return what a request waits for after so many seconds."""
    if not status.approved:
        approval = PendingReason("approval", f"kubectl certificate approve {name}")
        return approval if waited > APPROVED_SECONDS else PendingReason()
    remedy = "start kube-controller-manager with --cluster-signing-cert-file and --cluster-signing-key-file"
    return PendingReason(f"the signer {SIGNER}", remedy) if waited > UNSIGNED_SECONDS else PendingReason()


def renewal(certificate: bytes) -> datetime:
    """Return when the next certificate is to be requested."""
    leaf = x509.load_pem_x509_certificates(certificate)[0]
    return leaf.not_valid_before_utc + RENEWED_AT * (leaf.not_valid_after_utc - leaf.not_valid_before_utc)


def poll_interval(waited: float) -> float:
    """Return how many seconds to wait before the next look at a request that has waited for `waited` seconds."""
    return min(max(waited * _POLL_FRACTION, _MIN_POLL_SECONDS), _MAX_POLL_SECONDS)


def _signed(node: str, address: str, key: ec.EllipticCurvePrivateKey) -> x509.CertificateSigningRequest:
    subject = [
        x509.NameAttribute(NameOID.ORGANIZATION_NAME, "system:nodes"),
        x509.NameAttribute(NameOID.COMMON_NAME, f"system:node:{node}"),
    ]
    # Approvers compare these names with the addresses of the Node, which has no address of type Hostname.
    names = [alternative(address) if address else x509.DNSName(node)]
    builder = x509.CertificateSigningRequestBuilder(x509.Name(subject))
    return builder.add_extension(x509.SubjectAlternativeName(names), critical=False).sign(key, hashes.SHA256())


def _manifest(name: str, content: bytes) -> Manifest:
    return {
        "apiVersion": SIGNING_REQUEST.api,
        "kind": SIGNING_REQUEST.name,
        "metadata": {"name": name},
        "spec": {
            "request": b64encode(content).decode(),
            "signerName": SIGNER,
            "usages": ["digital signature", "server auth"],
        },
    }


def _matches_key(certificate: bytes, key: bytes) -> bool:
    """Report whether the first certificate of a chain is for the key."""
    try:
        public_key = x509.load_pem_x509_certificates(certificate)[0].public_key()
    except ValueError:
        return False
    return spelled(public_key) == spelled(serialization.load_pem_private_key(key, None).public_key())


def _reason(condition: Manifest) -> str:
    return str(condition.get("message") or condition.get("reason") or "no reason was given")


class CertificateRequester:
    """Keeps the certificates of virtual nodes; `run` is for one node, and returns only if its name is too long.

    `now` returns the time of day, by which certificates end; waiting is by the event loop's clock.
    """

    def __init__(
        self,
        upper: Cluster,
        serving: ServingCertificate,
        log: FilteringBoundLogger,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._upper = upper
        self._serving = serving
        self._log = log
        self._now = now

    async def run(self, node: str) -> None:
        """Request a certificate, and renew it when the time has come."""
        if len(node) > LONGEST_NODE:
            advice = (
                f"set kubelet.tlsCertFile and kubelet.tlsKeyFile, or a node.name of at most {LONGEST_NODE} characters"
            )
            self._log.warning(
                "no serving certificate is requested: the node name is too long", node=node, advice=advice
            )
            return
        while True:
            pair = self._serving.issued(node)
            if pair is None or renewal(pair.certificate) <= self._now():
                await self._request_certificate(node)
            else:
                rest = (renewal(pair.certificate) - self._now()).total_seconds()
                await asyncio.sleep(min(rest, _CHECK_SECONDS))

    async def _request_certificate(self, node: str) -> None:
        """Make one request and wait for its result; log a refusal and pause after it."""
        request, advice = request_for(node, self._serving.address), AFTER_REFUSAL
        try:
            await self._send(request)
            status = await self._await_result(node, request)
        except (Denied, Unauthorized) as error:
            advice = f"allow the engine to create and get {_RIGHTS}, or set kubelet.tlsCertFile and kubelet.tlsKeyFile"
            status = CSRStatus(refusal=str(error))
        except NotFound:
            status = CSRStatus(
                refusal="the CertificateSigningRequest was deleted, or the cluster does not serve this API"
            )
        if status.certificate:
            self._serving.take(node, KeyPair(status.certificate, request.key))
            self._log.info(
                "serving with the certificate that the upper cluster issued", node=node, request=request.name
            )
        else:
            what = "no serving certificate was issued"
            self._log.warning(what, node=node, request=request.name, why=status.refusal, do=advice)
            await asyncio.sleep(REFUSED_SECONDS)

    async def _send(self, request: SigningRequest) -> None:
        """Create the request, with retries while the upper cluster is unreachable."""
        clock = asyncio.get_running_loop().time
        started = clock()
        with suppress(AlreadyExists):
            await insist(
                lambda: self._upper.create(_ref(request), request.manifest),
                ClusterError,
                lambda: poll_interval(clock() - started),
                unless=(AlreadyExists, Denied, Unauthorized),
            )

    async def _await_result(self, node: str, request: SigningRequest) -> CSRStatus:
        """Poll the request until it is issued or refused; raise NotFound if it was deleted."""
        clock = asyncio.get_running_loop().time
        started, reported = clock(), PendingReason()
        while True:
            status = await self._read_status(request)
            if status.certificate or status.refusal:
                return status
            waited = clock() - started
            pending = pending_reason(request.name, status, waited)
            if pending not in {PendingReason(), reported}:
                reported = pending
                self._log.warning(
                    "waiting for a serving certificate", node=node, waits_for=pending.what, do=pending.remedy
                )
            await asyncio.sleep(poll_interval(waited))

    async def _read_status(self, request: SigningRequest) -> CSRStatus:
        """Return the state of the request, an empty one while the upper cluster is unreachable."""
        try:
            return csr_status(await self._upper.read(_ref(request)), request.key)
        except (Denied, Unauthorized, NotFound):
            raise
        except ClusterError:
            return CSRStatus()


def _ref(request: SigningRequest) -> Ref:
    return Ref(UPPER, SIGNING_REQUEST, "", request.name)
