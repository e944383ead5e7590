"""A living pod: when it is made, what is said while it is not, and what keeps the two sides in step."""

from typing import Any

import pytest
from podviewkit import create, out_of_reach
from podviewkit import sync_pod as sync
from worldkit import A, account, changed, home, lower_node, marked, put, raised, thing, twin, upper_pod, world

from tensile.kubelet.pods import token_rule
from tensile.kubelet.pods.projection import note_of_images
from tensile.kubelet.pods.rule import key_of
from tensile.kubelet.pods.sync import placement
from tensile.names import TOKEN_POD, WRITTEN_IMAGES, WRITTEN_KEYS
from tensile.objects import POD, SERVICE_ACCOUNT, UPPER, Manifest, Ref, metadata
from tensile.reconcile.desired import Decision, EmitEvent, Patched, Present
from tensile.reconcile.pods.references import Reference
from tensile.reconcile.rules import claim_rule, config, namespaces, service_accounts
from tensile.reconcile.world import Problem, UpperServer, World

KEY = key_of(A, "default", "web")
ABOVE = Ref(UPPER, POD, "default", "web")
NEEDS = (Reference("ConfigMap", "settings", optional=False),)
NEEDED = config.key_of(A, "default", "ConfigMap", "settings")
DENIED = Problem("Forbidden", "exceeded quota: compute")
TOLERANT = [
    {"key": f"node.kubernetes.io/{what}", "operator": "Exists", "effect": "NoExecute"}
    for what in ("not-ready", "unreachable")
]


def grounded(**lower: Any) -> World:
    """Make a world where pods can be made."""
    fields = "".join(f", {name}: {value}" for name, value in lower.items())
    here = world(f"name: {A}{fields}", "name: lower-b")
    home(here)
    raised(here)
    return here


def test_domains_that_only_the_virtual_node_is_in() -> None:
    """Its labels that no lower node has, whoever gave them, but for its name; none while no lower node is there."""
    here = grounded()
    changed(here.upper.nodes, A, lambda node: node["metadata"]["labels"].update(region="east", zone="1"), "")
    assert placement("", KEY, here.lowers[A], here).domain_keys == frozenset()
    put(here.lowers[A].nodes, {**lower_node("n1", "4"), "metadata": {"name": "n1", "labels": {"zone": "2"}}})
    found = placement("", KEY, here.lowers[A], here).domain_keys
    assert {"region", "clusterID", "type"} <= found
    assert not found & {"zone", "kubernetes.io/hostname"}


def arrival(here: World, pod: Manifest | None = None, needs: tuple[Reference, ...] = ()) -> Decision:
    """Decide about a pod that has no lower pod yet."""
    return create(KEY, pod or upper_pod(), needs, here.lowers[A], here)


def kept(here: World, pod: Manifest, below: Manifest | None) -> Decision:
    """Decide about a pod with its lower pod."""
    if below is None:
        return out_of_reach(pod, here.lowers[A], here)
    return sync(KEY, pod, put(here.lowers[A].pods, below), here.lowers[A], here)


def shapes(decision: Decision) -> list[type]:
    """Return the kinds of what is wanted, in order."""
    return [type(one) for one in decision.wanted]


def body(wanted: Any) -> Manifest:
    """Return the body of a patch that is wanted."""
    assert isinstance(wanted, Patched)
    found: Manifest = wanted.patch.body
    return found


# Saying why not.


# Arriving.


def test_a_pod_waits_without_a_word_for_what_is_on_its_way() -> None:
    """What takes a moment needs no status."""
    here = world()
    raised(here)
    assert arrival(here, needs=NEEDS) == Decision(depends_on=(namespaces.key_of(A, "default"), NEEDED))


def test_a_pod_waits_for_its_claims() -> None:
    """Also where nobody looks after storage: a claim of that name below would be another's."""
    needs = (Reference("PersistentVolumeClaim", "data", optional=False),)
    for here in (grounded(), grounded(controllers="[]")):
        assert arrival(here, needs=needs).depends_on == (claim_rule.key_of(A, "default", "data"),)


SOURCES = {
    "snapshot": {"kind": "VolumeSnapshot", "apiGroup": "snapshot.storage.k8s.io", "name": "origin"},
    "claim of another namespace": {"kind": "PersistentVolumeClaim", "name": "origin", "namespace": "other"},
    "populator": {"kind": "Populator", "apiGroup": "example.com", "name": "origin"},
}


@pytest.mark.parametrize("source", SOURCES.values(), ids=SOURCES)
def test_a_pod_whose_volume_is_filled_from_what_is_not_mirrored_is_not_made(source: Manifest) -> None:
    """The lower cluster would take what it has under that name."""
    volume = {"name": "scratch", "ephemeral": {"volumeClaimTemplate": {"spec": {"dataSourceRef": source}}}}
    decision = arrival(grounded(), upper_pod(spec={"volumes": [volume]}, resourceVersion="7"))
    assert shapes(decision) == [Patched, EmitEvent]
    assert decision.problem is not None
    assert decision.problem.reason == "ClaimNotMirrored"
    assert decision.problem.message.startswith(f"volume scratch has the data source {source['kind']} origin")


def test_the_classes_of_ephemeral_volumes_are_the_lowers() -> None:
    """As the topology maps them."""
    template = {"spec": {"storageClassName": "goes"}}
    volumes = [{"name": "scratch", "ephemeral": {"volumeClaimTemplate": template}}]
    spec = {"tolerations": TOLERANT, "volumes": volumes}
    present = arrival(grounded(storageClasses="{goes: disk}"), upper_pod(spec=spec)).wanted[0]
    assert isinstance(present, Present)
    (volume,) = present.manifest["spec"]["volumes"]
    assert volume["ephemeral"]["volumeClaimTemplate"]["spec"] == {"storageClassName": "disk"}


def test_a_pod_waits_for_its_account_and_for_tokens_of_the_upper() -> None:
    """Both are there before it, or it would be refused, or start without them; tokens come last."""
    here = grounded(serviceAccounts="{identity: upper}")
    source = {"serviceAccountToken": {"path": "token"}}
    volume = {"name": "kube-api-access-x", "projected": {"sources": [source]}}
    pod = upper_pod(spec={"serviceAccountName": "robot", "volumes": [volume]}, resourceVersion="7")
    robot = (Reference("ServiceAccount", "robot", optional=False),)
    assert arrival(here, pod, robot) == Decision(depends_on=(service_accounts.key_of(A, "default", "robot"),))
    put(here.upper.more[SERVICE_ACCOUNT], account(name="robot"))
    put(here.lowers[A].more[SERVICE_ACCOUNT], marked(account(name="robot"), "ServiceAccount-robot"))
    assert arrival(here, pod, robot) == Decision(depends_on=(token_rule.key_of(A, "default", "web"),))
    notes = {TOKEN_POD: "web"}
    put(here.lowers[A].secrets, marked(thing("Secret", "upper-token-Pod-web", annotations=notes), "Pod-web"))
    assert [type(one) for one in arrival(here, pod, robot).wanted] == [Present, Patched]


def test_a_pod_is_told_where_the_upper_cluster_is() -> None:
    """By the address that the world knows."""
    here = grounded(serviceAccounts="{identity: upper}")
    here.upper_server = UpperServer("upper.example.com", 6443)
    source = {"serviceAccountToken": {"path": "token"}}
    volume = {"name": "kube-api-access-x", "projected": {"sources": [source]}}
    notes = {TOKEN_POD: "web"}
    put(here.lowers[A].secrets, marked(thing("Secret", "upper-token-Pod-web", annotations=notes), "Pod-web"))
    present = arrival(here, upper_pod(spec={"volumes": [volume]}, resourceVersion="7")).wanted[0]
    assert isinstance(present, Present)
    assert present.manifest["spec"]["containers"][0]["env"][0]["value"] == "upper.example.com"


def test_what_does_not_go_down_is_told_once() -> None:
    """The author could have counted on it."""
    decision = arrival(grounded(), upper_pod(spec={"priorityClassName": "high", "tolerations": TOLERANT}))
    assert shapes(decision) == [Present, EmitEvent]
    told = decision.wanted[1]
    assert isinstance(told, EmitEvent)
    assert (told.reason, told.about) == ("PriorityClassDropped", ABOVE)


def test_the_upper_pod_gets_its_tolerations_only_while_nobody_else_writes() -> None:
    """A list is replaced as a whole, so it is fenced by UID and version."""
    _, tolerant = arrival(grounded(), upper_pod(resourceVersion="7")).wanted
    assert body(tolerant)["metadata"] == {"uid": "Pod-web", "resourceVersion": "7"}
    assert body(tolerant)["spec"]["tolerations"] == TOLERANT


# Keeping in step.


def test_tolerations_wait_for_a_status_that_is_written() -> None:
    """The status write would change the version that they are fenced by."""
    pod = upper_pod(resourceVersion="7")
    here = grounded()
    assert [one.subresource for one in kept(here, pod, twin(pod, {"phase": "Running"})).wanted] == ["status"]
    assert "tolerations" in body(kept(grounded(), pod, twin(pod)).wanted[0])["spec"]


def test_labels_and_annotations_follow() -> None:
    """Those that the topology ignores do not."""
    here = grounded(ignoreLabels="[local]")
    pod = upper_pod(spec={"tolerations": TOLERANT}, labels={"colour": "red", "local": "x"})
    below = twin(upper_pod(spec={"tolerations": TOLERANT}))
    (present,) = kept(here, pod, below).wanted
    assert isinstance(present, Present)
    assert metadata(present.manifest)["labels"]["colour"] == "red"
    assert "local" not in metadata(present.manifest)["labels"]
    assert set(present.sections) == {"metadata.labels", "metadata.annotations"}


def changing(here: World, status: Manifest | None = None, **spec: Any) -> Decision:
    """Decide about a pod whose spec changed, at generation 3, since its lower pod was made."""
    said = [{"type": "Ready", "status": "True"}]
    of_below = {"phase": "Running", "conditions": said, "observedGeneration": 1} | (status or {})
    above = upper_pod(spec={"tolerations": TOLERANT, **spec}, status={"observedGeneration": 2})
    above["metadata"]["generation"] = 3
    return kept(here, above, twin(upper_pod(spec={"tolerations": TOLERANT}), of_below, generation=1))


NEW_IMAGE = {"containers": [{"name": "main", "image": "app:2"}]}
DEBUG = [{"name": "debug", "image": "d:1", "envFrom": [{"configMapRef": {"name": "settings"}}]}]


def test_the_status_comes_before_the_changes_and_counts_what_is_below() -> None:
    """Readiness waits for no other write; a generation is observed once its spec is below."""
    said, change = changing(grounded(), **NEW_IMAGE).wanted
    assert body(said)["status"]["conditions"]
    assert "observedGeneration" not in body(said)["status"]
    assert body(change)["spec"] == NEW_IMAGE
    (said,) = changing(grounded()).wanted
    assert body(said)["status"]["observedGeneration"] == 3


def test_the_generation_of_a_condition_is_the_one_that_is_below() -> None:
    """A condition of the lower pod is about the spec that it has."""
    ready = {"type": "Ready", "status": "True", "observedGeneration": 1}
    said, _ = changing(grounded(), {"conditions": [ready]}, **NEW_IMAGE).wanted
    (found,) = [one for one in body(said)["status"]["conditions"] if one["type"] == "Ready"]
    assert found["observedGeneration"] == 2


def test_a_problem_of_old_is_not_said_of_a_pod_in_step() -> None:
    """It is about something that has come true since."""
    here = grounded()
    here.problems[KEY] = DENIED
    assert shapes(changing(here)) == [Patched]


def test_a_debug_container_waits_for_what_it_refers_to() -> None:
    """It says so when that cannot come; the pod's other changes do not wait."""
    here = grounded()
    decision = changing(here, **NEW_IMAGE, ephemeralContainers=DEBUG)
    assert decision.depends_on == (NEEDED,)
    assert [list(body(one).get("spec", {})) for one in decision.wanted] == [[], ["containers"]]
    here.problems[NEEDED] = Problem("ConfigMapNotFound", "it does not exist")
    _, told, _ = changing(here, **NEW_IMAGE, ephemeralContainers=DEBUG).wanted
    assert isinstance(told, EmitEvent)
    assert told.message.endswith("it does not exist")


def test_the_note_of_images_is_for_the_write_that_sends_them() -> None:
    """A label that changes at the same time must not say that an image was sent."""
    here = grounded()
    above = upper_pod(spec={"tolerations": TOLERANT, **NEW_IMAGE}, labels={"colour": "red"})
    *_, present = kept(here, above, twin(upper_pod(spec={"tolerations": TOLERANT}))).wanted
    assert isinstance(present, Present)
    assert present.manifest["metadata"]["annotations"][WRITTEN_IMAGES] == note_of_images(upper_pod())


def test_a_pod_without_notes_gets_them_with_its_next_change() -> None:
    """It was made before there were any; for their own sake nothing is written."""
    above = upper_pod(spec={"tolerations": TOLERANT}, labels={"colour": "red"})
    below = twin(above)
    notes = {key: below["metadata"]["annotations"].pop(key) for key in (WRITTEN_IMAGES, WRITTEN_KEYS)}
    assert kept(grounded(), above, below) == Decision()
    below["metadata"]["labels"]["colour"] = "green"
    (present,) = kept(grounded(), above, below).wanted
    assert isinstance(present, Present)
    assert present.manifest["metadata"]["annotations"].items() >= notes.items()


@pytest.mark.parametrize("real", [True, False])
def test_a_selector_that_only_the_virtual_node_meets_does_not_go_down(*, real: bool) -> None:
    """A label of the topology's node is left out, unless real nodes have it as well."""
    here = grounded(node="{labels: {zone: x}}")
    node = lower_node()
    put(here.lowers[A].nodes, {**node, "metadata": metadata(node) | {"labels": {"zone": "x"} if real else {}}})
    pod = upper_pod(spec={"nodeSelector": {"zone": "x"}, "tolerations": TOLERANT})
    (present,) = arrival(here, pod).wanted
    assert isinstance(present, Present)
    assert ("nodeSelector" in present.manifest["spec"]) is real
