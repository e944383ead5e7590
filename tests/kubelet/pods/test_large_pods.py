"""Tests that the work for the largest pods of an apiserver grows linearly with their size.

The limits are CPU times and a hundred times what the work takes; an algorithm of quadratic time exceeds each of them.
"""

from collections.abc import Callable
from time import process_time
from typing import Any

import pytest
from podkit import pod
from podviewkit import reflected_statuses

from tensile.kubelet.pods.service_account import with_secret
from tensile.reconcile.pods.demand import pod_requests

MOST = 0.25
"""Seconds."""
NAMES = [f"c{number}" for number in range(4_000)]


def taken(work: Callable[[], Any]) -> tuple[float, Any]:
    """Return the shortest time of some work in seconds, and its result."""
    found = []
    for _ in range(3):
        begin = process_time()
        result = work()
        found.append((process_time() - begin, result))
    return min(found, key=lambda one: one[0])


def test_replacing_token_volumes_of_many_items_is_fast() -> None:
    """Half of the items refer to the namespace, whose file is provided by the Secret with the tokens."""
    fields = ("metadata.namespace", "metadata.name")
    items = [{"path": name, "fieldRef": {"fieldPath": fields[len(name) % 2]}} for name in NAMES * 2]
    sources = [{"serviceAccountToken": {"path": "token"}}, {"downwardAPI": {"items": items}}]
    volume = {"name": "v", "projected": {"sources": sources}}
    seconds, found = taken(lambda: with_secret(volume, "upper-token-x"))
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
def test_reflecting_many_restarted_containers_is_fast(kind: str, statuses: str, shown: str) -> None:
    """All containers run again after they ended, which is permitted except for ephemeral containers."""
    upper_objects = [{"name": name, "state": {"terminated": {"exitCode": 1}}} for name in NAMES]
    lower_objects = [{"name": name, "state": {"running": {}}} for name in NAMES]
    upper = pod({kind: [{"name": name, "image": "app:1"} for name in NAMES]}, {statuses: upper_objects})
    seconds, found = taken(lambda: reflected_statuses(upper, {"status": {statuses: lower_objects}}))
    assert [list(one["state"]) for one in found[statuses]] == [[shown]] * len(NAMES)
    assert seconds < MOST


@pytest.mark.parametrize("kind", ["containers", "initContainers", "sidecars"])
def test_summing_the_requests_of_many_containers_is_fast(kind: str) -> None:
    """Each container requests twenty resources of its own and has its own status."""
    requests = {name: {f"a/{name}-{one}": "1" for one in range(20)} for name in NAMES[:1_000]}
    listed = [{"name": name, "resources": {"requests": of}} for name, of in requests.items()]
    restarts = [{**one, "restartPolicy": "Always"} for one in listed]
    lists = {"containers": listed, "initContainers": listed, "sidecars": restarts}
    spec = {"containers": [], ("initContainers" if kind == "sidecars" else kind): lists[kind]}
    status = {"containerStatuses" if kind == "containers" else "initContainerStatuses": listed}
    seconds, found = taken(lambda: pod_requests(pod(spec, status)))
    assert found == {**{name: 1000 for of in requests.values() for name in of}, "pods": 1000}
    assert seconds < 2 * MOST
