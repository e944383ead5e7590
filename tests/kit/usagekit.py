"""Running pods and their samples, for the tests of a virtual node's usage."""

from tensile.kubelet.stats.usage import LowerPodRef, PodSample, RunningPod, Sample, UsageRate

CPU = 1_000_000_000
MEBI = 1 << 20
NOON = 1_772_366_400_000
HOUR = 3_600_000


def running(name: str = "web", **containers: int) -> RunningPod:
    """Make a running pod of namespace shop; `containers` started so many seconds before noon.

    Its lower pod is mapped/NAME-below.
    """
    starts = {one: NOON - seconds * 1000 for one, seconds in (containers or {"main": 3600}).items()}
    return RunningPod(
        "shop",
        name,
        f"{name}-uid",
        LowerPodRef("mapped", f"{name}-below", f"{name}-below-uid"),
        NOON - HOUR,
        starts,
        {one: f"{one}:1" for one in starts},
    )


def pod_sample(second: int = 0, **containers: float) -> PodSample:
    """Make a sample so many seconds after noon over fifteen seconds: cpus by container, and 10 MiB each."""
    amounts = {name: UsageRate(round(cpus * CPU), 10 * MEBI) for name, cpus in containers.items()}
    return PodSample(NOON + second * 1000, 15_000, amounts)


def node_sample(second: int = 0, cpus: float = 1.0) -> Sample:
    """Make a sample of all nodes together so many seconds after noon: cpus, and 1 GiB."""
    return Sample(NOON + second * 1000, 15_000, UsageRate(round(cpus * CPU), 1024 * MEBI))
