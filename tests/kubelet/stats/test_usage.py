"""Tests of the usage report of a virtual node, from samples that name pods as the lower cluster does."""

from usagekit import CPU, MEBI, NOON, node_sample, pod_sample, running

from tensile.kubelet.stats.usage import (
    Counter,
    CPUCounters,
    PodReading,
    PodSample,
    RunningPod,
    UsageRate,
    UsageReading,
    UsageReport,
    usage_report,
)

PLACE = ("mapped", "web-below")


def taken(runner: RunningPod, sample: PodSample | None, ledger: CPUCounters) -> PodReading | None:
    """Return the reading of one pod, None if there is none."""
    found = usage_report("v1", None, [runner], {} if sample is None else {PLACE: sample}, ledger)
    return found.pods[0] if found.pods else None


def test_a_pod_is_reported_by_its_upper_names() -> None:
    """Its sample is looked up by the lower namespace and name."""
    found = taken(running(), pod_sample(main=0.5), CPUCounters())
    assert found is not None
    assert (found.pod.namespace, found.pod.name, found.pod.uid) == ("shop", "web", "web-uid")
    assert found.containers[0].reading == UsageReading(Counter(NOON, 15 * CPU // 2), UsageRate(CPU // 2, 10 * MEBI))


def test_a_pods_usage_is_the_sum_of_its_containers() -> None:
    """The sum has a counter of its own."""
    found = taken(running(main=3600, side=3600), pod_sample(main=0.5, side=0.25), CPUCounters())
    assert found is not None
    assert [one.name for one in found.containers] == ["main", "side"]
    assert found.reading == UsageReading(Counter(NOON, 15 * CPU * 3 // 4), UsageRate(CPU * 3 // 4, 20 * MEBI))


def test_a_restart_resets_the_counter_of_the_container_but_not_of_the_pod() -> None:
    """The usage of the container's former run still belongs to the pod."""
    ledger = CPUCounters()
    before = taken(running(main=3600, side=3600), pod_sample(main=1, side=1), ledger)
    after = taken(running(main=-30, side=3600), pod_sample(45, main=1, side=1), ledger)
    assert before is not None
    assert after is not None
    assert [one.reading.counter.used for one in after.containers] == [15 * CPU, (15 + 45) * CPU]
    assert after.reading.counter.used == before.reading.counter.used + 2 * 45 * CPU


def test_a_sample_from_before_the_start_is_not_counted() -> None:
    """It belongs to the container's former run, or to another pod of the name."""
    assert taken(running(main=-1), pod_sample(main=1), CPUCounters()) is None
    found = taken(running(main=-1, side=10), pod_sample(main=1, side=0.5), CPUCounters())
    assert found is not None
    assert [one.name for one in found.containers] == ["side"]
    assert found.reading.amount.cpu == CPU // 2


def test_another_pod_of_the_name_has_a_new_counter() -> None:
    """Its UIDs in both clusters are different."""
    ledger = CPUCounters()
    taken(running(), pod_sample(main=1), ledger)
    other = running()._replace(uid="new", lower=running().lower._replace(uid="new-below"))
    found = taken(other, pod_sample(15, main=1), ledger)
    assert found is not None
    assert found.reading.counter.used == 15 * CPU


def test_a_pod_without_samples_is_not_reported() -> None:
    """There is no sample, or none of a container that runs."""
    assert taken(running(), None, CPUCounters()) is None
    assert taken(running(), pod_sample(other=1), CPUCounters()) is None


def test_samples_of_other_pods_are_ignored() -> None:
    """Only pods that are mirrored through the node are reported."""
    samples = {PLACE: pod_sample(main=1), ("mapped", "strange"): pod_sample(main=1), ("x", "web"): pod_sample(main=9)}
    found = usage_report("v1", node_sample(), [running()], samples, CPUCounters())
    assert [pod.pod.name for pod in found.pods] == ["web"]


def test_a_gap_in_the_samples_keeps_the_counters() -> None:
    """The counter of a running pod continues with the next sample."""
    ledger = CPUCounters()
    taken(running(), pod_sample(main=1), ledger)
    assert taken(running(), None, ledger) is None
    found = taken(running(), pod_sample(60, main=1), ledger)
    assert found is not None
    assert found.reading.counter == Counter(NOON + 60_000, 75 * CPU)


def test_counters_of_ended_pods_are_dropped() -> None:
    """Otherwise they would accumulate as long as the engine runs."""
    ledger = CPUCounters()
    usage_report("v1", node_sample(), [running()], {PLACE: pod_sample(main=1)}, ledger)
    assert len(ledger) == 3
    usage_report("v1", node_sample(), [], {}, ledger)
    assert len(ledger) == 1


def test_a_nodes_usage_is_that_of_its_sample() -> None:
    """Its counter continues with each sample; without a sample there is none."""
    ledger = CPUCounters()
    assert usage_report("v1", node_sample(0, 2), [], {}, ledger).node == UsageReading(
        Counter(NOON, 30 * CPU), UsageRate(2 * CPU, 1024 * MEBI)
    )
    found = usage_report("v1", node_sample(10, 3), [], {}, ledger)
    assert found.node is not None
    assert found.node.counter == Counter(NOON + 10_000, 60 * CPU)
    assert usage_report("v1", None, [], {}, CPUCounters()) == UsageReport("v1", None, ())
