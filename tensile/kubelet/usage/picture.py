"""What a virtual node and the pods on it have used, put together from the lower's samples and the mirrored pods.

A sample carries names and no UID, so it counts for a container only when it was taken after that container started:
what had its name before is somebody else's. Only what runs is in the picture, as with a kubelet.
"""

from collections.abc import Hashable, Iterable, Iterator, Mapping
from typing import NamedTuple

from tensile.kubelet.usage.counters import Counter, Ledger
from tensile.kubelet.usage.running import Runner
from tensile.kubelet.usage.samples import NOTHING, Amount, PodSample, Sample

_NODE = "node"


class Reading(NamedTuple):
    """A counter of cpu at its time, with the rate and the bytes of memory that it was last counted on by."""

    counter: Counter
    amount: Amount


class ContainerReading(NamedTuple):
    """A container; `started` in milliseconds since 1970."""

    name: str
    started: int
    reading: Reading


class PodReading(NamedTuple):
    """A pod under its upper name, all of its containers together, and each of them."""

    runner: Runner
    reading: Reading
    containers: tuple[ContainerReading, ...]


class Picture(NamedTuple):
    """A virtual node, None where no node below has been measured yet, and its pods."""

    name: str
    node: Reading | None
    pods: tuple[PodReading, ...]


def picture(
    name: str,
    node: Sample | None,
    runners: Iterable[Runner],
    samples: Mapping[tuple[str, str], PodSample],
    ledger: Ledger,
) -> Picture:
    """Take samples in; those of pods are by lower namespace and name. Counters of what runs no more are dropped."""
    there: set[Hashable] = {_NODE}
    pods: list[PodReading] = []
    for runner in runners:
        there.update(_keys(runner))
        found = _pod(runner, samples.get((runner.below.namespace, runner.below.name)), ledger)
        pods += () if found is None else (found,)
    ledger.forget_all_but(there)
    return Picture(name, _node(node, ledger), tuple(pods))


def _node(sample: Sample | None, ledger: Ledger) -> Reading | None:
    if sample is None:
        return None
    counter = ledger.count(_NODE, sample.used.cpu, sample.time, sample.window)
    return Reading(counter, sample.used)


def _pod(runner: Runner, sample: PodSample | None, ledger: Ledger) -> PodReading | None:
    """Count a pod and its containers on; None where none of them has been measured since it started."""
    measured = tuple(_containers(runner, sample, ledger)) if sample else ()
    if not sample or not measured:
        return None
    together = sum((one.reading.amount for one in measured), NOTHING)
    first = min(one.started for one in measured)
    counter = ledger.count(runner.below.uid, together.cpu, sample.time, sample.window, first)
    return PodReading(runner, Reading(counter, together), measured)


def _containers(runner: Runner, sample: PodSample, ledger: Ledger) -> Iterator[ContainerReading]:
    for key, (name, started) in zip(_keys(runner), runner.containers.items(), strict=False):
        amount = sample.containers.get(name)
        if amount is not None and started <= sample.time:
            counter = ledger.count(key, amount.cpu, sample.time, sample.window, started)
            yield ContainerReading(name, started, Reading(counter, amount))


def _keys(runner: Runner) -> tuple[Hashable, ...]:
    """Give the names under which a pod's containers are counted, and the pod: one that restarts is another one."""
    return (*((runner.below.uid, name, started) for name, started in runner.containers.items()), runner.below.uid)
