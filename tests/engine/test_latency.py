"""Tests of the latency metrics of pods, which are measured at the caches."""

from worldkit import A, change_as_other_client, delete_observed, make_lower_pod, make_upper_pod, make_world, put

from tensile.engine.tracing import SyncLatency
from tensile.kube.measures import Histogram
from tensile.objects import Manifest


class MeasuredLower:
    """A lower whose latencies are measured, with or without a list of upper pods, and a clock that the test sets."""

    def __init__(self, *, listed: bool = True) -> None:
        self.now = 100.0
        self.lower = make_world().lowers[A]
        self.lower.upper_pods.synced = listed
        self.latency = SyncLatency(lambda: self.now)
        self.latency.follow(self.lower)

    @property
    def created(self) -> Histogram:
        """Return the durations until lower pods existed."""
        return self.latency.created[A]

    @property
    def reported(self) -> Histogram:
        """Return the durations until statuses were reported."""
        return self.latency.reported[A]


def count(histogram: Histogram) -> int:
    """Return the number of durations in a histogram."""
    return sum(histogram.counts)


def run(pod: Manifest) -> None:
    """Set the phase of a pod to Running."""
    pod["status"] = {"phase": "Running"}


def end(pod: Manifest) -> None:
    """Set the phase of a pod to Succeeded."""
    pod["status"] = {"phase": "Succeeded"}


def relabel(pod: Manifest) -> None:
    """Change a label of a pod, and no status."""
    pod["metadata"].setdefault("labels", {})["tier"] = "gold"


def test_the_creation_latency_lasts_from_the_binding_to_the_lower_pod() -> None:
    """It is measured once, and other changes of the upper pod do not affect it."""
    watch, pod = MeasuredLower(), make_upper_pod()
    put(watch.lower.upper_pods, pod)
    watch.now += 0.5
    change_as_other_client(watch.lower.upper_pods, "web", relabel)
    watch.now += 0.5
    put(watch.lower.pods, make_lower_pod(pod))
    change_as_other_client(watch.lower.pods, "web", relabel)
    assert (count(watch.created), watch.created.total) == (1, 1.0)


def test_pods_that_were_bound_before_the_first_list_are_not_measured() -> None:
    """The time of their binding is not known; pods that appear after the first list have just been bound."""
    watch, earlier, later = MeasuredLower(listed=False), make_upper_pod("earlier"), make_upper_pod("later")
    put(watch.lower.upper_pods, earlier)
    watch.lower.upper_pods.take_over(tuple(watch.lower.upper_pods), watch.lower.upper_pods.version)
    watch.now += 50
    put(watch.lower.upper_pods, later)
    watch.now += 1
    put(watch.lower.pods, make_lower_pod(earlier), make_lower_pod(later))
    assert (count(watch.created), watch.created.total) == (1, 1.0)


def test_a_lower_pod_of_another_uid_does_not_end_the_creation_latency() -> None:
    """The new upper pod waits until the old lower pod is removed."""
    watch = MeasuredLower()
    put(watch.lower.upper_pods, make_upper_pod(uid="new"))
    put(watch.lower.pods, make_lower_pod(make_upper_pod(uid="old")))
    assert count(watch.created) == 0


def test_the_status_latency_lasts_until_the_upper_pod_has_the_status() -> None:
    """It starts with the first lower status that the upper pod does not have."""
    watch, pod = MeasuredLower(), make_upper_pod()
    put(watch.lower.upper_pods, pod)
    put(watch.lower.pods, make_lower_pod(pod))
    change_as_other_client(watch.lower.pods, "web", run)
    watch.now += 2
    change_as_other_client(watch.lower.pods, "web", end)
    watch.now += 1
    change_as_other_client(watch.lower.upper_pods, "web", run)
    assert count(watch.reported) == 0
    change_as_other_client(watch.lower.upper_pods, "web", end)
    change_as_other_client(watch.lower.upper_pods, "web", relabel)
    assert (count(watch.reported), watch.reported.total) == (1, 3.0)


def test_the_time_until_a_readiness_gate_opens_is_not_measured() -> None:
    """Without a gate, the time until the upper pod is Ready counts."""
    watch = MeasuredLower()
    for name, gates in (("gated", [{"conditionType": "example.com/open"}]), ("plain", [])):
        pod = make_upper_pod(name, {"readinessGates": gates})
        put(watch.lower.upper_pods, pod)
        put(watch.lower.pods, make_lower_pod(pod))
        change_as_other_client(watch.lower.pods, name, be_ready)
    watch.now += 1
    for name in ("gated", "plain"):
        change_as_other_client(watch.lower.upper_pods, name, run)
    assert (count(watch.reported), watch.reported.total) == (1, 1.0)
    watch.now += 50
    for name in ("gated", "plain"):
        change_as_other_client(watch.lower.upper_pods, name, be_ready)
    assert (count(watch.reported), watch.reported.total) == (2, 52.0)


def be_ready(pod: Manifest) -> None:
    """Set the status of a pod that runs and is Ready."""
    pod["status"] = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}


def test_a_status_change_that_was_reverted_is_not_measured() -> None:
    """Otherwise the next change would seem to have started at that time."""
    watch, pod = MeasuredLower(), make_upper_pod(status={"phase": "Running"})
    put(watch.lower.upper_pods, pod)
    put(watch.lower.pods, make_lower_pod(pod, {"phase": "Running"}))
    change_as_other_client(watch.lower.pods, "web", end)
    change_as_other_client(watch.lower.pods, "web", run)
    watch.now += 50
    change_as_other_client(watch.lower.pods, "web", end)
    watch.now += 1
    change_as_other_client(watch.lower.upper_pods, "web", end)
    assert (count(watch.reported), watch.reported.total) == (1, 1.0)


def test_a_deleted_pod_is_not_measured() -> None:
    """A new pod of the same name is measured from its own binding."""
    watch, pod, successor = MeasuredLower(), make_upper_pod(uid="old"), make_upper_pod(uid="new")
    put(watch.lower.upper_pods, pod)
    delete_observed(watch.lower.upper_pods, "web")
    watch.now += 50
    put(watch.lower.upper_pods, successor)
    watch.now += 1
    put(watch.lower.pods, make_lower_pod(successor))
    assert (count(watch.created), watch.created.total) == (1, 1.0)
