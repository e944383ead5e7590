"""Tests of errors about refused backup Secrets: the apiserver's message is reported unless it quotes secret values."""

from base64 import b64encode
from typing import Any

import orjson
import pytest
from worldkit import OWNER_HERE, A, make_upper_pod, make_world, put

from tensile.errors import Denied
from tensile.kube.cluster import Patch
from tensile.objects import Manifest
from tensile.policy.descheduler.replacement import backup, successor_of
from tensile.reconcile.plan import Step
from tensile.reconcile.redaction import OMITTED, redact_error

APPLIED = "kubectl.kubernetes.io/last-applied-configuration"
USER = "system:serviceaccount:kube-system:tensile"
HOOK = 'admission webhook "policy.example.com" denied the request'
SECRETS = {
    "environment": "s3cret-of-environment",
    "argument": "s3cret-of-argument",
    "command": "s3cret-of-command",
    "first": "s3cret-of-first-container",
    "header": "s3cret-of-header",
    "volume": "s3cret-of-volume",
    "annotation": "s3cret-of-annotation",
    "applied": "s3cret-of-applied",
}
PROBE = {"httpGet": {"port": 80, "httpHeaders": [{"name": "Authorization", "value": SECRETS["header"]}]}}
SPEC: Manifest = {
    "nodeName": A,
    "serviceAccountName": "default",
    "containers": [
        {
            "name": "main",
            "image": "registry.example.com/exceeded/quota:1",
            "command": ["run", f"--key={SECRETS['command']}"],
            "args": ["--namespace=default", SECRETS["argument"]],
            "env": [{"name": "PASSWORD", "value": SECRETS["environment"]}, {"name": "WHERE", "value": "default"}],
            "livenessProbe": PROBE,
        }
    ],
    "initContainers": [{"name": "first", "image": "first", "env": [{"name": "KEY", "value": SECRETS["first"]}]}],
    "volumes": [{"name": "inline", "csi": {"driver": "d", "volumeAttributes": {"token": SECRETS["volume"]}}}],
    "tolerations": [{"key": "virtual-kubelet.io/provider", "value": "tensile", "operator": "Equal"}],
}


def kept(applied: Any = None, uid: str = "5f0c1d2e-0000-4000-8000-1234567890ab") -> Step:
    """Return the step that creates the backup of a pod with a last-applied annotation."""
    upper_object = {
        "kind": "Pod",
        "metadata": {"namespace": "default"},
        "spec": {"containers": [{"args": ["s3cret-of-applied"]}]},
    }
    notes = {"note": SECRETS["annotation"], APPLIED: orjson.dumps(applied or upper_object).decode()}
    pod = make_upper_pod(spec=SPEC, uid=uid, annotations=notes)
    world = make_world()
    wanted = backup(successor_of(pod, (A,)), put(world.lowers[A].upper_pods, pod), OWNER_HERE, "it moves")
    return Step("create", wanted.ref, "it moves", body=wanted.manifest)


def redacted(message: str, step: Step | None = None) -> str:
    """Return the reported message for an apiserver's error message."""
    return redact_error(Denied(message, status=403, reason="Forbidden"), step or kept(), None).message


@pytest.mark.parametrize(
    "template",
    [
        "{it}: exceeded quota: few, requested: secrets=1, used: secrets=1, limited: secrets=1",
        "{it}: exceeded quota: few, requested: count/secrets=1, used: count/secrets=1, limited: count/secrets=1",
        "{it}: unable to create new content in namespace default because it is being terminated",
        f'secrets is forbidden: User "{USER}" cannot create resource "secrets" in the namespace "default"',
        'namespaces "default" not found',
        f"{HOOK}: Secret default/{{name}} of type tensile-kube.io/pod has no label team",
        f"{HOOK}: containers, metadata and apiVersion are not allowed",
    ],
)
def test_messages_without_secret_values_are_reported_unchanged(template: str) -> None:
    """Common words of every pod and the Secret's own name are not secret."""
    step = kept()
    message = template.format(it=f'secrets "{step.ref.name}" is forbidden', name=step.ref.name)
    assert redacted(message, step) == message


@pytest.mark.parametrize("secret", SECRETS.values(), ids=SECRETS)
def test_messages_with_secret_values_of_the_pod_are_redacted(secret: str) -> None:
    """The value may be complete, truncated, or part of a quoted pod."""
    for quoted in (secret, secret[:8], orjson.dumps({"spec": [secret]}).decode()):
        assert redacted(f"no: {quoted} is not allowed") == OMITTED


def test_messages_with_the_encoded_pod_are_redacted() -> None:
    """The base64 data is as secret as the pod that it encodes."""
    step = kept()
    assert step.body is not None
    data = step.body["data"]["pod.json"]
    for quoted in (data, data[:40], f'{{"data":{{"pod.json":"{data}"}}}}'):
        assert redacted(f"no: {quoted}", step) == OMITTED


def test_messages_about_a_patched_annotation_are_redacted_by_the_stored_secret() -> None:
    """The patch itself does not contain the pod, so the Secret in the store is searched too."""
    step = kept()
    world = make_world()
    put(world.upper.secrets, {**(step.body or {}), "metadata": {**(step.body or {})["metadata"], "uid": "secret"}})
    note = Patch("merge-patch", {"metadata": {"uid": "secret", "annotations": {"a": "b"}}})
    refused = Denied(f"no: {SECRETS['environment']}", status=403, reason="Forbidden")
    assert redact_error(refused, Step("patch", step.ref, "why", patch=note), world.upper.secrets).message == OMITTED


def test_messages_about_a_backup_update_are_redacted_only_if_they_quote_the_pod() -> None:
    """A patch of the data contains a pod too, although its body does not have the Secret's type."""
    step, world = kept(), make_world()
    put(world.upper.secrets, {**(step.body or {}), "metadata": {**(step.body or {})["metadata"], "uid": "secret"}})
    data = (step.body or {})["data"]["pod.json"]
    patch = Patch("json-patch", [{"op": "replace", "path": "/data/pod.json", "value": data}])
    changed = Step("patch", step.ref, "why", patch=patch)
    for message, expected in (
        (f"{HOOK}: containers of namespace default are not allowed", None),
        (f"no: {SECRETS['header']}", OMITTED),
    ):
        refused = Denied(message, status=403, reason="Forbidden")
        assert redact_error(refused, changed, world.upper.secrets).message == (expected or message)


@pytest.mark.parametrize(
    "applied",
    [
        {"kind": "Pod"},
        {"kind": "Pod", "metadata": [], "spec": "none"},
        {"kind": "Pod", "metadata": {"annotations": {"a": 7, "b": [SECRETS["argument"]]}}, "spec": None},
    ],
)
def test_a_last_applied_annotation_that_is_no_real_pod_hides_no_secret(applied: Any) -> None:
    """Any client can write such an annotation, so the pod's own values are redacted and plain messages are not."""
    assert redacted(f"no: {SECRETS['argument']}", kept(applied)) == OMITTED
    assert redacted("exceeded quota", kept(applied)) == "exceeded quota"


def test_a_secret_in_a_deeply_nested_annotation_is_redacted() -> None:
    """JSON can be nested more deeply than recursive functions allow."""
    text = '{"kind":"Pod","spec":' + '{"value":' * 900 + '"deep-secret"' + "}" * 901
    assert redacted("no: deep-secret", kept(orjson.Fragment(text))) == OMITTED


@pytest.mark.parametrize("content", ["no pod, s3cret-of-no-pod", '["s3cret-of-no-pod"]', '{"kind":"s3cret-of-no-pod"}'])
def test_backup_content_that_is_no_pod_is_redacted_as_a_whole(content: str) -> None:
    """Another client may have written a Secret of that type."""
    step = kept()
    assert step.body is not None
    step.body["data"] = {"pod.json": b64encode(content.encode()).decode()}
    assert redacted("no: s3cret-of-no-pod", step) == OMITTED
