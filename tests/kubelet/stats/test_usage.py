"""What is known of a virtual node's use, from samples that name pods as the lower cluster does."""

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
    picture,
)

PLACE = ("mapped", "web-below")


def taken(runner: RunningPod, sample: PodSample | None, ledger: CPUCounters) -> PodReading | None:
    """Return what is known of one pod."""
    found = picture("v1", None, [runner], {} if sample is None else {PLACE: sample}, ledger)
    return found.pods[0] if found.pods else None


def test_a_pod_is_told_of_by_its_upper_names() -> None:
    """The sample is looked up by the lower ones."""
    found = taken(running(), pod_sample(main=0.5), CPUCounters())
    assert found is not None
    assert (found.runner.namespace, found.runner.name, found.runner.uid) == ("shop", "web", "web-uid")
    assert found.containers[0].reading == UsageReading(Counter(NOON, 15 * CPU // 2), UsageRate(CPU // 2, 10 * MEBI))


def test_a_pod_is_the_sum_of_its_containers() -> None:
    """With a counter of its own."""
    found = taken(running(main=3600, side=3600), pod_sample(main=0.5, side=0.25), CPUCounters())
    assert found is not None
    assert [one.name for one in found.containers] == ["main", "side"]
    assert found.reading == UsageReading(Counter(NOON, 15 * CPU * 3 // 4), UsageRate(CPU * 3 // 4, 20 * MEBI))


def test_a_restart_begins_the_containers_counter_and_not_the_pods() -> None:
    """What its former run used is still the pod's."""
    ledger = CPUCounters()
    before = taken(running(main=3600, side=3600), pod_sample(main=1, side=1), ledger)
    after = taken(running(main=-30, side=3600), pod_sample(45, main=1, side=1), ledger)
    assert before is not None
    assert after is not None
    assert [one.reading.counter.used for one in after.containers] == [15 * CPU, (15 + 45) * CPU]
    assert after.reading.counter.used == before.reading.counter.used + 2 * 45 * CPU


def test_a_sample_from_before_the_start_is_not_counted() -> None:
    """It tells of the container's former run, or of another pod that had the name."""
    assert taken(running(main=-1), pod_sample(main=1), CPUCounters()) is None
    found = taken(running(main=-1, side=10), pod_sample(main=1, side=0.5), CPUCounters())
    assert found is not None
    assert [one.name for one in found.containers] == ["side"]
    assert found.reading.amount.cpu == CPU // 2


def test_another_pod_of_the_name_is_counted_anew() -> None:
    """Its UID is another, below too."""
    ledger = CPUCounters()
    taken(running(), pod_sample(main=1), ledger)
    other = running()._replace(uid="new", below=running().below._replace(uid="new-below"))
    found = taken(other, pod_sample(15, main=1), ledger)
    assert found is not None
    assert found.reading.counter.used == 15 * CPU


def test_what_nobody_measured_is_not_there() -> None:
    """No sample, or none of a container that runs."""
    assert taken(running(), None, CPUCounters()) is None
    assert taken(running(), pod_sample(other=1), CPUCounters()) is None


def test_samples_of_other_pods_are_passed_over() -> None:
    """Only what is mirrored through the node is told of."""
    samples = {PLACE: pod_sample(main=1), ("mapped", "strange"): pod_sample(main=1), ("x", "web"): pod_sample(main=9)}
    found = picture("v1", node_sample(), [running()], samples, CPUCounters())
    assert [pod.runner.name for pod in found.pods] == ["web"]


def test_a_gap_in_the_samples_costs_nothing() -> None:
    """The counter of what still runs is kept, and goes on where it was."""
    ledger = CPUCounters()
    taken(running(), pod_sample(main=1), ledger)
    assert taken(running(), None, ledger) is None
    found = taken(running(), pod_sample(60, main=1), ledger)
    assert found is not None
    assert found.reading.counter == Counter(NOON + 60_000, 75 * CPU)


def test_counters_of_what_runs_no_more_are_dropped() -> None:
    """Or they would pile up for as long as the engine runs."""
    ledger = CPUCounters()
    picture("v1", node_sample(), [running()], {PLACE: pod_sample(main=1)}, ledger)
    assert len(ledger) == 3
    picture("v1", node_sample(), [], {}, ledger)
    assert len(ledger) == 1


def test_the_node_is_what_was_measured_of_it() -> None:
    """A counter like any other; without a sample there is none."""
    ledger = CPUCounters()
    assert picture("v1", node_sample(0, 2), [], {}, ledger).node == UsageReading(
        Counter(NOON, 30 * CPU), UsageRate(2 * CPU, 1024 * MEBI)
    )
    found = picture("v1", node_sample(10, 3), [], {}, ledger)
    assert found.node is not None
    assert found.node.counter == Counter(NOON + 10_000, 60 * CPU)
    assert picture("v1", None, [], {}, CPUCounters()) == UsageReport("v1", None, ())
