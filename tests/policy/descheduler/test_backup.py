"""Tests of the Secret that backs up a pod while it moves."""

from base64 import b64encode
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from properties import examples
from worldkit import A, make_upper_pod, make_world, put, with_managed_fields

from tensile.kube.store import Entry
from tensile.kubelet.pods.lower_context import LowerContext
from tensile.kubelet.pods.projection import to_lower_pod
from tensile.names import OWNER, REPLACES, UPPER_UID, WITHDRAWN
from tensile.objects import SECRET, UPPER, Manifest, Ref, annotations, labels
from tensile.policy.descheduler.replacement import (
    BACKUP,
    backup,
    backup_in,
    backup_of,
    backup_ref,
    is_backed_up,
    successor_of,
    uses_claims,
)
from tensile.policy.descheduler.targets import Targets
from tensile.reconcile.desired import Present
from tensile.reconcile.pods.scheduling import REQUIRED
from tensile.reconcile.world import World

PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"
NOT_HERE = {"key": "kubernetes.io/hostname", "operator": "NotIn", "values": ["vk"]}
META = {"name": "web", "namespace": "default", "annotations": {REPLACES: "Pod-web"}}
SPEC = {"containers": [{"name": "main", "image": "app:1"}]}
SUCCESSOR = {"apiVersion": "v1", "kind": "Pod", "metadata": META, "spec": SPEC}


def lower_context() -> LowerContext:
    """Return the context of a pod in a lower cluster."""
    return LowerContext(make_world().owner, "vk", "default", "uid", virtual_nodes=frozenset({"vk"}), identity="upper")


def kept(world: World, **meta: Any) -> Manifest:
    """Return the stored Secret that backs up the pod of lower-a."""
    pod = world.lowers[A].upper_pods.get("default", "web") or put(world.lowers[A].upper_pods, make_upper_pod())
    wanted = backup(SUCCESSOR, pod, world.owner, "it moves").manifest
    given = {**wanted["metadata"], "uid": "secret", **meta}
    return with_managed_fields({**wanted, "metadata": given})


def test_a_backup_is_an_owned_secret_named_by_the_pods_uid() -> None:
    """It is in the pod's namespace, and is an independent change, so that its refusal blocks no other backup."""
    world = make_world()
    pod = put(world.lowers[A].upper_pods, make_upper_pod())
    wanted = backup(SUCCESSOR, pod, world.owner, "it moves")
    assert isinstance(wanted, Present)
    assert wanted.independent
    assert wanted.ref == backup_ref("default", "Pod-web") == Ref(UPPER, SECRET, "default", BACKUP + "Pod-web")
    assert labels(wanted.manifest)[OWNER] == world.owner.mark
    assert annotations(wanted.manifest)[UPPER_UID] == "Pod-web"
    assert wanted.manifest["type"] == "tensile-kube.io/pod"


def test_a_backup_is_read_as_it_was_written() -> None:
    """It is found by the UID of the pod, which its name contains."""
    world = make_world()
    entry = put(world.upper.secrets, kept(world))
    found = backup_in(entry, world.owner)
    assert found is not None
    assert found == ("Pod-web", SUCCESSOR, None)
    pod = world.lowers[A].upper_pods.get("default", "web")
    assert pod is not None
    assert backup_of(pod, world) == found


@pytest.mark.parametrize(
    ("noted", "is_safe"), [({}, True), ({WITHDRAWN: "2026-03-01T12:00:00Z"}, False), ({WITHDRAWN: "lately"}, True)]
)
def test_a_pod_is_backed_up_only_by_a_current_backup_that_is_not_withdrawn(
    noted: dict[str, str],
    is_safe: bool,  # noqa: FBT001
) -> None:
    """A backup of another spec does not count; an invalid withdrawal time is ignored."""
    world = make_world()
    pod = put(world.lowers[A].upper_pods, make_upper_pod())
    assert not is_backed_up(pod, SUCCESSOR, world)
    put(world.upper.secrets, kept(world, annotations={**annotations(kept(world)), **noted}))
    assert is_backed_up(pod, SUCCESSOR, world) == is_safe
    assert not is_backed_up(pod, {**SUCCESSOR, "spec": {**SPEC, "priority": 1}}, world)


@pytest.mark.parametrize(
    "meta",
    [
        pytest.param({"name": "other"}, id="another name"),
        pytest.param({"labels": {OWNER: "f" * 16}}, id="another owner"),
        pytest.param({"managedFields": []}, id="another field manager"),
    ],
)
def test_secrets_of_another_name_owner_or_field_manager_are_no_backups(meta: Manifest) -> None:
    """Their content is ignored."""
    world = make_world()
    secret = kept(world)
    entry = put(world.upper.secrets, {**secret, "metadata": {**secret["metadata"], **meta}})
    assert backup_in(entry, world.owner) is None


def encoded(content: Any) -> str:
    """Encode the content of a backup Secret."""
    return b64encode(orjson.dumps(content)).decode()


@pytest.mark.parametrize(
    "content",
    [
        None,
        "no base64!",
        b64encode(b"no JSON").decode(),
        *map(encoded, ([], {}, None, 7, "pod")),
        *(encoded({**SUCCESSOR, "metadata": {**META, "namespace": other}}) for other in ("other", None, 7)),
        *(encoded({**SUCCESSOR, "metadata": {**META, "name": name}}) for name in ("", None, 7, ["web"], {"web": 1})),
        *(encoded({**SUCCESSOR, "metadata": {**META, "annotations": notes}}) for notes in ({}, None, [], "x", 7)),
        encoded({**SUCCESSOR, "metadata": {**META, "annotations": {REPLACES: "another"}}}),
        encoded({"metadata": META}),
        *(encoded({**SUCCESSOR, "spec": spec}) for spec in ({}, None, 7, ["containers"], "containers")),
        *(encoded({**SUCCESSOR, "spec": {"containers": of}}) for of in (None, 7, {}, "main")),
    ],
)
def test_a_backup_without_a_valid_pod_of_its_namespace_has_no_pod(content: str | None) -> None:
    """A forged Secret can neither create a pod in another namespace nor have a pod evicted."""
    world = make_world()
    data = {} if content is None else {"pod.json": content}
    found = backup_in(put(world.upper.secrets, {**kept(world), "data": data}), world.owner)
    assert found is not None
    assert found.pod is None


TERM = {"topologyKey": "zone", "namespaces": ["x"], "labelSelector": {"matchExpressions": [NOT_HERE]}}
EVERYTHING = {
    **SUCCESSOR,
    "metadata": {**META, "labels": {"app": "web"}, "uid": "u", "creationTimestamp": "2026-01-01T00:00:00Z"},
    "spec": {
        "containers": [
            {
                "name": "main",
                "ports": [{"containerPort": 80, "hostPort": 80, "protocol": "TCP"}],
                "env": [{"name": "a", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}],
                "resources": {"requests": {"cpu": "1", "memory": "1Gi"}},
            }
        ],
        "initContainers": [{"name": "side", "restartPolicy": "Always"}],
        "overhead": {"cpu": "1m"},
        "nodeSelector": {"disk": "ssd"},
        "tolerations": [{"key": "k", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300}],
        "affinity": {
            "nodeAffinity": {"REQUIRED": {"nodeSelectorTerms": [{"matchExpressions": [NOT_HERE]}]}},
            "podAntiAffinity": {"PREFERRED": [{"weight": 1, "podAffinityTerm": TERM}], "REQUIRED": [TERM]},
        },
        "topologySpreadConstraints": [{"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule"}],
        "volumes": [
            {"name": "data", "persistentVolumeClaim": {"claimName": "c"}},
            {"name": "kube-api-access-x", "projected": {"sources": [{"serviceAccountToken": {"path": "token"}}]}},
        ],
    },
}
LEAVES = st.sampled_from([None, True, 7, -(2**62), 1.5, "", "x", [], {}, [None], [7], {"x": None}, {"name": 7}, [[]]])


def spoilt(value: Any, chance: Any) -> Any:
    """Draw a copy with one part replaced or removed."""
    if not (isinstance(value, dict | list) and value) or chance(st.integers(0, 3)) == 0:
        return chance(LEAVES)
    copy = value.copy()
    place = chance(st.sampled_from(sorted(copy) if isinstance(copy, dict) else range(len(copy))))
    if chance(st.integers(0, 4)) == 0:
        del copy[place]
    else:
        copy[place] = spoilt(value[place], chance)
    return copy


@examples(300)
@given(st.data())
def test_every_pod_that_is_read_from_a_backup_can_be_processed(data: Any) -> None:
    """Another client may have written the Secret, and an invalid pod in it must not block the moves of other pods."""
    long = orjson.dumps(EVERYTHING).replace(b"REQUIRED", REQUIRED.encode()).replace(b"PREFERRED", PREFERRED.encode())
    given_pod = spoilt(orjson.loads(long), data.draw)
    world = make_world()
    found = backup_in(put(world.upper.secrets, {**kept(world), "data": {"pod.json": encoded(given_pod)}}), world.owner)
    if found is None or found.pod is None:
        return
    upper = Entry("default", "web", "u", 0, orjson.dumps(found.pod), None)
    ground = Targets(world)
    ground.others(upper, world.lowers[A].node, frozenset())
    ground.others(upper, "", frozenset())
    assert orjson.dumps(to_lower_pod(found.pod, lower_context()))
    assert successor_of(found.pod, ["vk"])
    assert isinstance(uses_claims(found.pod), bool)


def test_a_complete_pod_is_read_from_a_backup_unchanged() -> None:
    """It has all fields that the property test mutates."""
    world = make_world()
    found = backup_in(put(world.upper.secrets, {**kept(world), "data": {"pod.json": encoded(EVERYTHING)}}), world.owner)
    assert found is not None
    assert found.pod == EVERYTHING


@pytest.mark.parametrize("depth", [300, 900, 2_000])
def test_a_backup_with_a_deeply_nested_pod_has_no_pod(depth: int) -> None:
    """Such a pod could not be serialized again."""
    world = make_world()
    content = orjson.dumps(EVERYTHING).replace(b'"ssd"', b'"ssd"},"x":{"y":' + b"[" * depth + b"]" * depth)
    data = {"pod.json": b64encode(content).decode()}
    found = backup_in(put(world.upper.secrets, {**kept(world), "data": data}), world.owner)
    assert found is not None
    assert found.pod is None
