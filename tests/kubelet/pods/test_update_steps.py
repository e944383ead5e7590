"""Tests of the writes for changes of a running pod: one each, with preconditions, and a condition if refused."""

from typing import Any

import pytest
from podkit import lower_context, pod, stored_condition
from podviewkit import sync_condition
from worldkit import NOW

from tensile.kubelet.pods.projection import to_lower_pod
from tensile.kubelet.pods.update import adds_containers, changes_images, lower_pod_updates
from tensile.names import SYNCED
from tensile.objects import POD, Manifest, Ref
from tensile.reconcile.desired import Patched
from tensile.reconcile.world import Problem

REF = Ref("lower-a", POD, "default", "web")
NO = Problem("Forbidden", "denied by a policy")
NEW: dict[str, Manifest] = {
    "image": {"containers": [{"name": "main", "image": "app:2"}]},
    "deadline": {"activeDeadlineSeconds": 30},
    "tolerations": {"tolerations": [{"key": "gpu", "operator": "Exists"}]},
    "resize": {"containers": [{"name": "main", "image": "app:1", "resources": {"limits": {"cpu": "2"}}}]},
    "debug": {"ephemeralContainers": [{"name": "debug", "image": "d:1"}]},
}


def changed(*what: str) -> list[Patched]:
    """Return the writes for an upper pod that changed in these ways after its lower pod was created."""
    spec: dict[str, Any] = {}
    for one in what:
        spec |= NEW[one]
    made = to_lower_pod(pod(), lower_context())
    lower_object = {**made, "metadata": {**made["metadata"], "uid": "below-1", "resourceVersion": "7"}}
    return lower_pod_updates(pod(spec), lower_object, REF, lower_context())


@pytest.mark.parametrize(
    ("what", "subresource", "fence"),
    [
        ("image", "", {"uid": "below-1"}),
        ("deadline", "", {"uid": "below-1"}),
        ("tolerations", "", {"uid": "below-1", "resourceVersion": "7"}),
        ("resize", "resize", {"uid": "below-1"}),
        ("debug", "ephemeralcontainers", {"uid": "below-1"}),
    ],
)
def test_each_change_has_its_subresource_and_preconditions(what: str, subresource: str, fence: dict[str, str]) -> None:
    """Each has the lower pod's UID, and a list that is replaced also has the resourceVersion."""
    (change,) = changed(what)
    assert (change.ref, change.subresource, change.patch.media) == (REF, subresource, "strategic-merge-patch")
    meta = {key: value for key, value in change.patch.body["metadata"].items() if key != "annotations"}
    assert meta == fence
    assert change.patch.body["spec"].keys() == NEW[what].keys()
    assert change.in_plan, "a person decides about it"
    assert change.independent, "it holds up no other"


def test_an_unchanged_pod_needs_no_write() -> None:
    """Most syncs end here."""
    assert changed() == []


def test_several_changes_are_separate_writes() -> None:
    """A change that is refused must not prevent the others."""
    assert [one.subresource for one in changed("image", "tolerations", "debug")] == ["", "", "ephemeralcontainers"]


def test_changes_of_images_and_new_containers_are_distinguished() -> None:
    """Images are sent with their record, and new containers wait for their references."""
    image, tolerations, debug = changed("image", "tolerations", "debug")
    assert [changes_images(one) for one in (image, tolerations, debug)] == [True, False, False]
    assert [adds_containers(one) for one in (image, tolerations, debug)] == [False, False, True]


def test_a_refused_change_is_reported_in_a_condition() -> None:
    """The message contains the lower cluster's name and its own words, up to 1,024 characters."""
    found = sync_condition(pod(), NO, "lower-a", NOW, waiting=True)
    assert found is not None
    assert (found["type"], found["status"], found["reason"]) == (SYNCED, "False", "Forbidden")
    assert found["message"] == "a change of this pod is not applied in lower cluster lower-a: denied by a policy"
    assert (
        len((sync_condition(pod(), NO._replace(message="x" * 5000), "lower-a", NOW, waiting=True) or {})["message"])
        == 1024
    )


def test_the_sync_condition_is_unchanged_until_the_problem_changes() -> None:
    """Otherwise each attempt would be a write."""
    first = sync_condition(pod(), NO, "lower-a", NOW, waiting=True)
    upper = pod(status={"conditions": [first]})
    assert sync_condition(upper, NO, "lower-a", NOW.replace(year=2027), waiting=True) == first


@pytest.mark.parametrize("waiting", [True, False])
def test_the_sync_condition_is_removed_when_no_change_is_pending(*, waiting: bool) -> None:
    """It is kept while a change without a known problem is pending."""
    upper = pod(status={"conditions": [stored_condition(SYNCED, "False", reason="Forbidden")]})
    found = sync_condition(upper, None, "lower-a", NOW, waiting=waiting)
    assert (found is not None) is waiting
