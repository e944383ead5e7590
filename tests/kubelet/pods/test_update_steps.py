"""Changes of a running pod: a write each, fenced, and what is said of one that is refused."""

from typing import Any

import pytest
from podkit import place, pod, said
from podviewkit import sync_condition
from worldkit import NOW

from tensile.kubelet.pods.projection import lower_pod
from tensile.kubelet.pods.update import adds_containers, changes_below, changes_images
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
    """Return the writes for an upper pod that changed so since its lower pod was made."""
    spec: dict[str, Any] = {}
    for one in what:
        spec |= NEW[one]
    made = lower_pod(pod(), place())
    below = {**made, "metadata": {**made["metadata"], "uid": "below-1", "resourceVersion": "7"}}
    return changes_below(pod(spec), below, REF, place())


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
def test_each_change_has_its_way_and_its_fence(what: str, subresource: str, fence: dict[str, str]) -> None:
    """The lower pod's UID in each; a list that is replaced whole must be the one that was seen."""
    (change,) = changed(what)
    assert (change.ref, change.subresource, change.patch.media) == (REF, subresource, "strategic-merge-patch")
    meta = {key: value for key, value in change.patch.body["metadata"].items() if key != "annotations"}
    assert meta == fence
    assert change.patch.body["spec"].keys() == NEW[what].keys()
    assert change.in_plan, "a person decides about it"
    assert change.independent, "it holds up no other"


def test_a_pod_that_did_not_change_needs_no_write() -> None:
    """Most looks end here."""
    assert changed() == []


def test_several_changes_are_several_writes() -> None:
    """One that is refused must not take the others with it."""
    assert [one.subresource for one in changed("image", "tolerations", "debug")] == ["", "", "ephemeralcontainers"]


def test_what_needs_more_care_can_be_told_apart() -> None:
    """Images come with their note, new containers with what they refer to."""
    image, tolerations, debug = changed("image", "tolerations", "debug")
    assert [changes_images(one) for one in (image, tolerations, debug)] == [True, False, False]
    assert [adds_containers(one) for one in (image, tolerations, debug)] == [False, False, True]


def test_a_refused_change_is_said_in_a_condition() -> None:
    """With the lower cluster's own words, and which cluster that is."""
    found = sync_condition(pod(), NO, "lower-a", NOW, waiting=True)
    assert found is not None
    assert (found["type"], found["status"], found["reason"]) == (SYNCED, "False", "Forbidden")
    assert found["message"] == "a change of this pod is not applied in lower cluster lower-a: denied by a policy"
    assert (
        len((sync_condition(pod(), NO._replace(message="x" * 5000), "lower-a", NOW, waiting=True) or {})["message"])
        == 1024
    )


def test_the_condition_is_the_same_until_something_else_is_said() -> None:
    """Or each try would be a write."""
    first = sync_condition(pod(), NO, "lower-a", NOW, waiting=True)
    told = pod(status={"conditions": [first]})
    assert sync_condition(told, NO, "lower-a", NOW.replace(year=2027), waiting=True) == first


@pytest.mark.parametrize("waiting", [True, False])
def test_the_condition_goes_when_nothing_waits(*, waiting: bool) -> None:
    """And stays as it is while a change that nothing is said against is on its way."""
    told = pod(status={"conditions": [said(SYNCED, "False", reason="Forbidden")]})
    found = sync_condition(told, None, "lower-a", NOW, waiting=waiting)
    assert (found is not None) is waiting
