"""The webhook's objects in the upper cluster: its MutatingWebhookConfiguration, and the Secret with its certificates.

Creations of pods must never fail or wait for long because of the webhook. So only pods that opted in are sent, the
timeout is three seconds, the failure policy is Ignore, and it is registered only once it has answered a test call at
its address.

Only the leader writes, as other engines may be set up differently. What is not ours under our name stays as it is.
"""

import ssl
from base64 import b64decode, b64encode
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime
from http import HTTPStatus
from urllib.parse import urlsplit
from uuid import uuid4

import aiohttp
import orjson
import structlog

from tensile.errors import AlreadyExists, ClusterError, Conflict, NotFound, TensileError
from tensile.kube.aio import beginning
from tensile.kube.cluster import Cluster, Patch, read_or_none
from tensile.kube.tls import TLSMaterial, context
from tensile.names import PREFIX, VIRTUAL_POD, Owner
from tensile.objects import MUTATING_WEBHOOK, SECRET, UPPER, Manifest, Ref, annotations, as_read, labels, metadata
from tensile.policy.webhook.certificates import certificates_of, ensure_current, secret
from tensile.policy.webhook.review import VERSIONS
from tensile.reconcile.ownership import is_ours
from tensile.reconcile.pods.scheduling import left_alone
from tensile.reconcile.redaction import redact
from tensile.topology import ServiceRef, Topology, Webhook

HOOK = f"pods.{PREFIX.rstrip('/')}"
"""The name of the only webhook in the configuration."""
TIMEOUT_SECONDS = 3
PATH = "/mutate"
_PORT = 443
_CALL_SECONDS = 5.0
MAX_BODY = 3 * 1024 * 1024
"""Maximum bytes of a body: as much as an apiserver accepts from a client."""
_log = structlog.get_logger("tensile.webhook")


class ForeignRegistration(TensileError):
    """The configuration or the Secret of our name is not ours."""


def ref_of(topology: Topology) -> Ref:
    """Return the ref of a topology's configuration; two topologies in one upper cluster have one each."""
    return Ref(UPPER, MUTATING_WEBHOOK, "", f"tensile-{topology.name}")


def secret_ref(topology: Topology, own_namespace: str = "") -> Ref | None:
    """Return the ref of the Secret with the webhook's certificates, None for an engine outside of a cluster.

    It is in the namespace of the webhook's Service, else in the engine's own: a Service selects pods of its namespace,
    so these are the same. Whoever controls that of the Service decides where the calls go.
    """
    service = topology.webhook.service
    namespace = service.namespace if service else own_namespace
    return Ref(UPPER, SECRET, namespace, f"tensile-webhook-{topology.name}") if namespace else None


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
    excluded = sorted(left_alone(topology, own_namespace))
    other_namespaces = {"key": "kubernetes.io/metadata.name", "operator": "NotIn", "values": excluded}
    service = topology.webhook.service
    client: Manifest = {"url": address_of(topology.webhook)}
    if service is not None:
        client = {"service": {"namespace": service.namespace, "name": service.name, "path": PATH, "port": _PORT}}
    hook = {
        "name": HOOK,
        "clientConfig": {**client, "caBundle": b64encode(bundle).decode()},
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
        "namespaceSelector": {"matchExpressions": [other_namespaces]},
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


def configuration_patch(seen: Manifest, wanted: Manifest) -> Patch | None:
    """Return the patch that corrects a configuration of ours, None if it is correct; additions of others stay.

    Some clouds add namespaces of their own to the excluded ones, and add them again whenever they are removed.
    """
    marks = metadata(wanted)
    is_marked = marks["labels"].items() <= labels(seen).items()
    is_marked = is_marked and marks["annotations"].items() <= annotations(seen).items()
    known = {hook.get("name"): hook for hook in seen.get("webhooks") or ()}
    hooks = [_merged_hook(known.get(hook["name"]) or {}, hook) for hook in wanted["webhooks"]]
    if is_marked and seen.get("webhooks") == hooks:
        return None
    sections = {section: marks[section] for section in ("labels", "annotations")}
    return Patch("merge-patch", {"metadata": {**as_read(seen), **sections}, "webhooks": hooks})


def _merged_hook(seen: Manifest, hook: Manifest) -> Manifest:
    """Return a webhook entry with ours applied; unknown fields and exclusions added by others stay."""
    ours: list[Manifest] = hook["namespaceSelector"]["matchExpressions"]
    selector: Manifest = seen.get("namespaceSelector") or {}
    keys = {one["key"] for one in ours}
    added = [one for one in selector.get("matchExpressions") or () if one["key"] not in keys]
    return {**seen, **hook, "namespaceSelector": {**selector, "matchExpressions": [*ours, *added]}}


def bundle_in(seen: Manifest) -> bytes:
    """Return the CA bundle of a configuration in PEM, b"" if it has none or an unreadable one."""
    hooks = seen.get("webhooks") or [{}]
    try:
        return b64decode(hooks[0].get("clientConfig", {}).get("caBundle") or "", validate=True)
    except ValueError:
        return b""


def check_owner(ref: Ref, seen: Manifest, owner: Owner) -> Manifest:
    """Return an object of our name; raises ForeignRegistration if it is not ours."""
    if is_ours(seen, owner):
        return seen
    raise ForeignRegistration(
        f"{ref} belongs to another owner and is left unchanged: delete it, or rename the topology"
    )


class WebhookRegistration:
    """Writes both objects, as the leader; raises ClusterError, and ForeignRegistration for objects that are not ours.

    `namespace` is where this process runs, "" outside a cluster.
    """

    def __init__(self, upper: Cluster, owner: Owner, namespace: str) -> None:
        self._upper = upper
        self._owner = owner
        self._namespace = namespace
        self._reached_settings: Webhook | None = None
        """The settings with which the webhook has answered."""

    async def keep_certificates(self, ref: Ref, names: Sequence[str], now: datetime) -> bytes:
        """Create the Secret, or renew what is due in it; return it as stored."""
        seen = await self._read(ref)
        known = certificates_of(seen) if seen else None
        wanted = ensure_current(known, names, now)
        if seen and wanted is known:
            return orjson.dumps(seen)
        manifest = secret(ref, self._owner, wanted)
        patch = Patch("merge-patch", {"metadata": as_read(seen), "data": manifest["data"]}) if seen else None
        try:
            stored = await self._write(ref, manifest, patch)
        except ClusterError as error:
            raise redact(error, ref, [manifest, seen or {}]) from None
        _log.info("the webhook has a new certificate", secret=f"{ref.namespace}/{ref.name}")
        return stored

    async def register(self, topology: Topology, trusted: bytes) -> None:
        """Register the webhook as the topology says, once it answers at its address; raises TensileError until then."""
        ref, webhook = ref_of(topology), topology.webhook
        seen = await self._read(ref)
        if self._reached_settings != webhook:
            await call(address_of(webhook), trusted)
            self._reached_settings = webhook
        wanted = configuration(topology, self._owner, trusted, self._namespace)
        patch = configuration_patch(seen, wanted) if seen else None
        if seen is None or patch is not None:
            await self._write(ref, wanted, patch)
            _log.info("the webhook is registered", name=ref.name, address=address_of(webhook))

    async def unregister(self, topology: Topology) -> None:
        """Delete both objects as far as they are ours."""
        self._reached_settings = None
        for ref in filter(None, (ref_of(topology), secret_ref(topology, self._namespace))):
            with suppress(ForeignRegistration, NotFound):
                if (seen := await self._read(ref)) is not None:
                    read = as_read(seen)
                    await self._upper.delete(ref, uid=read["uid"], version=read["resourceVersion"])
                    _log.info("deleted: the webhook is not enabled", kind=ref.kind.name, name=ref.name)

    async def _read(self, ref: Ref) -> Manifest | None:
        """Return an object of ours, None for none."""
        found = await read_or_none(self._upper, ref)
        return None if found is None else check_owner(ref, found, self._owner)

    async def _write(self, ref: Ref, wanted: Manifest, patch: Patch | None) -> bytes:
        """Patch the object, or create it if there is no patch; return it as stored."""
        try:
            return await (self._upper.patch(ref, patch) if patch else self._upper.create(ref, wanted))
        except AlreadyExists as error:
            raise Conflict(error.message) from None


async def call(url: str, trusted: bytes) -> None:
    """Have a webhook review a pod that does not exist, trusting only the given certificates.

    Raises TensileError with what went wrong.
    """
    uid = str(uuid4())
    request = {"uid": uid, "kind": {"kind": "Pod"}, "operation": "CREATE", "object": {"metadata": {}, "spec": {}}}
    review = {"apiVersion": f"admission.k8s.io/{VERSIONS[0]}", "kind": "AdmissionReview", "request": request}
    tls = context(TLSMaterial(authority=trusted), "the webhook's certificate")
    tls.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    timeout = aiohttp.ClientTimeout(total=_CALL_SECONDS)
    try:
        async with (
            aiohttp.ClientSession(timeout=timeout, trust_env=False) as session,
            session.post(url, data=orjson.dumps(review), ssl=tls, allow_redirects=False) as response,
        ):
            status, body = response.status, await beginning(response.content, MAX_BODY)
    except aiohttp.ClientConnectorCertificateError as error:
        raise TensileError(f"{url}: {error.certificate_error}") from None
    except (aiohttp.ClientError, OSError, ValueError) as error:
        cause = error.os_error if isinstance(error, aiohttp.ClientConnectorError) else error
        raise TensileError(f"{url}: {str(cause) or type(cause).__name__}") from None
    try:
        found = orjson.loads(body)["response"]
        is_answer = status == HTTPStatus.OK and found["uid"] == uid and found["allowed"]
    except (orjson.JSONDecodeError, KeyError, TypeError):
        is_answer = False
    if not is_answer:
        raise TensileError(f"{url}: the response is not from this webhook (HTTP {status})")
