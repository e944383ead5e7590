"""Tests of which containers of a mirrored pod run, and since when."""

from typing import Any

import pytest
from worldkit import A, add_namespace, make_lower_pod, make_upper_pod, make_world, put

from tensile.kubelet.stats.usage import LowerPodRef, RunningPod, running_pod
from tensile.objects import Manifest

NOON = 1_772_366_400_000


def since(second: int) -> Manifest:
    """Return the state of a running container."""
    return {"running": {"startedAt": f"2026-03-01T12:00:{second:02d}Z"}}


def found(status: Manifest | None) -> RunningPod:
    """Return the running pod of an upper pod whose lower pod has this status."""
    world = make_world()
    add_namespace(world)
    upper_entry = put(world.lowers[A].upper_pods, make_upper_pod(namespace="shop"))
    lower_entry = put(world.lowers[A].pods, make_lower_pod(make_upper_pod(namespace="shop"), status))
    return running_pod(upper_entry, lower_entry)


def test_a_running_pod_has_upper_names_and_a_reference_to_its_lower_pod() -> None:
    """It is reported by the former and measured by the latter."""
    here = found(None)
    assert (here.namespace, here.name, here.uid) == ("shop", "web", "Pod-web")
    assert here.lower == LowerPodRef("shop", "web", "below-Pod-web")


def test_a_pod_without_a_status_has_no_start_and_no_running_containers() -> None:
    """The lower kubelet has not started it."""
    assert (found(None).started, found(None).containers) == (None, {})


def test_containers_of_every_kind_are_running_since_their_start() -> None:
    """These are sidecars, main containers and ephemeral containers."""
    status = {
        "startTime": "2026-03-01T12:00:00Z",
        "initContainerStatuses": [{"name": "side", "state": since(1)}],
        "containerStatuses": [{"name": "main", "state": since(2)}],
        "ephemeralContainerStatuses": [{"name": "probe", "state": since(3)}],
    }
    here = found(status)
    assert here.started == NOON
    assert here.containers == {"side": NOON + 1000, "main": NOON + 2000, "probe": NOON + 3000}


@pytest.mark.parametrize(
    "state",
    [
        {},
        {"waiting": {"reason": "CrashLoopBackOff"}},
        {"terminated": {"exitCode": 0, "startedAt": "2026-03-01T12:00:01Z"}},
        {"running": {}},
        {"running": {"startedAt": None}},
    ],
)
def test_containers_that_do_not_run_are_left_out(state: dict[str, Any]) -> None:
    """They wait, have ended, or have an unknown start."""
    statuses = [{"name": "main", "state": state}, {"name": "other", "state": since(5)}]
    assert found({"containerStatuses": statuses}).containers == {"other": NOON + 5000}
