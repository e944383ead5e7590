"""Tests of living pods: when a lower pod is created, what is reported until then, and how both sides stay in sync."""

from typing import Any

import pytest
from podviewkit import create, out_of_reach
from podviewkit import sync_pod as sync
from worldkit import (
    A,
    add_namespace,
    add_virtual_node,
    change_as_other_client,
    make_lower_node,
    make_lower_pod,
    make_object,
    make_service_account,
    make_upper_pod,
    make_world,
    put,
    with_owner_marks,
)

from tensile.kubelet.pods import token_rule
from tensile.kubelet.pods.projection import note_of_images
from tensile.kubelet.pods.rule import key_of
from tensile.kubelet.pods.sync import lower_context_of
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
    """Return a world in which pods can be created."""
    fields = "".join(f", {name}: {value}" for name, value in lower.items())
    world = make_world(f"name: {A}{fields}", "name: lower-b")
    add_namespace(world)
    add_virtual_node(world)
    return world


def test_domain_keys_are_labels_that_only_the_virtual_node_has() -> None:
    """They exclude the hostname, and there are none while no lower node is known."""
    world = grounded()
    change_as_other_client(
        world.upper.nodes, A, lambda node: node["metadata"]["labels"].update(region="east", zone="1"), ""
    )
    assert lower_context_of("", KEY, world.lowers[A], world).domain_keys == frozenset()
    put(world.lowers[A].nodes, {**make_lower_node("n1", "4"), "metadata": {"name": "n1", "labels": {"zone": "2"}}})
    found = lower_context_of("", KEY, world.lowers[A], world).domain_keys
    assert {"region", "clusterID", "type"} <= found
    assert not found & {"zone", "kubernetes.io/hostname"}


def arrival(world: World, pod: Manifest | None = None, needs: tuple[Reference, ...] = ()) -> Decision:
    """Decide about a pod without a lower pod."""
    return create(KEY, pod or make_upper_pod(), needs, world.lowers[A], world)


def kept(world: World, pod: Manifest, lower_object: Manifest | None) -> Decision:
    """Decide about a pod with its lower pod."""
    if lower_object is None:
        return out_of_reach(pod, world.lowers[A], world)
    return sync(KEY, pod, put(world.lowers[A].pods, lower_object), world.lowers[A], world)


def shapes(decision: Decision) -> list[type]:
    """Return the kinds of the desired items, in order."""
    return [type(one) for one in decision.wanted]


def body(wanted: Any) -> Manifest:
    """Return the body of a desired patch."""
    assert isinstance(wanted, Patched)
    found: Manifest = wanted.patch.body
    return found


# Creation.


def test_a_pod_waits_without_a_status_for_objects_that_are_being_mirrored() -> None:
    """A wait of a moment needs no status write."""
    world = make_world()
    add_virtual_node(world)
    assert arrival(world, needs=NEEDS) == Decision(depends_on=(namespaces.key_of(A, "default"), NEEDED))


def test_a_pod_waits_for_its_claims() -> None:
    """This holds also without the storage controller, because a lower claim of that name would be unrelated."""
    needs = (Reference("PersistentVolumeClaim", "data", optional=False),)
    for world in (grounded(), grounded(controllers="[]")):
        assert arrival(world, needs=needs).depends_on == (claim_rule.key_of(A, "default", "data"),)


SOURCES = {
    "snapshot": {"kind": "VolumeSnapshot", "apiGroup": "snapshot.storage.k8s.io", "name": "origin"},
    "claim of another namespace": {"kind": "PersistentVolumeClaim", "name": "origin", "namespace": "other"},
    "populator": {"kind": "Populator", "apiGroup": "example.com", "name": "origin"},
}


@pytest.mark.parametrize("source", SOURCES.values(), ids=SOURCES)
def test_a_pod_whose_volume_has_an_unmirrored_data_source_is_not_created(source: Manifest) -> None:
    """The lower cluster would use its own object of that name."""
    volume = {"name": "scratch", "ephemeral": {"volumeClaimTemplate": {"spec": {"dataSourceRef": source}}}}
    decision = arrival(grounded(), make_upper_pod(spec={"volumes": [volume]}, resourceVersion="7"))
    assert shapes(decision) == [Patched, EmitEvent]
    assert decision.problem is not None
    assert decision.problem.reason == "ClaimNotMirrored"
    assert decision.problem.message.startswith(f"volume scratch has the data source {source['kind']} origin")


def test_storage_classes_of_ephemeral_volumes_are_mapped() -> None:
    """The lower pod's claim template has the class that the topology maps to."""
    template = {"spec": {"storageClassName": "goes"}}
    volumes = [{"name": "scratch", "ephemeral": {"volumeClaimTemplate": template}}]
    spec = {"tolerations": TOLERANT, "volumes": volumes}
    present = arrival(grounded(storageClasses="{goes: disk}"), make_upper_pod(spec=spec)).wanted[0]
    assert isinstance(present, Present)
    (volume,) = present.manifest["spec"]["volumes"]
    assert volume["ephemeral"]["volumeClaimTemplate"]["spec"] == {"storageClassName": "disk"}


def test_a_pod_waits_for_its_service_account_and_its_upper_tokens() -> None:
    """Without them the pod would be rejected or start without an identity; the tokens are last."""
    world = grounded(serviceAccounts="{identity: upper}")
    source = {"serviceAccountToken": {"path": "token"}}
    volume = {"name": "kube-api-access-x", "projected": {"sources": [source]}}
    pod = make_upper_pod(spec={"serviceAccountName": "robot", "volumes": [volume]}, resourceVersion="7")
    robot = (Reference("ServiceAccount", "robot", optional=False),)
    assert arrival(world, pod, robot) == Decision(depends_on=(service_accounts.key_of(A, "default", "robot"),))
    put(world.upper.more[SERVICE_ACCOUNT], make_service_account(name="robot"))
    put(
        world.lowers[A].more[SERVICE_ACCOUNT],
        with_owner_marks(make_service_account(name="robot"), "ServiceAccount-robot"),
    )
    assert arrival(world, pod, robot) == Decision(depends_on=(token_rule.key_of(A, "default", "web"),))
    notes = {TOKEN_POD: "web"}
    put(
        world.lowers[A].secrets,
        with_owner_marks(make_object("Secret", "upper-token-Pod-web", annotations=notes), "Pod-web"),
    )
    assert [type(one) for one in arrival(world, pod, robot).wanted] == [Present, Patched]


def test_a_pod_gets_the_address_of_the_upper_cluster() -> None:
    """The containers get the external address of the upper apiserver."""
    world = grounded(serviceAccounts="{identity: upper}")
    world.upper_server = UpperServer("upper.example.com", 6443)
    source = {"serviceAccountToken": {"path": "token"}}
    volume = {"name": "kube-api-access-x", "projected": {"sources": [source]}}
    notes = {TOKEN_POD: "web"}
    put(
        world.lowers[A].secrets,
        with_owner_marks(make_object("Secret", "upper-token-Pod-web", annotations=notes), "Pod-web"),
    )
    present = arrival(world, make_upper_pod(spec={"volumes": [volume]}, resourceVersion="7")).wanted[0]
    assert isinstance(present, Present)
    assert present.manifest["spec"]["containers"][0]["env"][0]["value"] == "upper.example.com"


def test_a_dropped_priority_class_is_reported_by_an_event() -> None:
    """The author could have relied on it."""
    decision = arrival(grounded(), make_upper_pod(spec={"priorityClassName": "high", "tolerations": TOLERANT}))
    assert shapes(decision) == [Present, EmitEvent]
    event = decision.wanted[1]
    assert isinstance(event, EmitEvent)
    assert (event.reason, event.about) == ("PriorityClassDropped", ABOVE)


def test_tolerations_are_added_with_uid_and_resource_version_as_preconditions() -> None:
    """A list is replaced as a whole, so changes of other writers must not be lost."""
    _, tolerant = arrival(grounded(), make_upper_pod(resourceVersion="7")).wanted
    assert body(tolerant)["metadata"] == {"uid": "Pod-web", "resourceVersion": "7"}
    assert body(tolerant)["spec"]["tolerations"] == TOLERANT


# Updates.


def test_tolerations_wait_for_a_status_write() -> None:
    """The status write would change the resourceVersion of their precondition."""
    pod = make_upper_pod(resourceVersion="7")
    world = grounded()
    assert [one.subresource for one in kept(world, pod, make_lower_pod(pod, {"phase": "Running"})).wanted] == ["status"]
    assert "tolerations" in body(kept(grounded(), pod, make_lower_pod(pod)).wanted[0])["spec"]


def test_labels_and_annotations_are_updated() -> None:
    """Labels that the topology ignores are not copied."""
    world = grounded(ignoreLabels="[local]")
    pod = make_upper_pod(spec={"tolerations": TOLERANT}, labels={"colour": "red", "local": "x"})
    lower_object = make_lower_pod(make_upper_pod(spec={"tolerations": TOLERANT}))
    (present,) = kept(world, pod, lower_object).wanted
    assert isinstance(present, Present)
    assert metadata(present.manifest)["labels"]["colour"] == "red"
    assert "local" not in metadata(present.manifest)["labels"]
    assert set(present.sections) == {"metadata.labels", "metadata.annotations"}


def changing(world: World, status: Manifest | None = None, **spec: Any) -> Decision:
    """Decide about a pod whose spec changed, at generation 3, after its lower pod was created."""
    conditions = [{"type": "Ready", "status": "True"}]
    of_below = {"phase": "Running", "conditions": conditions, "observedGeneration": 1} | (status or {})
    upper_object = make_upper_pod(spec={"tolerations": TOLERANT, **spec}, status={"observedGeneration": 2})
    upper_object["metadata"]["generation"] = 3
    return kept(
        world, upper_object, make_lower_pod(make_upper_pod(spec={"tolerations": TOLERANT}), of_below, generation=1)
    )


NEW_IMAGE = {"containers": [{"name": "main", "image": "app:2"}]}
DEBUG = [{"name": "debug", "image": "d:1", "envFrom": [{"configMapRef": {"name": "settings"}}]}]


def test_a_pod_in_sync_is_compared_again_after_its_lower_changed() -> None:
    """An edit reaches a lower some time after the topology, and a pod may be compared between the two."""
    world = grounded()
    pod = make_upper_pod(labels={"team": "a"})
    pod["spec"]["tolerations"] = TOLERANT
    lower_object = make_lower_pod(pod, generation=1)
    assert kept(world, pod, lower_object).wanted == ()
    lower = world.lowers[A]
    lower.spec = lower.spec.model_copy(update={"ignore_labels": ("team",)})
    (change,) = kept(world, pod, lower_object).wanted
    assert isinstance(change, Present)
    assert "team" not in change.manifest["metadata"]["labels"]


def test_a_pod_in_sync_gets_a_toleration_when_the_lower_with_that_taint_has_left() -> None:
    """While that lower is joined, its taint is a virtual node's, and lower pods do not need to tolerate it."""
    world = make_world(f"name: {A}", "name: lower-b, node: {taints: [{key: gpu, effect: NoSchedule}]}")
    add_namespace(world)
    add_virtual_node(world)
    pod = make_upper_pod()
    pod["spec"]["tolerations"] = [*TOLERANT, {"key": "gpu", "operator": "Exists"}]
    lower_object = make_lower_pod(pod, generation=1)
    lower_object["spec"]["tolerations"] = []
    assert kept(world, pod, lower_object).wanted == ()
    del world.lowers["lower-b"]
    (change,) = kept(world, pod, lower_object).wanted
    assert isinstance(change, Patched)
    assert change.patch.body["spec"]["tolerations"] == [{"key": "gpu", "operator": "Exists"}]


def test_the_status_is_written_before_changes_of_the_lower_pod() -> None:
    """Readiness waits for no other write, and a generation is observed only when its spec is in the lower pod."""
    status_write, change = changing(grounded(), **NEW_IMAGE).wanted
    assert body(status_write)["status"]["conditions"]
    assert "observedGeneration" not in body(status_write)["status"]
    assert body(change)["spec"] == NEW_IMAGE
    (status_write,) = changing(grounded()).wanted
    assert body(status_write)["status"]["observedGeneration"] == 3


def test_a_condition_has_the_generation_of_the_spec_in_the_lower_pod() -> None:
    """While an image change is being sent, that is the previous generation."""
    ready = {"type": "Ready", "status": "True", "observedGeneration": 1}
    status_write, _ = changing(grounded(), {"conditions": [ready]}, **NEW_IMAGE).wanted
    (found,) = [one for one in body(status_write)["status"]["conditions"] if one["type"] == "Ready"]
    assert found["observedGeneration"] == 2


def test_an_old_problem_is_not_reported_for_a_pod_in_sync() -> None:
    """The change that it refers to has succeeded in the meantime."""
    world = grounded()
    world.problems[KEY] = DENIED
    assert shapes(changing(world)) == [Patched]


def test_a_debug_container_waits_for_its_references_and_other_changes_do_not() -> None:
    """An event reports a reference that cannot be mirrored."""
    world = grounded()
    decision = changing(world, **NEW_IMAGE, ephemeralContainers=DEBUG)
    assert decision.depends_on == (NEEDED,)
    assert [list(body(one).get("spec", {})) for one in decision.wanted] == [[], ["containers"]]
    world.problems[NEEDED] = Problem("ConfigMapNotFound", "it does not exist")
    _, event, _ = changing(world, **NEW_IMAGE, ephemeralContainers=DEBUG).wanted
    assert isinstance(event, EmitEvent)
    assert event.message.endswith("it does not exist")


def test_images_are_recorded_only_by_the_write_that_sends_them() -> None:
    """A label that changes at the same time must not record an image that was not sent."""
    world = grounded()
    upper_object = make_upper_pod(spec={"tolerations": TOLERANT, **NEW_IMAGE}, labels={"colour": "red"})
    *_, present = kept(world, upper_object, make_lower_pod(make_upper_pod(spec={"tolerations": TOLERANT}))).wanted
    assert isinstance(present, Present)
    assert present.manifest["metadata"]["annotations"][WRITTEN_IMAGES] == note_of_images(make_upper_pod())


def test_a_lower_pod_without_records_gets_them_with_its_next_change() -> None:
    """It was created before there were records, which alone cause no write."""
    upper_object = make_upper_pod(spec={"tolerations": TOLERANT}, labels={"colour": "red"})
    lower_object = make_lower_pod(upper_object)
    notes = {key: lower_object["metadata"]["annotations"].pop(key) for key in (WRITTEN_IMAGES, WRITTEN_KEYS)}
    assert kept(grounded(), upper_object, lower_object) == Decision()
    lower_object["metadata"]["labels"]["colour"] = "green"
    (present,) = kept(grounded(), upper_object, lower_object).wanted
    assert isinstance(present, Present)
    assert present.manifest["metadata"]["annotations"].items() >= notes.items()


@pytest.mark.parametrize("real", [True, False])
def test_a_selector_that_only_the_virtual_node_matches_is_removed(*, real: bool) -> None:
    """A label of the virtual node is left out, unless lower nodes have it too."""
    world = grounded(node="{labels: {zone: x}}")
    node = make_lower_node()
    put(world.lowers[A].nodes, {**node, "metadata": metadata(node) | {"labels": {"zone": "x"} if real else {}}})
    pod = make_upper_pod(spec={"nodeSelector": {"zone": "x"}, "tolerations": TOLERANT})
    (present,) = arrival(world, pod).wanted
    assert isinstance(present, Present)
    assert ("nodeSelector" in present.manifest["spec"]) is real
