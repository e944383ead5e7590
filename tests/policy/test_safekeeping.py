"""The Secret in which a pod is kept while it moves."""

from base64 import b64encode
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from worldkit import A, B, decided, marked, put, upper_pod, world, written

from tensile.kube.store import Entry
from tensile.kubelet.pods.placement_context import LowerContext
from tensile.kubelet.pods.projection import lower_pod
from tensile.names import OWNER, PLACE_TAKEN, REPLACES, UPPER_UID, WITHDRAWN
from tensile.objects import SECRET, UPPER, Manifest, Ref, annotations, labels
from tensile.policy.descheduler.bare_pods import uses_claims
from tensile.policy.descheduler.drain import DrainRule, key_of
from tensile.policy.descheduler.records import PREFIX, kept_in, kept_of, noted, of_pod, present, ref_of
from tensile.policy.descheduler.replacement import is_alike, successor_of
from tensile.policy.descheduler.targets import Targets
from tensile.reconcile.desired import Present
from tensile.reconcile.pods.scheduling import REQUIRED
from tensile.reconcile.world import World

PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"
NOT_HERE = {"key": "kubernetes.io/hostname", "operator": "NotIn", "values": ["vk"]}
META = {"name": "web", "namespace": "default", "annotations": {REPLACES: "Pod-web"}}
SPEC = {"containers": [{"name": "main", "image": "app:1"}]}
SUCCESSOR = {"apiVersion": "v1", "kind": "Pod", "metadata": META, "spec": SPEC}


def place() -> LowerContext:
    """Return a place for a pod in a lower."""
    return LowerContext(world().owner, "vk", "default", "uid", virtual_nodes=frozenset({"vk"}), identity="upper")


def kept(here: World, **meta: Any) -> Manifest:
    """Make the Secret that keeps the pod of lower-a, as it is stored."""
    pod = here.lowers[A].upper_pods.get("default", "web") or put(here.lowers[A].upper_pods, upper_pod())
    wanted = present(SUCCESSOR, pod, here.owner, "it moves").manifest
    given = {**wanted["metadata"], "uid": "secret", **meta}
    return written({**wanted, "metadata": given})


def test_it_says_whose_it_is_and_what_is_to_be_made() -> None:
    """In the pod's namespace, by the pod's UID; nobody can change it by mistake; refused, it holds up nobody else."""
    here = world()
    pod = put(here.lowers[A].upper_pods, upper_pod())
    wanted = present(SUCCESSOR, pod, here.owner, "it moves")
    assert isinstance(wanted, Present)
    assert wanted.independent
    assert wanted.ref == ref_of("default", "Pod-web") == Ref(UPPER, SECRET, "default", PREFIX + "Pod-web")
    assert labels(wanted.manifest)[OWNER] == here.owner.mark
    assert annotations(wanted.manifest)[UPPER_UID] == "Pod-web"
    assert (wanted.manifest["type"], wanted.manifest["immutable"]) == ("tensile-kube.io/pod", True)


def test_it_is_read_as_it_was_written() -> None:
    """By the pod's UID, which names it."""
    here = world()
    entry = put(here.upper.secrets, kept(here))
    found = kept_in(entry, here.owner)
    assert found is not None
    assert (found.uid, found.pod, found.taken, found.withdrawn, found.is_safe) == (
        "Pod-web",
        SUCCESSOR,
        False,
        None,
        True,
    )
    pod = here.lowers[A].upper_pods.get("default", "web")
    assert pod is not None
    assert kept_of(pod, here) == found
    assert [one.uid for one in of_pod(entry, here.lowers[A])] == ["Pod-web"]
    assert not list(of_pod(entry, here.lowers[B]))


def test_notes_on_it_are_read() -> None:
    """A moment that is none says nothing."""
    here = world()
    marks = annotations(kept(here))
    for notes, taken, withdrawn in (
        ({PLACE_TAKEN: "true"}, True, False),
        ({WITHDRAWN: "2026-03-01T12:00:00Z"}, False, True),
        ({WITHDRAWN: "lately"}, False, False),
    ):
        found = kept_in(put(here.upper.secrets, kept(here, annotations=marks | notes)), here.owner)
        assert found is not None
        assert (found.taken, bool(found.withdrawn), found.is_safe) == (taken, withdrawn, not withdrawn)


@pytest.mark.parametrize(
    "meta",
    [
        pytest.param({"name": "other"}, id="another name"),
        pytest.param({"labels": {OWNER: "f" * 16}}, id="another owner"),
        pytest.param({"managedFields": []}, id="another hand"),
    ],
)
def test_what_is_not_ours_is_not_read(meta: Manifest) -> None:
    """Whatever it says."""
    here = world()
    secret = kept(here)
    entry = put(here.upper.secrets, {**secret, "metadata": {**secret["metadata"], **meta}})
    assert kept_in(entry, here.owner) is None


def encoded(content: Any) -> str:
    """Encode what such a Secret holds."""
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
def test_what_is_no_pod_of_its_namespace_is_none(content: str | None) -> None:
    """Nobody gets a pod made elsewhere by writing so; and nobody's pod leaves for it."""
    here = world()
    data = {} if content is None else {"pod.json": content}
    found = kept_in(put(here.upper.secrets, {**kept(here), "data": data}), here.owner)
    assert found is not None
    assert (found.pod, found.is_safe) == (None, False)


EVERYTHING = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {**META, "labels": {"app": "web"}, "uid": "u", "creationTimestamp": "2026-01-01T00:00:00Z"},
    "spec": {
        "containers": [
            {
                "name": "main",
                "image": "app:1",
                "ports": [{"containerPort": 80, "hostPort": 80, "protocol": "TCP"}],
                "env": [{"name": "a", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}],
                "envFrom": [{"configMapRef": {"name": "c"}}],
                "resources": {"requests": {"cpu": "1", "memory": "1Gi"}},
                "volumeMounts": [{"name": "data", "mountPath": "/data"}],
            }
        ],
        "initContainers": [{"name": "side", "restartPolicy": "Always", "ports": [{"hostPort": 1, "containerPort": 1}]}],
        "overhead": {"cpu": "1m"},
        "nodeSelector": {"disk": "ssd"},
        "tolerations": [{"key": "k", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300}],
        "affinity": {
            "nodeAffinity": {"REQUIRED": {"nodeSelectorTerms": [{"matchExpressions": [NOT_HERE]}]}},
            "podAffinity": {"REQUIRED": [{"topologyKey": "zone", "labelSelector": {"matchLabels": {"app": "web"}}}]},
            "podAntiAffinity": {
                "PREFERRED": [{"weight": 1, "podAffinityTerm": {"topologyKey": "zone", "namespaces": ["x"]}}],
                "REQUIRED": [{"topologyKey": "zone", "namespaceSelector": {"matchExpressions": [NOT_HERE]}}],
            },
        },
        "topologySpreadConstraints": [
            {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule", "labelSelector": {}}
        ],
        "volumes": [
            {"name": "data", "persistentVolumeClaim": {"claimName": "c"}},
            {"name": "scratch", "ephemeral": {"volumeClaimTemplate": {"spec": {"storageClassName": "fast"}}}},
            {"name": "kube-api-access-x", "projected": {"sources": [{"serviceAccountToken": {"path": "token"}}]}},
            {"name": "info", "downwardAPI": {"items": [{"path": "n", "fieldRef": {"fieldPath": "metadata.name"}}]}},
        ],
        "imagePullSecrets": [{"name": "pull"}],
    },
}
LEAVES = st.sampled_from([None, True, 7, -(2**62), 1.5, "", "x", [], {}, [None], [7], {"x": None}, {"name": 7}, [[]]])


def spoilt(value: Any, chance: Any) -> Any:
    """Draw a copy with one part replaced by something else, or taken away."""
    if not (isinstance(value, dict | list) and value) or chance(st.integers(0, 3)) == 0:
        return chance(LEAVES)
    copy = value.copy()
    place = chance(st.sampled_from(sorted(copy) if isinstance(copy, dict) else range(len(copy))))
    if chance(st.integers(0, 4)) == 0:
        del copy[place]
    else:
        copy[place] = spoilt(value[place], chance)
    return copy


@settings(max_examples=1_500)
@given(st.data())
def test_what_is_taken_for_a_pod_can_be_read_by_everybody(data: Any) -> None:
    """Somebody else may have written it: whatever is wrong with it, it does not keep other pods from moving."""
    long = orjson.dumps(EVERYTHING).replace(b"REQUIRED", REQUIRED.encode()).replace(b"PREFERRED", PREFERRED.encode())
    given_pod = spoilt(orjson.loads(long), data.draw)
    here = world()
    found = kept_in(put(here.upper.secrets, {**kept(here), "data": {"pod.json": encoded(given_pod)}}), here.owner)
    if found is None or found.pod is None:
        return
    upper = Entry("default", "web", "u", 0, orjson.dumps(found.pod), None)
    ground = Targets(here)
    ground.others(upper, here.lowers[A].node, frozenset())
    ground.others(upper, "", frozenset())
    assert orjson.dumps(lower_pod(found.pod, place()))
    assert is_alike(found.pod, successor_of(found.pod, ["vk"])) in (True, False)
    assert isinstance(uses_claims(found.pod), bool)


def test_a_pod_is_taken_for_one() -> None:
    """With all that the other test spoils."""
    here = world()
    found = kept_in(put(here.upper.secrets, {**kept(here), "data": {"pod.json": encoded(EVERYTHING)}}), here.owner)
    assert found is not None
    assert found.pod == EVERYTHING


@pytest.mark.parametrize("depth", [300, 900, 2_000])
def test_a_pod_that_nests_without_end_is_none(depth: int) -> None:
    """It could not be written again."""
    here = world()
    content = orjson.dumps(EVERYTHING).replace(b'"ssd"', b'"ssd"},"x":{"y":' + b"[" * depth + b"]" * depth)
    data = {"pod.json": b64encode(content).decode()}
    found = kept_in(put(here.upper.secrets, {**kept(here), "data": data}), here.owner)
    assert found is not None
    assert found.pod is None


def test_a_pod_does_not_leave_for_one_of_another_name() -> None:
    """What would be made is not that pod."""
    here = world()
    pod = put(here.lowers[A].upper_pods, upper_pod())
    other = {**SUCCESSOR, "metadata": {**META, "name": "other"}}
    put(here.upper.secrets, {**kept(here), "data": {"pod.json": encoded(other)}})
    found = kept_of(pod, here)
    assert found is not None
    assert not found.is_safe


def test_a_note_is_written_only_on_the_secret_as_it_was_read() -> None:
    """Two engines that see the same do not undo each other."""
    here = world()
    entry = put(here.upper.secrets, kept(here))
    wanted = noted(entry, WITHDRAWN, "now", "because")
    fence = {"uid": "secret", "resourceVersion": str(entry.version)}
    assert wanted.patch.body == {"metadata": {**fence, "annotations": {WITHDRAWN: "now"}}}
    assert wanted.ref == ref_of("default", "Pod-web")


def test_a_drain_hears_of_the_secret() -> None:
    """It is what the pod waits for."""
    here = world(f"name: {A}, maintenance: drain", f"name: {B}")
    heard: list[object] = []
    route = DrainRule().watches()[2]
    assert route.cache == "upper.secrets"
    here.upper.secrets.subscribe(lambda delta: heard.extend(route.keys(here, A, delta)))
    here.upper.secrets.subscribe(lambda delta: heard.extend(route.keys(here, B, delta)))
    put(here.upper.secrets, kept(here))
    put(here.upper.secrets, marked(kept(here, name="other"), "x"))
    assert heard == [key_of(A, "default", "web")]
    assert decided(DrainRule(), key_of(B, "default", "web"), here)[1].steps == ()
