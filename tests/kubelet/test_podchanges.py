"""Changes of a running pod's spec: what is sent to which subresource, and that nothing is sent for nothing."""

from typing import Any

import pytest
from podkit import place, pod

from tensile.kubelet.podchanges import ephemeral_patch, resize_patch, spec_patch
from tensile.kubelet.projection import lower_pod

PLACE = place()
DEFAULTS = [
    {"key": f"node.kubernetes.io/{name}", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300}
    for name in ("not-ready", "unreachable")
]


def stored(spec: dict[str, Any], **added: Any) -> dict[str, Any]:
    """Give the lower pod of an upper pod with the spec, as the lower apiserver stores it with admission's additions."""
    made = lower_pod(pod(spec), PLACE)
    return {**made, "spec": {**made["spec"], "nodeName": "worker-1", "priority": 0, **added}}


def container(name: str = "main", **fields: Any) -> dict[str, Any]:
    """Make a container of a spec."""
    return {"name": name, "image": "app:1", **fields}


def sized(**amounts: dict[str, str]) -> dict[str, Any]:
    """Make a spec whose one container has these resources."""
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
def test_a_pod_that_did_not_change_needs_nothing(spec: dict[str, Any]) -> None:
    """What admission below has added is no difference."""
    below = stored(spec, tolerations=[*(spec.get("tolerations") or []), *DEFAULTS])
    assert spec_patch(pod(spec), below, PLACE) is None
    assert resize_patch(pod(spec), below) is None
    assert ephemeral_patch(pod(spec), below, PLACE) is None


@pytest.mark.parametrize("field", ["containers", "initContainers"])
def test_a_new_image_is_patched_by_name(field: str) -> None:
    """Only the container that changed is named, with nothing but its image."""
    old = {field: [container("a"), container("b")]}
    new = {field: [container("a"), container("b", image="app:2")]}
    assert spec_patch(pod(new), stored(old), PLACE) == {"spec": {field: [{"name": "b", "image": "app:2"}]}}


def test_a_container_that_is_not_below_is_not_added() -> None:
    """A pod's containers are fixed; one that a webhook below took away stays away."""
    other = pod({"containers": [container("other", resources={"requests": {"cpu": "1"}})]})
    assert spec_patch(other, stored({}), PLACE) is None
    assert resize_patch(other, stored({})) is None


@pytest.mark.parametrize(("above", "below", "sent"), [(30, None, 30), (10, 30, 10), (30, 10, None), (None, 10, None)])
def test_a_deadline_only_comes_nearer(above: int | None, below: int | None, sent: int | None) -> None:
    """Kubernetes refuses to lift or to put off a deadline."""
    upper = pod({"activeDeadlineSeconds": above} if above else {})
    seen = stored({"activeDeadlineSeconds": below} if below else {})
    expected = {"spec": {"activeDeadlineSeconds": sent}} if sent else None
    assert spec_patch(upper, seen, PLACE) == expected


def test_tolerations_are_added_and_never_removed() -> None:
    """The list is replaced as a whole, so what is there below is in it."""
    new = {"key": "gpu", "operator": "Exists"}
    body = spec_patch(pod({"tolerations": [new]}), stored({}, tolerations=DEFAULTS), PLACE)
    assert body == {"spec": {"tolerations": [*DEFAULTS, new]}}
    gone = stored({"tolerations": [new]})
    assert spec_patch(pod(), gone, PLACE) is None


def test_the_seconds_of_a_toleration_may_change() -> None:
    """In place, without a second one of its kind."""
    old = {"key": "gpu", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 60}
    new = {**old, "tolerationSeconds": 90}
    body = spec_patch(pod({"tolerations": [new]}), stored({"tolerations": [old]}, tolerations=[old, *DEFAULTS]), PLACE)
    assert body == {"spec": {"tolerations": [new, *DEFAULTS]}}


def test_our_unlimited_tolerations_do_not_travel() -> None:
    """They are for the upper cluster: the limits below stay."""
    unlimited = [{field: one[field] for field in ("key", "operator", "effect")} for one in DEFAULTS]
    assert spec_patch(pod({"tolerations": unlimited}), stored({}, tolerations=DEFAULTS), PLACE) is None


def test_a_resize_names_the_container_and_its_new_amounts() -> None:
    """Requests and limits each as a whole list, so that they can be read beside the upper spec."""
    old = sized(requests={"cpu": "1", "memory": "1Gi"}, limits={"cpu": "2"})
    new = sized(requests={"cpu": "1500m", "memory": "1Gi"}, limits={"cpu": "2"})
    assert resize_patch(pod(new), stored(old)) == {
        "spec": {
            "containers": [{"name": "main", "resources": {"requests": {"cpu": "1500m", "memory": "1Gi"}}}],
        }
    }


def test_amounts_are_compared_as_amounts() -> None:
    """1 and 1000m are the same, whoever wrote which."""
    assert resize_patch(pod(sized(requests={"cpu": "1"})), stored(sized(requests={"cpu": "1000m"}))) is None


def test_limits_that_admission_below_added_are_no_resize() -> None:
    """A LimitRange below is the lower cluster's own rule."""
    below = stored({}, **sized(limits={"cpu": "1"}, requests={"cpu": "1"}))
    assert resize_patch(pod(), below) is None


def test_an_amount_that_is_new_is_a_resize() -> None:
    """What the upper spec names and the lower one lacks is sent."""
    body = resize_patch(pod(sized(limits={"memory": "1Gi"})), stored({}))
    assert body == {"spec": {"containers": [{"name": "main", "resources": {"limits": {"memory": "1Gi"}}}]}}


def test_sidecars_and_the_pod_as_a_whole_are_resized_too() -> None:
    """Init containers by name, pod-level resources in their own field."""
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
    """Its resources cannot change in Kubernetes, so a difference is the lower cluster's own doing."""
    old = {"initContainers": [container("i", resources={"requests": {"cpu": "1"}})]}
    new = {"initContainers": [container("i", resources={"requests": {"cpu": "2"}})]}
    assert resize_patch(pod(new), stored(old)) is None


def test_missing_ephemeral_containers_are_added() -> None:
    """Those that are below stay as they are, whatever the upper spec says of them now."""
    first, second = container("d1"), container("d2")
    upper = pod({"ephemeralContainers": [{**first, "image": "other"}, second]})
    assert ephemeral_patch(upper, stored({}, ephemeralContainers=[first]), PLACE) == {
        "spec": {"ephemeralContainers": [second]}
    }


@pytest.mark.parametrize("identity", ["none", "lower"])
def test_an_ephemeral_container_mounts_the_token_only_with_an_identity(identity: str) -> None:
    """Without one, the volume is not there below, and the mount would be refused."""
    token = {"name": "kube-api-access-x", "projected": {}}
    debug = container("d", volumeMounts=[{"name": "kube-api-access-x", "mountPath": "/t"}])
    body = ephemeral_patch(
        pod({"volumes": [token], "ephemeralContainers": [debug]}), stored({}), place(identity=identity)
    )
    assert ("volumeMounts" in body["spec"]["ephemeralContainers"][0]) is (identity == "lower")
