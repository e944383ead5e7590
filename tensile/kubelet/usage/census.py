"""What runs on a virtual node, as a kubelet tells it: in its own metrics, and as the list of pods of its runtime.

That list is a kubelet's look at its containers and not at the API, so it names pods and what runs of them, no more.
"""

from collections.abc import Sequence

import orjson

from tensile.kubelet.usage.running import Runner
from tensile.objects import Manifest


def census(node: str, runners: Sequence[Runner]) -> bytes:
    """Give the text of a kubelet's `/metrics`, as far as it is of the node and not of a process: names and numbers."""
    containers = sum(len(one.containers) for one in runners)
    lines = [
        *_gauge("kubelet_node_name", "The node's name. The count is always 1.", f'{{node="{node}"}} 1'),
        *_gauge("kubelet_running_pods", "Number of pods of which a container runs", f" {len(runners)}"),
        *_gauge(
            "kubelet_running_containers",
            "Number of containers that run",
            f'{{container_state="running"}} {containers}',
        ),
    ]
    return "\n".join((*lines, "")).encode()


def running_list(runners: Sequence[Runner]) -> bytes:
    """Give the JSON of a v1 PodList with names, UIDs and running containers."""
    return orjson.dumps(
        {"kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": [_pod(one) for one in runners]}
    )


def _gauge(name: str, words: str, value: str) -> tuple[str, str, str]:
    return f"# HELP {name} {words}", f"# TYPE {name} gauge", f"{name}{value}"


def _pod(one: Runner) -> Manifest:
    return {
        "metadata": {"name": one.name, "namespace": one.namespace, "uid": one.uid},
        "spec": {"containers": [{"name": name, "resources": {}} for name in one.containers]},
        "status": {},
    }
