"""Pods as large as an apiserver takes them: what is worked out about one grows with it, and no faster.

The bounds are of CPU time and a hundred times what the work takes; what grew with the square was over each of them.
"""

from collections.abc import Callable
from time import process_time
from typing import Any

import pytest
from podkit import pod
from podviewkit import reflected_containers

from tensile.kubelet.pods.service_account import in_place_of_tokens
from tensile.reconcile.pods.demand import pod_requests

MOST = 0.25
"""Seconds."""
NAMES = [f"c{number}" for number in range(4_000)]


def taken(work: Callable[[], Any]) -> tuple[float, Any]:
    """Return the seconds that some work takes, at best, and what comes of it."""
    found = []
    for _ in range(3):
        begin = process_time()
        result = work()
        found.append((process_time() - begin, result))
    return min(found, key=lambda one: one[0])


def test_files_about_a_pod() -> None:
    """Half of them with its namespace, which come out of the Secret with its tokens."""
    fields = ("metadata.namespace", "metadata.name")
    items = [{"path": name, "fieldRef": {"fieldPath": fields[len(name) % 2]}} for name in NAMES * 2]
    sources = [{"serviceAccountToken": {"path": "token"}}, {"downwardAPI": {"items": items}}]
    volume = {"name": "v", "projected": {"sources": sources}}
    seconds, found = taken(lambda: in_place_of_tokens(volume, "upper-token-x"))
    _, secret, rest = found["projected"]["sources"]
    assert len(secret["secret"]["items"]) + len(rest["downwardAPI"]["items"]) == len(items)
    assert seconds < MOST


@pytest.mark.parametrize(
    ("kind", "statuses", "shown"),
    [
        ("containers", "containerStatuses", "running"),
        ("ephemeralContainers", "ephemeralContainerStatuses", "terminated"),
    ],
)
def test_containers_that_come_back(kind: str, statuses: str, shown: str) -> None:
    """All at once: they may, but for ephemeral ones."""
    above = [{"name": name, "state": {"terminated": {"exitCode": 1}}} for name in NAMES]
    below = [{"name": name, "state": {"running": {}}} for name in NAMES]
    upper = pod({kind: [{"name": name, "image": "app:1"} for name in NAMES]}, {statuses: above})
    seconds, found = taken(lambda: reflected_containers(upper, {"status": {statuses: below}}))
    assert [list(one["state"]) for one in found[statuses]] == [[shown]] * len(NAMES)
    assert seconds < MOST


@pytest.mark.parametrize("kind", ["containers", "initContainers", "sidecars"])
def test_containers_that_each_ask_for_something_else(kind: str) -> None:
    """Twenty resources each, and each container with a status of its own."""
    asked = {name: {f"a/{name}-{one}": "1" for one in range(20)} for name in NAMES[:1_000]}
    listed = [{"name": name, "resources": {"requests": of}} for name, of in asked.items()]
    restarts = [{**one, "restartPolicy": "Always"} for one in listed]
    lists = {"containers": listed, "initContainers": listed, "sidecars": restarts}
    spec = {"containers": [], ("initContainers" if kind == "sidecars" else kind): lists[kind]}
    status = {"containerStatuses" if kind == "containers" else "initContainerStatuses": listed}
    seconds, found = taken(lambda: pod_requests(pod(spec, status)))
    assert found == {**{name: 1000 for of in asked.values() for name in of}, "pods": 1000}
    assert seconds < 2 * MOST
