"""The MutatingWebhookConfiguration: which pods are sent to the webhook, at which address, and the CA bundle.

Creations of pods must never fail or wait for long because of the webhook. So only pods that opted in are sent, the
timeout is three seconds, and the failure policy is Ignore. Certificates overlap, also when several engines serve one
Service: a new certificate is published before it is served, and an old one stays until it is no longer served.
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
"""The name of the only webhook in the configuration."""
TIMEOUT_SECONDS = 3
PATH = "/mutate"
_PORT = 443
_OTHERS = 15
"""Maximum of certificates of other engines, running or gone, kept in the bundle; the newest are kept.

An engine cannot know which others still run. The limit covers the engines that serve one Service plus many restarts;
with a lower one, a long-running engine would not be trusted until its next check.
"""


def ref_of(topology: Topology) -> Ref:
    """Return the ref of a topology's configuration; two topologies in one upper cluster have one each."""
    return Ref(UPPER, MUTATING_WEBHOOK, "", f"tensile-{topology.name}")


def names_of(webhook: Webhook) -> tuple[str, ...]:
    """Return the DNS names or addresses of the webhook; a serving certificate must cover the first."""
    if webhook.service is not None:
        host = f"{webhook.service.name}.{webhook.service.namespace}.svc"
        return host, f"{host}.cluster.local"
    return (urlsplit(webhook.url or "").hostname or "localhost",)


def address_of(webhook: Webhook) -> str:
    """Return the URL at which the apiserver calls the webhook."""
    return webhook.url or f"https://{names_of(webhook)[0]}:{_PORT}{PATH}"


def proxied(service: ServiceRef) -> str:
    """Return the name under which an apiserver proxies requests by TLS to a pod of the Service."""
    return f"https:{service.name}:{_PORT}"


def configuration(topology: Topology, owner: Owner, bundle: bytes, own_namespace: str = "") -> Manifest:
    """Return the configuration as the API stores it; `bundle` is the CA bundle in PEM."""
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
    """Return the patch that corrects a configuration of ours, None if it is correct; additions of others stay.

    Some clouds add namespaces of their own to the excluded ones, and add them again whenever they are removed.
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
    """Return the patch that sets only the CA bundle of a configuration of ours, None if it is equal already."""
    if not seen.get("webhooks") or bundle_in(seen) == trusted:
        return None
    hook, *others = seen["webhooks"]
    client = {**hook.get("clientConfig", {}), "caBundle": b64encode(trusted).decode()}
    return Patch("merge-patch", {"metadata": as_read(seen), "webhooks": [{**hook, "clientConfig": client}, *others]})


def _laid_over(seen: Manifest, hook: Manifest) -> Manifest:
    """Return a webhook entry with ours applied; unknown fields and exclusions added by others stay."""
    ours: list[Manifest] = hook["namespaceSelector"]["matchExpressions"]
    there: Manifest = seen.get("namespaceSelector") or {}
    keys = {one["key"] for one in ours}
    added = [one for one in there.get("matchExpressions") or () if one["key"] not in keys]
    return {**seen, **hook, "namespaceSelector": {**there, "matchExpressions": [*ours, *added]}}


def bundle_in(seen: Manifest) -> bytes:
    """Return the CA bundle of a configuration in PEM, b"" if it has none or an unreadable one."""
    hooks = seen.get("webhooks") or [{}]
    try:
        return b64decode(hooks[0].get("clientConfig", {}).get("caBundle") or "", validate=True)
    except ValueError:
        return b""


def bundle(mine: Iterable[bytes], present: bytes, dropped: Collection[bytes], now: datetime) -> bytes:
    """Return the CA bundle in PEM: all of `mine`, and the newest of the `present` ones that have not expired.

    `mine` and `dropped` are PEM with any number of certificates; no engine serves those in `dropped` any more. If the
    set of certificates does not change, `present` is returned unchanged, so that two engines do not overwrite each
    other.
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
    """Return the certificates of a PEM text, an empty list if it has none."""
    try:
        return x509.load_pem_x509_certificates(pem)
    except ValueError:
        return []


def _client(webhook: Webhook) -> dict[str, Any]:
    """Return the clientConfig of the webhook without the CA bundle."""
    if webhook.service is None:
        return {"url": address_of(webhook)}
    service = {"namespace": webhook.service.namespace, "name": webhook.service.name, "path": PATH, "port": _PORT}
    return {"service": service}
