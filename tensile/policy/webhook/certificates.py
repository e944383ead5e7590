"""Which certificate the webhook serves, what an apiserver has to trust for it, and when it is renewed.

Without files in the topology it is a serving certificate under a CA of the engine's own. Replicas in a cluster share
both, in one Secret. The CA lasts for years and its key is kept beside it, so that a renewal is one write: every
apiserver trusts the next serving certificate before it exists. A new CA each time would have to be published first, and
a leader that ends in between would leave that half done. Whoever reads the Secret can be the webhook in any case.

Trust changes only where files change, the Secret is deleted, or the CA comes to its end. Replicas learn of that one
after the other, and the leader alone registers what to trust. So it has the former and the next certificate trusted for
a while, in the middle of which each replica changes over.
"""

from base64 import b64decode, b64encode
from collections.abc import Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import NamedTuple

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey
from cryptography.hazmat.primitives.serialization import Encoding

from tensile.errors import TensileError
from tensile.kube.tls import KeyPair, issued, names_of, other_names, pair_fault
from tensile.names import Owner
from tensile.objects import SECRET, Manifest, Ref

SERVING_LIFE, AUTHORITY_LIFE = timedelta(days=30), timedelta(days=3650)
OVERLAP = 120.0
"""Seconds until a certificate that needs other trust is served; a kubelet updates mounted files within 90."""
_RENEWAL_PART = 0.7
_MAX_NAMES = 8
"""Maximum of names in a serving certificate."""
_KEYS = ("ca.crt", "ca.key", "tls.crt", "tls.key")


class WebhookCertificates(NamedTuple):
    """The CA of a webhook, and the serving certificate that it signed."""

    authority: KeyPair
    serving: KeyPair


def ensure_current(known: WebhookCertificates | None, names: Sequence[str], now: datetime) -> WebhookCertificates:
    """Return the certificates to use from now on: `known` itself if nothing is due.

    After a change of `names` the serving certificate also covers the former ones, which stay registered until the
    webhook has answered at the new address.
    """
    if known is None or _is_due(known.authority, now):
        authority = issued("tensile", "webhook CA", ["webhook-ca"], now, AUTHORITY_LIFE, signs=True)
        return WebhookCertificates(
            authority, issued("tensile", names[0], names, now, SERVING_LIFE, authority=authority)
        )
    if not _is_due(known.serving, now):
        former = names_of(certificates_in(known.serving.certificate)[0])
        if set(names) <= set(former):
            return known
        names = list(dict.fromkeys([*names, *former]))[:_MAX_NAMES]
    return known._replace(serving=issued("tensile", names[0], names, now, SERVING_LIFE, authority=known.authority))


def _is_due(pair: KeyPair, now: datetime) -> bool:
    """Report whether a certificate is to be renewed; also one that begins later, by a clock that was wrong."""
    certificate = certificates_in(pair.certificate)[0]
    begin, end = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    return not begin <= now < begin + _RENEWAL_PART * (end - begin)


def secret(ref: Ref, owner: Owner, certificates: WebhookCertificates) -> Manifest:
    """Return the Secret with these certificates."""
    meta = {"labels": owner.label, "annotations": owner.signed(owner.upper)}
    texts = (b64encode(text).decode() for pair in certificates for text in pair)
    return {
        "apiVersion": SECRET.api,
        "kind": SECRET.name,
        "type": "kubernetes.io/tls",
        "metadata": {"name": ref.name, "namespace": ref.namespace, **meta},
        "data": dict(zip(_KEYS, texts, strict=True)),
    }


def certificates_of(secret: Manifest) -> WebhookCertificates | None:
    """Return the certificates in a Secret, None if they are incomplete, damaged, or do not belong together."""
    try:
        texts = [b64decode(secret["data"][key], validate=True) for key in _KEYS]
        found = WebhookCertificates(KeyPair(*texts[:2]), KeyPair(*texts[2:]))
        if any(pair_fault("", "", *pair) for pair in found):
            return None
        authority, serving = (certificates_in(pair.certificate)[0] for pair in found)
        serving.verify_directly_issued_by(authority)
    except (KeyError, TypeError, ValueError, InvalidSignature):
        return None
    return found if isinstance(authority.public_key(), EllipticCurvePublicKey) else None


def certificates_in(pem: bytes) -> list[x509.Certificate]:
    """Return the certificates of a PEM text, an empty list if it has none."""
    try:
        return x509.load_pem_x509_certificates(pem)
    except ValueError:
        return []


def check_host(pair: KeyPair, host: str, path: Path) -> None:
    """Raise TensileError unless the certificate of a file is for a host."""
    if others := other_names(certificates_in(pair.certificate)[0], host):
        raise TensileError(
            f"{path} is for {others}, and the apiserver calls the webhook at {host}: issue it again for that address; "
            "the former certificate is still served"
        )


class ServedCertificate(NamedTuple):
    """A certificate to serve, what to trust for it (PEM, certificates alone), and since when (monotonic seconds)."""

    pair: KeyPair
    trust: bytes
    since: float


Served = tuple[ServedCertificate, ...]
"""The certificate to serve at last, and before it the one that is served until then, if any."""


def with_certificate(served: Served, pair: KeyPair, trust: bytes, now: float) -> Served:
    """Return what is served once a replica was given a certificate; of `trust` only certificates are published."""
    trust = b"".join(one.public_bytes(Encoding.PEM) for one in certificates_in(trust))
    if served and served[-1].trust == trust:
        former = served[:-1] if served[-1].since + 2 * OVERLAP > now else ()
        return (*former, served[-1]._replace(pair=pair))
    return (*served[_index_to_serve(served, now) :][:1], ServedCertificate(pair, trust, now))


def certificate_to_serve(served: Served, now: float) -> KeyPair | None:
    """Return the certificate to serve now, None if there is none yet."""
    return served[_index_to_serve(served, now)].pair if served else None


def _index_to_serve(served: Served, now: float) -> int:
    return len(served) - 1 if served and served[-1].since + OVERLAP <= now else 0


def ca_bundle(served: Served) -> bytes:
    """Return the CA bundle, in PEM."""
    return b"".join(dict.fromkeys(one.trust for one in reversed(served)))
