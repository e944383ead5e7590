"""The rule for tokens of the upper cluster: issued last before their pod, renewed in time, deleted with the pod.

Each token is bound to the upper pod and invalid once that is gone; the Secret that holds it is deleted with the lower
pod. Like a kubelet, the rule renews a token when a fifth of its lifetime is left. It does so while the lower pod runs,
even if the topology has changed, because a running pod keeps the identity that it was created with.
"""

from base64 import b64encode
from collections.abc import Iterable, Iterator
from datetime import timedelta
from typing import NamedTuple

from tensile.kube.store import Delta, Entry
from tensile.kubelet.pods import service_account
from tensile.kubelet.pods.service_account import (
    CA,
    NAMESPACE,
    PUBLISHED_CA,
    ProjectedToken,
    projected_tokens,
    secret_name,
    uses_tokens,
)
from tensile.names import TOKEN_POD, UPPER_UID, Owner, ProblemReason
from tensile.objects import POD, SECRET, SERVICE_ACCOUNT, UPPER, Manifest, Ref, metadata
from tensile.reconcile.apply import term_of
from tensile.reconcile.desired import Absent, Decision, EmitEvent, TokenRequest, TokenSecret, Wanted, Watch
from tensile.reconcile.ownership import has_node, is_of, is_ours, others_wrote
from tensile.reconcile.pods.index import is_own_lower_pod, needs_lower_pod
from tensile.reconcile.world import Key, LowerWorld, Problem, World

NAME = "token"
RENEWED_AT = 0.8
"""The part of a token's lifetime after which it is renewed."""
_MIN_RENEWAL = timedelta(minutes=1)
"""Minimum time between renewals, however short the lifetime that an apiserver grants."""
UPPER_CA_NOT_FOUND: ProblemReason = "UpperCANotFound"
"""With `serviceAccounts.identity: upper`: the namespace has no ConfigMap `kube-root-ca.crt` with the CA of the upper
cluster. Remedy: wait for kube-controller-manager, which creates it in each namespace."""
_API = "authentication.k8s.io/v1"


class _HeldByPod(NamedTuple):
    """What exists for a pod in the lower cluster: its lower pod, if ours, and the Secrets with tokens for its name.

    `namespace` is the lower one. The lower pod may be that of an earlier upper pod, which keeps its tokens.
    """

    pod: Entry | None
    namespace: str
    secrets: tuple[Entry, ...]


def key_of(lower: str, namespace: str, pod: str) -> Key:
    """Return the key of the tokens of a pod, by its upper namespace and name."""
    return Key(NAME, lower, namespace, pod)


def missing(lower: LowerWorld, upper_pod: Manifest, owner: Owner) -> list[Key]:
    """Return the key of the tokens that a pod without a lower pod has to wait for; [] for none."""
    if lower.spec.service_accounts.identity != "upper" or not projected_tokens(upper_pod["spec"]):
        return []
    meta = metadata(upper_pod)
    held = lower.secrets.get(lower.namespace(meta["namespace"]), secret_name(meta["uid"]))
    is_current = held is not None and (held.facts.owner, held.facts.upper_uid) == (owner.mark, meta["uid"])
    return [] if is_current else [key_of(lower.name, meta["namespace"], meta["name"])]


class TokenRule:
    """The rule with one key for each pod that mounts tokens of the upper cluster in a lower one, or will."""

    name = NAME

    def watches(self) -> tuple[Watch, ...]:
        """Watch pods on both sides, the lower Secrets, and the upper cluster's CA."""
        return (
            Watch("upper_pods", _on_upper_pod, facts=("terminal", "terminating", "daemon")),
            Watch("pods", _on_lower_pod, facts=("terminal", "owner", "upper_uid")),
            Watch("secrets", _on_secret),
            Watch("upper.config_maps", _on_authority),
        )

    def keys(self, world: World, lower: str) -> Iterator[Key]:
        """Yield the keys of every pod if pods get such tokens, and of every Secret with tokens."""
        lower_world = world.lowers[lower]
        found = {
            key for entry in lower_world.secrets if entry.facts.token for key in _keys_of_secret(lower_world, entry)
        }
        if lower_world.spec.service_accounts.identity == "upper":
            found |= {key_of(lower, entry.namespace, entry.name) for entry in lower_world.upper_pods}
        yield from sorted(found)

    def decide(self, key: Key, world: World) -> Decision:
        """Delete tokens that are no longer used; have needed tokens issued or renewed.

        Do nothing while the lower cluster does not answer: each attempt would issue a token that cannot be stored.
        """
        lower = world.lowers[key.lower]
        if not lower.settled or lower.unreachable_seconds:
            return Decision()
        held = _held_by_pod(key, lower, world)
        upper = _pod_with_tokens(key, held, lower, world)
        ended = tuple(_unused_secrets(upper, held, lower, world))
        if upper is None:
            return Decision(ended)
        if held.pod is None or held.pod.facts.upper_uid != upper.uid:
            awaited = service_account.missing_keys(key.namespace, upper.facts.references, lower, world)
            if awaited or held.pod is not None or service_account.creation_problem(upper.manifest()):
                return Decision(ended, tuple(awaited))
        decision = _issued(upper.manifest(), held, lower, world)
        return decision._replace(wanted=(*ended, *decision.wanted))


def _held_by_pod(key: Key, lower: LowerWorld, world: World) -> _HeldByPod:
    """Return what exists for a pod; nothing in a namespace that is not for the pod's own."""
    namespace = lower.namespace(key.namespace)
    if not lower.upper_namespace(namespace):
        return _HeldByPod(None, namespace, ())
    entry = lower.pods.get(namespace, key.name)
    ours = entry if entry is not None and is_own_lower_pod(entry, world.owner) else None
    return _HeldByPod(ours, namespace, lower.secrets.select("pod", (namespace, key.name)))


def _pod_with_tokens(key: Key, held: _HeldByPod, lower: LowerWorld, world: World) -> Entry | None:
    """Return the upper pod if its lower pod uses tokens of the upper cluster, or will."""
    upper = lower.upper_pods.get(key.namespace, key.name)
    if upper is None or upper.facts.terminal or not projected_tokens(upper.manifest()["spec"]):
        return None
    if held.pod is not None and held.pod.facts.upper_uid == upper.uid:
        return upper if not held.pod.facts.terminal and uses_tokens(held.pod.manifest(), upper.uid) else None
    if not needs_lower_pod(upper, world.topology.exclude_namespaces):
        return None
    is_taken = lower.foreign_pods.get(lower.namespace(key.namespace), key.name) is not None
    if is_taken or upper.facts.terminating or upper.facts.ran or not (lower.in_topology and has_node(lower, world)):
        return None
    return upper if lower.spec.service_accounts.identity == "upper" else None


def _unused_secrets(upper: Entry | None, held: _HeldByPod, lower: LowerWorld, world: World) -> Iterator[Absent]:
    """Yield the deletion of Secrets whose pod neither exists nor will be created."""
    for secret in held.secrets:
        is_needed = upper is not None and upper.uid == secret.facts.token.uid
        is_used = held.pod is not None and held.pod.facts.upper_uid == secret.facts.token.uid
        if not (is_needed or is_used) and is_ours(secret.manifest(), world.owner):
            ref = Ref(lower.name, SECRET, secret.namespace, secret.name)
            yield Absent(ref, secret.uid, "the pod that used its tokens is gone")


def _issued(pod: Manifest, held: _HeldByPod, lower: LowerWorld, world: World) -> Decision:
    """Return the tokens to issue for a pod when there are none or they have to be renewed."""
    meta = metadata(pod)
    authority = _authority_of(world, meta["namespace"])
    if not authority:
        message = f"ConfigMap {meta['namespace']}/{PUBLISHED_CA} with the CA of the upper cluster does not exist"
        return Decision(problem=Problem(UPPER_CA_NOT_FOUND, message))
    tokens, name = projected_tokens(pod["spec"]), secret_name(meta["uid"])
    ref = Ref(lower.name, SECRET, held.namespace, name)
    secret = next((one.manifest() for one in held.secrets if (one.namespace, one.name) == (ref.namespace, name)), None)
    manifest = _secret_of(pod, tokens, authority, ref, world)
    seconds_valid = _seconds_valid(secret, manifest, world)
    if seconds_valid > 0:
        return Decision(requeue_after=seconds_valid)
    reason = f"pod {meta['name']} uses tokens of the upper cluster" if secret is None else "its tokens expire soon"
    account = Ref(UPPER, SERVICE_ACCOUNT, meta["namespace"], pod["spec"].get("serviceAccountName") or "default")
    requests = tuple(TokenRequest(token.entry, _request(token, meta)) for token in tokens)
    token_secret: Wanted = TokenSecret(ref, account, requests, manifest, reason)
    return Decision((token_secret, *_renewal_events(pod, lower, world, runs=secret is not None)))


def _renewal_events(pod: Manifest, lower: LowerWorld, world: World, *, runs: bool) -> Iterator[EmitEvent]:
    """Yield an event why a running pod's tokens are not renewed; for a waiting pod its status says so."""
    meta = metadata(pod)
    refusal = world.problems.get(key_of(lower.name, meta["namespace"], meta["name"]))
    if runs and refusal is not None:
        ref = Ref(UPPER, POD, meta["namespace"], meta["name"])
        message = f"the pod's tokens of the upper cluster cannot be renewed and will expire: {refusal.message}"
        yield EmitEvent(ref, meta["uid"], refusal.reason, message)


def _seconds_valid(secret: Manifest | None, wanted: Manifest, world: World) -> float:
    """Return for how many seconds a Secret is valid as it is; 0 or less when it has to be written."""
    lifetime = None if secret is None else term_of(secret)
    if (
        secret is None
        or lifetime is None
        or not is_of(secret, world.owner, wanted["metadata"]["annotations"][UPPER_UID])
    ):
        return 0.0
    data, wanted_data = secret.get("data") or {}, wanted["data"]
    is_complete = data.keys() == wanted_data.keys() and all(
        data[name] == value for name, value in wanted_data.items() if value
    )
    is_tampered = lifetime.since > world.now + _MIN_RENEWAL or any(
        others_wrote(secret, ("f:data", f"f:{name}")) for name in wanted_data
    )
    if is_tampered or not is_complete:
        return 0.0
    due = max(lifetime.time_at(RENEWED_AT), lifetime.since + _MIN_RENEWAL)
    return (due - world.now).total_seconds()


def _secret_of(pod: Manifest, tokens: Iterable[ProjectedToken], authority: str, ref: Ref, world: World) -> Manifest:
    """Return the Secret, with "" for each token."""
    meta = metadata(pod)
    return {
        "apiVersion": SECRET.api,
        "kind": SECRET.name,
        "metadata": {
            "name": ref.name,
            "namespace": ref.namespace,
            "labels": world.owner.label,
            "annotations": world.owner.signed(meta["uid"]) | {TOKEN_POD: meta["name"]},
        },
        "type": "Opaque",
        "data": {
            CA: b64encode(authority.encode()).decode(),
            NAMESPACE: b64encode(meta["namespace"].encode()).decode(),
        }
        | {token.entry: "" for token in tokens},
    }


def _request(token: ProjectedToken, pod: Manifest) -> Manifest:
    """Return a TokenRequest that is bound to the pod of that UID."""
    bound = {"apiVersion": POD.api, "kind": POD.name, "name": pod["name"], "uid": pod["uid"]}
    audiences = {"audiences": [token.audience]} if token.audience else {}
    spec = {**audiences, "expirationSeconds": token.seconds, "boundObjectRef": bound}
    return {"apiVersion": _API, "kind": "TokenRequest", "spec": spec}


def _authority_of(world: World, namespace: str) -> str:
    """Return the CA certificates that pods use to verify the upper apiserver."""
    found = world.upper.config_maps.get(namespace, PUBLISHED_CA)
    return str((found.manifest().get("data") or {}).get(CA, "")) if found is not None else ""


def _keys_of_secret(lower: LowerWorld, secret: Entry) -> Iterator[Key]:
    return _keys_of_entry(lower, secret, secret.facts.token.pod)


def _keys_of_entry(lower: LowerWorld, entry: Entry, pod: str) -> Iterator[Key]:
    """Yield the key that an object in a lower namespace belongs to, if that namespace is for an upper one."""
    for namespace in lower.upper_namespaces_of(entry.namespace):
        yield key_of(lower.name, namespace, pod)


def _has_tokens(lower: LowerWorld, namespace: str, pod: str) -> bool:
    """Report whether pods of that name, in a lower namespace, have or get tokens of the upper cluster."""
    return lower.spec.service_accounts.identity == "upper" or lower.secrets.count("pod", (namespace, pod)) > 0


def _on_upper_pod(world: World, lower: str, delta: Delta) -> Iterator[Key]:
    lower_world, entry = world.lowers[lower], delta.entry
    if _has_tokens(lower_world, lower_world.namespace(entry.namespace), entry.name):
        yield key_of(lower, entry.namespace, entry.name)


def _on_lower_pod(world: World, lower: str, delta: Delta) -> Iterator[Key]:
    lower_world, entry = world.lowers[lower], delta.entry
    if _has_tokens(lower_world, entry.namespace, entry.name):
        yield from _keys_of_entry(lower_world, entry, entry.name)


def _on_secret(world: World, lower: str, delta: Delta) -> Iterator[Key]:
    found = (one for one in delta if one is not None and one.facts.token is not None)
    yield from dict.fromkeys(key for one in found for key in _keys_of_secret(world.lowers[lower], one))


def _on_authority(world: World, lower: str, delta: Delta) -> Iterator[Key]:
    """Yield the key of every pod in a namespace whose CA changed."""
    lower_world, entry = world.lowers[lower], delta.entry
    if entry.name == PUBLISHED_CA:
        for pod in lower_world.upper_pods.select("namespace", entry.namespace):
            if _has_tokens(lower_world, lower_world.namespace(entry.namespace), pod.name):
                yield key_of(lower, entry.namespace, pod.name)
