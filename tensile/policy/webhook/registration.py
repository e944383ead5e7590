"""What the upper's apiserver is told of the webhook: which pods to ask about, where, and whom to trust there.

Creations must never fail or wait for long because of us, so it is asked only about pods that opted in, for three
seconds at most, and goes on without an answer. Trust overlaps: a new certificate is published before it is shown, and
an old one stays until it is shown no more, also where several engines serve one Service.
"""

from base64 import b64decode, b64encode
from collections.abc import Collection, Iterable
from datetime import datetime
from typing import Any
from urllib.parse import urlsplit

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from tensile.kube.cluster import Patch
from tensile.names import PREFIX, VIRTUAL_POD, Owner
from tensile.objects import MUTATING_WEBHOOK, UPPER, Manifest, Ref, annotations, as_read, labels, metadata
from tensile.reconcile.pods.scheduling import left_alone
from tensile.topology import ServiceRef, Topology, Webhook

HOOK = f"pods.{PREFIX.rstrip('/')}"
"""The name of the one webhook in the configuration."""
TIMEOUT_SECONDS = 3
PATH = "/mutate"
_PORT = 443
_OTHERS = 15
"""Certificates of others, or of engines that are gone, that are kept in the bundle: the newest.

Nobody can tell whose engine lives. As many as engines that serve one Service, and a good number that are started again
and again beside them, or an engine that has run for long would be trusted no more until it looks.
"""


def ref_of(topology: Topology) -> Ref:
    """Name a topology's configuration; two topologies in one upper cluster have one each."""
    return Ref(UPPER, MUTATING_WEBHOOK, "", f"tensile-{topology.name}")


def names_of(webhook: Webhook) -> tuple[str, ...]:
    """Return the names and addresses by which it is called; a serving certificate has to be for the first."""
    if webhook.service is not None:
        host = f"{webhook.service.name}.{webhook.service.namespace}.svc"
        return host, f"{host}.cluster.local"
    return (urlsplit(webhook.url or "").hostname or "localhost",)


def address_of(webhook: Webhook) -> str:
    """Return the URL at which the apiserver calls it."""
    return webhook.url or f"https://{names_of(webhook)[0]}:{_PORT}{PATH}"


def proxied(service: ServiceRef) -> str:
    """Return the name by which an apiserver passes on what is asked of the Service to one of its pods, by TLS."""
    return f"https:{service.name}:{_PORT}"


def configuration(topology: Topology, owner: Owner, bundle: bytes, own_namespace: str = "") -> Manifest:
    """Return the configuration, as the API stores it; `bundle` is what to trust, in PEM."""
    left = sorted(left_alone(topology, own_namespace))
    elsewhere = {"key": "kubernetes.io/metadata.name", "operator": "NotIn", "values": left}
    hook = {
        "name": HOOK,
        "clientConfig": {**_client(topology.webhook), "caBundle": b64encode(bundle).decode()},
        "rules": [
            {
                "apiGroups": [""],
                "apiVersions": ["v1"],
                "operations": ["CREATE"],
                "resources": ["pods"],
                "scope": "Namespaced",
            }
        ],
        "failurePolicy": "Ignore",
        "matchPolicy": "Equivalent",
        "namespaceSelector": {"matchExpressions": [elsewhere]},
        "objectSelector": {"matchLabels": {VIRTUAL_POD: "true"}},
        "sideEffects": "None",
        "timeoutSeconds": TIMEOUT_SECONDS,
        "admissionReviewVersions": ["v1", "v1beta1"],
        "reinvocationPolicy": "IfNeeded",
    }
    return {
        "apiVersion": MUTATING_WEBHOOK.api,
        "kind": MUTATING_WEBHOOK.name,
        "metadata": {
            "name": ref_of(topology).name,
            "labels": owner.label,
            "annotations": owner.signed(owner.upper),
        },
        "webhooks": [hook],
    }


def change(seen: Manifest, wanted: Manifest) -> Patch | None:
    """Return the write that makes a configuration of ours as it should be, None where it is; what others added stays.

    Some clouds add namespaces of their own to those that are left alone, and again whenever they are taken out.
    """
    marks = metadata(wanted)
    is_marked = marks["labels"].items() <= labels(seen).items()
    is_marked = is_marked and marks["annotations"].items() <= annotations(seen).items()
    known = {hook.get("name"): hook for hook in seen.get("webhooks") or ()}
    hooks = [_laid_over(known.get(hook["name"]) or {}, hook) for hook in wanted["webhooks"]]
    if is_marked and seen.get("webhooks") == hooks:
        return None
    sections = {section: marks[section] for section in ("labels", "annotations")}
    return Patch("merge-patch", {"metadata": {**as_read(seen), **sections}, "webhooks": hooks})


def trusting(seen: Manifest, trusted: bytes) -> Patch | None:
    """Return the write by which a configuration of ours trusts these certificates, and else stays; None where it does."""
    if not seen.get("webhooks") or bundle_in(seen) == trusted:
        return None
    hook, *others = seen["webhooks"]
    client = {**hook.get("clientConfig", {}), "caBundle": b64encode(trusted).decode()}
    return Patch("merge-patch", {"metadata": as_read(seen), "webhooks": [{**hook, "clientConfig": client}, *others]})


def _laid_over(seen: Manifest, hook: Manifest) -> Manifest:
    """Lay a hook over what is there: fields that we do not know stay, and so do namespaces that others leave alone."""
    ours: list[Manifest] = hook["namespaceSelector"]["matchExpressions"]
    there: Manifest = seen.get("namespaceSelector") or {}
    keys = {one["key"] for one in ours}
    added = [one for one in there.get("matchExpressions") or () if one["key"] not in keys]
    return {**seen, **hook, "namespaceSelector": {**there, "matchExpressions": [*ours, *added]}}


def bundle_in(seen: Manifest) -> bytes:
    """Return what a configuration trusts, in PEM, b"" for nothing that can be read."""
    hooks = seen.get("webhooks") or [{}]
    try:
        return b64decode(hooks[0].get("clientConfig", {}).get("caBundle") or "", validate=True)
    except ValueError:
        return b""


def bundle(mine: Iterable[bytes], present: bytes, dropped: Collection[bytes], now: datetime) -> bytes:
    """Return what to trust, in PEM: all of `mine`, and of what is `present` the newest that still hold.

    `mine` and `dropped` are PEM with any number of certificates; those that are dropped are shown by nobody any more.
    Where nothing is missing and nothing too much, it is `present` to the byte, so that two engines come to rest.
    """
    own = list(dict.fromkeys(one for pem in mine for one in certificates_in(pem)))
    gone = {one for pem in dropped for one in certificates_in(pem)} - set(own)
    there = certificates_in(present)
    others = [one for one in there if one not in own and one not in gone and one.not_valid_after_utc > now]
    kept = sorted(others, key=lambda one: one.not_valid_before_utc, reverse=True)[:_OTHERS]
    if set(there) == {*own, *kept}:
        return present
    return b"".join(one.public_bytes(Encoding.PEM) for one in (*own, *kept))


def certificates_in(pem: bytes) -> list[x509.Certificate]:
    """Read the certificates of a PEM text, none where it has none."""
    try:
        return x509.load_pem_x509_certificates(pem)
    except ValueError:
        return []


def _client(webhook: Webhook) -> dict[str, Any]:
    """Return where the apiserver is to call."""
    if webhook.service is None:
        return {"url": address_of(webhook)}
    service = {"namespace": webhook.service.namespace, "name": webhook.service.name, "path": PATH, "port": _PORT}
    return {"service": service}
