"""Which containers of a mirrored pod run, and since when."""

from typing import Any

import pytest
from worldkit import A, home, put, twin, upper_pod, world

from tensile.kubelet.stats.usage import LowerPodRef, RunningPod, runner
from tensile.objects import Manifest

NOON = 1_772_366_400_000


def since(second: int) -> Manifest:
    """Return the state of a container that runs."""
    return {"running": {"startedAt": f"2026-03-01T12:00:{second:02d}Z"}}


def found(status: Manifest | None) -> RunningPod:
    """Return what runs of a pod whose lower one has a status."""
    here = world()
    home(here)
    above = put(here.lowers[A].upper_pods, upper_pod(namespace="shop"))
    below = put(here.lowers[A].pods, twin(upper_pod(namespace="shop"), status))
    return runner(above, below)


def test_names_are_the_uppers_and_the_place_is_the_lowers() -> None:
    """The pod is told of as above, and looked up as below."""
    here = found(None)
    assert (here.namespace, here.name, here.uid) == ("shop", "web", "Pod-web")
    assert here.below == LowerPodRef("shop", "web", "below-Pod-web")


def test_a_pod_that_has_not_started_runs_nothing() -> None:
    """Without a status there is no start."""
    assert (found(None).started, found(None).containers) == (None, {})


def test_containers_of_every_sort_run() -> None:
    """Sidecars, containers and added ones, each since its own start."""
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
def test_what_does_not_run_uses_nothing(state: dict[str, Any]) -> None:
    """A container that waits or has ended is left out, and one whose start nobody knows."""
    statuses = [{"name": "main", "state": state}, {"name": "other", "state": since(5)}]
    assert found({"containerStatuses": statuses}).containers == {"other": NOON + 5000}
