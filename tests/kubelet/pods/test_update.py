"""Tests of changes of a running pod's spec: what is sent to which subresource, and that nothing is sent needlessly."""

from typing import Any

import pytest
from podkit import lower_context, pod
from worldkit import token_volume

from tensile.kubelet.pods.projection import image_digest, to_lower_pod
from tensile.kubelet.pods.service_account import secret_name
from tensile.kubelet.pods.update import ephemeral_patch, image_patch, resize_patch, toleration_patch
from tensile.names import FIELD_MANAGER, WRITTEN_IMAGES
from tensile.reconcile.world import UpperServer

PLACE = lower_context()
DEFAULTS = [
    {"key": f"node.kubernetes.io/{name}", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300}
    for name in ("not-ready", "unreachable")
]


def stored(spec: dict[str, Any], **added: Any) -> dict[str, Any]:
    """Return the lower pod of an upper pod with this spec, as the lower apiserver stores it after admission."""
    made = to_lower_pod(pod(spec), PLACE)
    return {**made, "spec": {**made["spec"], "nodeName": "worker-1", "priority": 0, **added}}


def container(name: str = "main", **fields: Any) -> dict[str, Any]:
    """Return a container of a spec."""
    return {"name": name, "image": "app:1", **fields}


def sized(**amounts: dict[str, str]) -> dict[str, Any]:
    """Return a spec with one container that has these resources."""
    return {"containers": [container(resources=amounts)]}


@pytest.mark.parametrize(
    "spec",
    [
        {},
        {"activeDeadlineSeconds": 30, "tolerations": [{"key": "a", "operator": "Exists"}]},
        {"initContainers": [container("i")], **sized(requests={"cpu": "1"})},
        {"ephemeralContainers": []},
        {"resources": {"requests": {"cpu": "1"}, "limits": {"memory": "1Gi"}}},
    ],
)
def test_an_unchanged_pod_needs_no_patch(spec: dict[str, Any]) -> None:
    """Fields that lower admission has added are no difference."""
    lower_object = stored(spec, tolerations=[*(spec.get("tolerations") or []), *DEFAULTS])
    assert image_patch(pod(spec), lower_object) is None
    assert toleration_patch(pod(spec), lower_object, PLACE) is None
    assert resize_patch(pod(spec), lower_object) is None
    assert ephemeral_patch(pod(spec), lower_object, PLACE) is None


@pytest.mark.parametrize("field", ["containers", "initContainers"])
def test_a_new_image_is_patched_by_container_name(field: str) -> None:
    """Only the changed container is named, with only its image."""
    old = {field: [container("a"), container("b")]}
    new = {field: [container("a"), container("b", image="app:2")]}
    body = image_patch(pod(new), stored(old))
    assert body["spec"] == {field: [{"name": "b", "image": "app:2"}]}


def test_an_image_patch_records_what_is_sent() -> None:
    """The annotation is in the same write, so neither exists without the other; a deadline has none."""
    body = image_patch(pod({"containers": [container(image="app:2")]}), stored({}))
    assert body["metadata"] == {"annotations": {WRITTEN_IMAGES: f'{{"main":"{image_digest("app:2")}"}}'}}
    assert "metadata" not in image_patch(pod({"activeDeadlineSeconds": 5}), stored({}))


def books(manager: str, name: str = "main") -> list[dict[str, Any]]:
    """Return managedFields after a manager has written a container's image."""
    fields = {"f:spec": {"f:containers": {f'k:{{"name":"{name}"}}': {"f:image": {}}}}}
    return [{"manager": manager, "operation": "Update", "fieldsV1": fields}]


@pytest.mark.parametrize(
    ("manager", "name", "restored"),
    [(FIELD_MANAGER, "main", False), ("kubectl-set", "main", True), ("kubectl-set", "side", False)],
)
def test_an_image_replaced_by_lower_admission_is_kept(manager: str, name: str, *, restored: bool) -> None:
    """A lower cluster may use its own registry, while an image that another manager wrote is restored."""
    lower_object = stored({})
    lower_object["spec"] = {**lower_object["spec"], "containers": [container(image="mirror/app:1")]}
    lower_object["metadata"]["managedFields"] = books(manager, name)
    assert (image_patch(pod(), lower_object) is not None) is restored


def test_a_changed_image_is_sent_without_those_that_admission_replaced() -> None:
    """Only the container whose upper image changed is named."""
    lower_object = stored({"containers": [container("a"), container("b")]})
    lower_object["spec"]["containers"] = [container("a", image="mirror/app:1"), container("b", image="mirror/app:1")]
    upper = pod({"containers": [container("a"), container("b", image="app:2")]})
    assert image_patch(upper, lower_object)["spec"] == {"containers": [{"name": "b", "image": "app:2"}]}


def test_a_lower_pod_without_a_record_gets_the_upper_image() -> None:
    """It is not known what was sent, so the upper spec counts."""
    lower_object = stored({"containers": [container(image="app:0")]})
    del lower_object["metadata"]["annotations"][WRITTEN_IMAGES]
    assert image_patch(pod(), lower_object)["spec"] == {"containers": [{"name": "main", "image": "app:1"}]}


def test_a_container_missing_in_the_lower_pod_is_not_added() -> None:
    """A pod's containers cannot change, and a lower webhook may have removed it."""
    other = pod({"containers": [container("other", resources={"requests": {"cpu": "1"}})]})
    assert image_patch(other, stored({})) is None
    assert resize_patch(other, stored({})) is None


@pytest.mark.parametrize(("above", "below", "sent"), [(30, None, 30), (10, 30, 10), (30, 10, None), (None, 10, None)])
def test_a_deadline_is_only_shortened(above: int | None, below: int | None, sent: int | None) -> None:
    """Kubernetes rejects the removal or extension of a deadline."""
    upper = pod({"activeDeadlineSeconds": above} if above else {})
    seen = stored({"activeDeadlineSeconds": below} if below else {})
    expected = {"spec": {"activeDeadlineSeconds": sent}} if sent else None
    assert image_patch(upper, seen) == expected


def test_tolerations_are_added_and_never_removed() -> None:
    """The list is replaced as a whole, so it contains the lower pod's tolerations."""
    new = {"key": "gpu", "operator": "Exists"}
    body = toleration_patch(pod({"tolerations": [new]}), stored({}, tolerations=DEFAULTS), PLACE)
    assert body == {"spec": {"tolerations": [*DEFAULTS, new]}}
    gone = stored({"tolerations": [new]})
    assert toleration_patch(pod(), gone, PLACE) is None


def test_changed_seconds_of_a_toleration_are_sent_in_place() -> None:
    """No second toleration of its kind is added."""
    old = {"key": "gpu", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 60}
    new = {**old, "tolerationSeconds": 90}
    body = toleration_patch(
        pod({"tolerations": [new]}), stored({"tolerations": [old]}, tolerations=[old, *DEFAULTS]), PLACE
    )
    assert body == {"spec": {"tolerations": [new, *DEFAULTS]}}


def test_unlimited_tolerations_of_the_engine_are_not_copied() -> None:
    """They are only for the upper cluster, so the limits in the lower pod are kept."""
    unlimited = [{field: one[field] for field in ("key", "operator", "effect")} for one in DEFAULTS]
    assert toleration_patch(pod({"tolerations": unlimited}), stored({}, tolerations=DEFAULTS), PLACE) is None


def test_a_resize_contains_the_container_and_its_new_amounts() -> None:
    """Requests and limits are each sent as a whole list, to be comparable with the upper spec."""
    old = sized(requests={"cpu": "1", "memory": "1Gi"}, limits={"cpu": "2"})
    new = sized(requests={"cpu": "1500m", "memory": "1Gi"}, limits={"cpu": "2"})
    assert resize_patch(pod(new), stored(old)) == {
        "spec": {
            "containers": [{"name": "main", "resources": {"requests": {"cpu": "1500m", "memory": "1Gi"}}}],
        }
    }


def test_equal_amounts_in_different_notations_are_no_resize() -> None:
    """1 and 1000m are equal."""
    assert resize_patch(pod(sized(requests={"cpu": "1"})), stored(sized(requests={"cpu": "1000m"}))) is None


def test_limits_added_by_lower_admission_are_no_resize() -> None:
    """A LimitRange of the lower is that cluster's own rule."""
    lower_object = stored({}, **sized(limits={"cpu": "1"}, requests={"cpu": "1"}))
    assert resize_patch(pod(), lower_object) is None


def test_a_new_amount_is_a_resize() -> None:
    """An amount in the upper spec that the lower pod lacks is sent."""
    body = resize_patch(pod(sized(limits={"memory": "1Gi"})), stored({}))
    assert body == {"spec": {"containers": [{"name": "main", "resources": {"limits": {"memory": "1Gi"}}}]}}


def test_sidecars_and_pod_level_resources_are_resized_too() -> None:
    """Init containers are sent by name, and pod-level resources in their own field."""
    old = {
        "initContainers": [container("s", restartPolicy="Always", resources={"requests": {"cpu": "1"}})],
        "resources": {"limits": {"cpu": "4"}},
    }
    new = {
        "initContainers": [container("s", restartPolicy="Always", resources={"requests": {"cpu": "2"}})],
        "resources": {"limits": {"cpu": "5"}},
    }
    assert resize_patch(pod(new), stored(old)) == {
        "spec": {
            "initContainers": [{"name": "s", "resources": {"requests": {"cpu": "2"}}}],
            "resources": {"limits": {"cpu": "5"}},
        }
    }


def test_an_init_container_that_runs_once_is_not_resized() -> None:
    """Kubernetes does not permit that, so a difference comes from the lower cluster."""
    old = {"initContainers": [container("i", resources={"requests": {"cpu": "1"}})]}
    new = {"initContainers": [container("i", resources={"requests": {"cpu": "2"}})]}
    assert resize_patch(pod(new), stored(old)) is None


def test_missing_ephemeral_containers_are_added() -> None:
    """Existing ones of the lower pod are not changed, whatever the upper spec contains."""
    first, second = container("d1"), container("d2")
    upper = pod({"ephemeralContainers": [{**first, "image": "other"}, second]})
    assert ephemeral_patch(upper, stored({}, ephemeralContainers=[first]), PLACE) == {
        "spec": {"ephemeralContainers": [{"name": "d1"}, second]}
    }


@pytest.mark.parametrize("volumes", [[], [token_volume()]], ids=["without", "with"])
def test_an_ephemeral_container_mounts_the_token_only_if_its_volume_exists(volumes: list[dict[str, Any]]) -> None:
    """A lower pod that was created without the volume would reject the mount."""
    debug = container("d", volumeMounts=[{"name": "kube-api-access-x", "mountPath": "/t"}])
    upper = pod({"volumes": [token_volume()], "ephemeralContainers": [debug]})
    body = ephemeral_patch(upper, stored({}, volumes=volumes), PLACE)
    assert ("volumeMounts" in body["spec"]["ephemeralContainers"][0]) is bool(volumes)


def test_an_ephemeral_container_gets_the_address_of_the_upper_if_tokens_are_mounted() -> None:
    """The other containers have it as well; without mounted tokens nothing is added."""
    upper = pod({"ephemeralContainers": [container("d")]}, uid="uid-1")
    mounted = [{"name": "t", "projected": {"sources": [{"secret": {"name": secret_name("uid-1")}}]}}]
    there = lower_context(upper_server=UpperServer("upper.example.com", 6443))
    for volumes, variables in ((mounted, ["KUBERNETES_SERVICE_HOST"]), ([], [])):
        body = ephemeral_patch(upper, stored({}, volumes=volumes), there)
        assert [one["name"] for one in body["spec"]["ephemeralContainers"][0].get("env", [])][:1] == variables
