"""What is told where a Secret that keeps a pod is refused: the cluster's words, unless they quote what is secret."""

from base64 import b64encode
from typing import Any

import orjson
import pytest
from worldkit import OWNER_HERE, A, put, upper_pod, world

from tensile.errors import Denied
from tensile.kube.cluster import Patch
from tensile.objects import Manifest
from tensile.policy.descheduler.replacement import backup, successor_of
from tensile.reconcile.plan import Step
from tensile.reconcile.redaction import UNTOLD, redact_error

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
    """Make the step that keeps a pod which somebody applied."""
    above = {
        "kind": "Pod",
        "metadata": {"namespace": "default"},
        "spec": {"containers": [{"args": ["s3cret-of-applied"]}]},
    }
    notes = {"note": SECRETS["annotation"], APPLIED: orjson.dumps(applied or above).decode()}
    pod = upper_pod(spec=SPEC, uid=uid, annotations=notes)
    here = world()
    wanted = backup(successor_of(pod, (A,)), put(here.lowers[A].upper_pods, pod), OWNER_HERE, "it moves")
    return Step("create", wanted.ref, "it moves", body=wanted.manifest)


def told(words: str, step: Step | None = None) -> str:
    """Return what is told where a cluster says this."""
    return redact_error(Denied(words, status=403, reason="Forbidden"), step or kept(), None).message


@pytest.mark.parametrize(
    "words",
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
def test_the_clusters_own_words_are_told(words: str) -> None:
    """What every pod says is in every sentence of a cluster, and no secret; nor is the Secret's own name."""
    step = kept()
    said = words.format(it=f'secrets "{step.ref.name}" is forbidden', name=step.ref.name)
    assert told(said, step) == said


@pytest.mark.parametrize("secret", SECRETS.values(), ids=SECRETS)
def test_what_may_be_secret_in_a_pod_is_not_told(secret: str) -> None:
    """Whole, cut off, or within the pod as a whole."""
    for quoted in (secret, secret[:8], orjson.dumps({"spec": [secret]}).decode()):
        assert told(f"no: {quoted} is not allowed") == UNTOLD


def test_the_pod_as_it_is_in_the_secret_is_not_told() -> None:
    """Encoded, which a program may show as well as anybody."""
    step = kept()
    assert step.body is not None
    data = step.body["data"]["pod.json"]
    for quoted in (data, data[:40], f'{{"data":{{"pod.json":"{data}"}}}}'):
        assert told(f"no: {quoted}", step) == UNTOLD


def test_what_the_secret_is_known_to_hold_is_not_told_either() -> None:
    """A note that is refused says nothing of the pod itself."""
    step = kept()
    here = world()
    put(here.upper.secrets, {**(step.body or {}), "metadata": {**(step.body or {})["metadata"], "uid": "secret"}})
    note = Patch("merge-patch", {"metadata": {"uid": "secret", "annotations": {"a": "b"}}})
    refused = Denied(f"no: {SECRETS['environment']}", status=403, reason="Forbidden")
    assert redact_error(refused, Step("patch", step.ref, "why", patch=note), here.upper.secrets).message == UNTOLD


def test_the_clusters_own_words_about_a_backup_that_is_brought_up_to_date_are_told() -> None:
    """What the patch carries is a pod, too, though it does not say so itself."""
    step, here = kept(), world()
    put(here.upper.secrets, {**(step.body or {}), "metadata": {**(step.body or {})["metadata"], "uid": "secret"}})
    data = (step.body or {})["data"]["pod.json"]
    patch = Patch("json-patch", [{"op": "replace", "path": "/data/pod.json", "value": data}])
    changed = Step("patch", step.ref, "why", patch=patch)
    for words, said in (
        (f"{HOOK}: containers of namespace default are not allowed", None),
        (f"no: {SECRETS['header']}", UNTOLD),
    ):
        refused = Denied(words, status=403, reason="Forbidden")
        assert redact_error(refused, changed, here.upper.secrets).message == (said or words)


@pytest.mark.parametrize(
    "applied",
    [
        {"kind": "Pod"},
        {"kind": "Pod", "metadata": [], "spec": "none"},
        {"kind": "Pod", "metadata": {"annotations": {"a": 7, "b": [SECRETS["argument"]]}}, "spec": None},
    ],
)
def test_an_annotation_that_only_looks_like_a_pod_hides_nothing(applied: Any) -> None:
    """Anybody may write one."""
    assert told(f"no: {SECRETS['argument']}", kept(applied)) == UNTOLD
    assert told("exceeded quota", kept(applied)) == "exceeded quota"


def test_a_pod_nested_too_deeply_breaks_nothing() -> None:
    """JSON allows for more than functions that call themselves."""
    text = '{"kind":"Pod","spec":' + '{"value":' * 900 + '"deep-secret"' + "}" * 901
    assert told("no: deep-secret", kept(orjson.Fragment(text))) == UNTOLD


@pytest.mark.parametrize("content", ["no pod, s3cret-of-nobody", '["s3cret-of-nobody"]', '{"kind":"s3cret-of-nobody"}'])
def test_what_is_no_pod_is_looked_for_whole(content: str) -> None:
    """Somebody else may have written a Secret of that type."""
    step = kept()
    assert step.body is not None
    step.body["data"] = {"pod.json": b64encode(content.encode()).decode()}
    assert told("no: s3cret-of-nobody", step) == UNTOLD
