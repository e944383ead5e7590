"""What a virtual node used, as a kubelet's `/stats/summary` tells it: the part of it that is known, cpu and memory.

Network and file systems are left out, as a kubelet leaves out what it cannot measure.
"""

from datetime import UTC, datetime
from typing import Any

import orjson

from tensile.kubelet.usage.picture import ContainerReading, Picture, PodReading, Reading
from tensile.objects import timestamp

_THOUSAND = 1000

Stats = dict[str, Any]


def summary(picture: Picture) -> bytes:
    """Give the JSON of a stats v1alpha1 Summary."""
    node = {"nodeName": picture.name, **(_stats(picture.node) if picture.node else {})}
    return orjson.dumps({"node": node, "pods": [_pod(pod) for pod in picture.pods]})


def _pod(pod: PodReading) -> Stats:
    runner = pod.runner
    return {
        "podRef": {"name": runner.name, "namespace": runner.namespace, "uid": runner.uid},
        "startTime": None if runner.started is None else _time(runner.started),
        "containers": [_container(one) for one in pod.containers],
        **_stats(pod.reading),
    }


def _container(one: ContainerReading) -> Stats:
    return {"name": one.name, "startTime": _time(one.started), **_stats(one.reading)}


def _stats(reading: Reading) -> Stats:
    time = _time(reading.counter.time)
    return {
        "cpu": {"time": time, "usageNanoCores": reading.amount.cpu, "usageCoreNanoSeconds": reading.counter.used},
        "memory": {"time": time, "workingSetBytes": reading.amount.memory},
    }


def _time(milliseconds: int) -> str:
    return timestamp(datetime.fromtimestamp(milliseconds / _THOUSAND, UTC))
