"""A virtual node's request for a serving certificate, in the terms of the upper cluster's CertificateSigningRequests.

The signer looks at the form only: the node as common name, its published addresses, and no other use than serving.
Whether to grant it is for whoever approves, and that is never us.
"""

from base64 import b64decode, b64encode
from datetime import datetime
from hashlib import sha256
from typing import Any, NamedTuple

import orjson
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from tensile.certificates import alternative
from tensile.kubelet.api.faults import spelled
from tensile.objects import SIGNING_REQUEST, Manifest

SIGNER = "kubernetes.io/kubelet-serving"
LONGEST_NODE = 64 - len("system:node:")
"""Characters of a node's name that fit into a certificate's common name."""

RENEWED_AT = 0.7
"""The part of a certificate's life after which the next one is asked for."""

APPROVED_SECONDS = 0.5
UNSIGNED_SECONDS = 60.0
"""How long a request may wait for approval, and one that has it for its certificate, before that is said."""

_ASKED_AT_LEAST, _ASKED_AT_MOST, _PATIENCE = 1.0, 60.0, 0.1
_LONGEST_NAME = 200


class Request(NamedTuple):
    """A request as it is sent, under which name, and the key (PEM) that the certificate will be for."""

    name: str
    manifest: Manifest
    key: bytes


class Standing(NamedTuple):
    """What became of a request: `certificate` (PEM) when issued, `refusal` when it never will be, or `approved`."""

    certificate: bytes = b""
    refusal: str = ""
    approved: bool = False


class Lack(NamedTuple):
    """What a request waits for, and what somebody can do about it; "" for nothing yet."""

    what: str = ""
    remedy: str = ""


def request_for(node: str, address: str) -> Request:
    """Make a key and the request for a node whose published addresses are its name and `address` (an IP or DNS name).

    The name follows from the key, so that one sent twice is one.
    """
    key = ec.generate_private_key(ec.SECP256R1())
    form, pkcs8 = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    digest = sha256(spelled(key.public_key())).hexdigest()[:12]
    name = f"tensile-{node[:_LONGEST_NAME].rstrip('.-')}-{digest}"
    content = _signed(node, address, key).public_bytes(form)
    return Request(name, _manifest(name, content), key.private_bytes(form, pkcs8, serialization.NoEncryption()))


def standing(raw: bytes, key: bytes) -> Standing:
    """Read what became of a request; a certificate that is not the key's is as good as none."""
    status: dict[str, Any] = orjson.loads(raw).get("status") or {}
    conditions = {each["type"]: each for each in status.get("conditions") or ()}
    for kind in ("Denied", "Failed"):
        if kind in conditions:
            return Standing(refusal=f"{kind.lower()}: {_reason(conditions[kind])}")
    certificate = b64decode(status.get("certificate") or "")
    if certificate and not _belongs(certificate, key):
        return Standing(refusal="what was issued is not a certificate of the key in the request")
    return Standing(certificate, approved="Approved" in conditions)


def lacking(name: str, found: Standing, waited: float) -> Lack:
    """Say what a request that has waited for so many seconds waits for."""
    if not found.approved:
        approval = Lack("approval", f"kubectl certificate approve {name}")
        return approval if waited > APPROVED_SECONDS else Lack()
    remedy = "give kube-controller-manager --cluster-signing-cert-file and --cluster-signing-key-file"
    return Lack(f"the signer {SIGNER}", remedy) if waited > UNSIGNED_SECONDS else Lack()


def renewal(certificate: bytes) -> datetime:
    """Say when the next certificate is to be asked for."""
    leaf = x509.load_pem_x509_certificates(certificate)[0]
    return leaf.not_valid_before_utc + RENEWED_AT * (leaf.not_valid_after_utc - leaf.not_valid_before_utc)


def pause(waited: float) -> float:
    """Say how many seconds to leave a request alone that has waited for `waited`: people take their time."""
    return min(max(waited * _PATIENCE, _ASKED_AT_LEAST), _ASKED_AT_MOST)


def _signed(node: str, address: str, key: ec.EllipticCurvePrivateKey) -> x509.CertificateSigningRequest:
    subject = [
        x509.NameAttribute(NameOID.ORGANIZATION_NAME, "system:nodes"),
        x509.NameAttribute(NameOID.COMMON_NAME, f"system:node:{node}"),
    ]
    names = [x509.DNSName(node), *([alternative(address)] if address else [])]
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


def _belongs(certificate: bytes, key: bytes) -> bool:
    """Say whether the first certificate of a chain is the key's."""
    try:
        shown = x509.load_pem_x509_certificates(certificate)[0].public_key()
    except ValueError:
        return False
    return spelled(shown) == spelled(serialization.load_pem_private_key(key, None).public_key())


def _reason(condition: Manifest) -> str:
    return str(condition.get("message") or condition.get("reason") or "no reason was given")
