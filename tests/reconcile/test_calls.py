"""Tests of the number of function calls that the engine needs for one event, to notice changes that make it slower.

Only calls of the engine count, not those of the clusters in memory.
"""

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import orjson
import pytest
from stagekit import EngineSimulation
from virtualtime import in_virtual_time
from worldkit import A, make_upper_pod, with_managed_fields

import tensile
from tensile.objects import NAMESPACE, POD, UPPER, Manifest, Ref

HOME = str(Path(tensile.__file__).parent)
CLUSTERS = ("/reconcile/dryrun/", "/tests/")
THEN = "2026-03-01T12:00:01Z"
BELOW = Ref(A, POD, "default", "web")
KINDS = ("PodScheduled", "PodReadyToStartContainers", "Initialized", "ContainersReady", "Ready")
READY = {
    "phase": "Running",
    "startTime": THEN,
    "podIP": "10.1.1.1",
    "podIPs": [{"ip": "10.1.1.1"}],
    "hostIP": "10.0.0.9",
    "hostIPs": [{"ip": "10.0.0.9"}],
    "conditions": [{"type": kind, "status": "True", "lastTransitionTime": THEN} for kind in KINDS],
    "containerStatuses": [
        {
            "name": "main",
            "ready": True,
            "started": True,
            "restartCount": 0,
            "image": "i",
            "imageID": "i",
            "containerID": "x://1",
            "state": {"running": {"startedAt": THEN}},
        }
    ],
}


@contextmanager
def counted(calls: Counter[str]) -> Iterator[None]:
    """Count the engine's calls by file in the block."""

    def count(frame: FrameType, event: str, _value: object) -> None:
        name, caller = frame.f_code.co_filename, frame.f_back.f_code.co_filename if frame.f_back else ""
        is_ours = event == "call" and name.startswith(HOME) and not any(one in name + caller for one in CLUSTERS)
        calls[name] += is_ours

    sys.setprofile(count)
    try:
        yield
    finally:
        sys.setprofile(None)


async def trip(change: Callable[[Manifest], None]) -> tuple[int, int]:
    """Change the lower pod of a mirrored pod that has a node, and return the numbers of calls and files involved."""
    simulation, calls = EngineSimulation(), Counter[str]()
    simulation.create_nodes()
    space = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "default", "uid": "ns"}}
    simulation.clusters[UPPER].place(NAMESPACE, with_managed_fields(space))
    simulation.start()
    await simulation.wait_idle()
    status = {"phase": "Pending", "conditions": [{"type": "PodScheduled", "status": "True"}]}
    simulation.clusters[UPPER].place(POD, with_managed_fields(make_upper_pod(status=status)))
    await simulation.wait_idle()
    _edit(simulation, lambda pod: pod["spec"].update(nodeName="n1"))
    await simulation.wait_idle()
    with counted(calls):
        _edit(simulation, change)
        await simulation.wait_idle()
    await simulation.stop()
    return calls.total(), len(+calls)


def _edit(simulation: EngineSimulation, change: Callable[[Manifest], None]) -> None:
    pod: Manifest = orjson.loads(orjson.dumps(simulation.find(BELOW)))
    change(pod)
    simulation.clusters[A].place(POD, with_managed_fields(pod))


def managed(pod: Manifest) -> None:
    """Change the kubelet's entry in managedFields, which no decision reads."""
    book = {"manager": "kubelet", "operation": "Update", "subresource": "status", "time": THEN}
    pod["metadata"]["managedFields"] = [*pod["metadata"]["managedFields"], book]


@pytest.mark.parametrize(
    ("change", "most", "files"),
    [(lambda pod: pod.update(status=READY), 350, 20), (managed, 60, 10)],
    ids=["ready", "no change"],
)
@in_virtual_time
async def test_an_event_takes_few_calls(change: Callable[[Manifest], None], most: int, files: int) -> None:
    """Calls are counted from the lower pod's watch event to the upper status patch, or to the final comparison."""
    calls, seen = await trip(change)
    assert 0 < calls <= most
    assert seen <= files
