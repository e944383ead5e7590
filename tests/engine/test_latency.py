"""How long pods take, measured at the caches."""

from worldkit import A, changed, drop, put, twin, upper_pod, world

from tensile.engine.tracing import SyncLatency
from tensile.kube.measures import Histogram
from tensile.objects import Manifest


class Watch:
    """A lower that is measured, whose upper pods are listed or not, and a clock that the test sets."""

    def __init__(self, *, listed: bool = True) -> None:
        self.now = 100.0
        self.lower = world().lowers[A]
        self.lower.upper_pods.synced = listed
        self.latency = SyncLatency(lambda: self.now)
        self.latency.follow(self.lower)

    @property
    def created(self) -> Histogram:
        """How long it took until lower pods existed."""
        return self.latency.created[A]

    @property
    def reported(self) -> Histogram:
        """How long it took until statuses were reported."""
        return self.latency.reported[A]


def count(histogram: Histogram) -> int:
    """Return how many durations a histogram has."""
    return sum(histogram.counts)


def run(pod: Manifest) -> None:
    """Let a pod run."""
    pod["status"] = {"phase": "Running"}


def end(pod: Manifest) -> None:
    """Let a pod end."""
    pod["status"] = {"phase": "Succeeded"}


def relabel(pod: Manifest) -> None:
    """Change what is no status."""
    pod["metadata"].setdefault("labels", {})["tier"] = "gold"


def test_a_pod_is_timed_from_its_binding_to_its_copy() -> None:
    """Whatever else happens to the upper pod meanwhile, and once."""
    watch, pod = Watch(), upper_pod()
    put(watch.lower.upper_pods, pod)
    watch.now += 0.5
    changed(watch.lower.upper_pods, "web", relabel)
    watch.now += 0.5
    put(watch.lower.pods, twin(pod))
    changed(watch.lower.pods, "web", relabel)
    assert (count(watch.created), watch.created.total) == (1, 1.0)


def test_what_was_bound_before_the_engine_listed_it_is_not_timed() -> None:
    """It is not known for how long it has waited; only what comes after the first list was bound a moment ago."""
    watch, earlier, later = Watch(listed=False), upper_pod("earlier"), upper_pod("later")
    put(watch.lower.upper_pods, earlier)
    watch.lower.upper_pods.take_over(tuple(watch.lower.upper_pods), watch.lower.upper_pods.version)
    watch.now += 50
    put(watch.lower.upper_pods, later)
    watch.now += 1
    put(watch.lower.pods, twin(earlier), twin(later))
    assert (count(watch.created), watch.created.total) == (1, 1.0)


def test_the_copy_of_another_pod_of_that_name_does_not_count() -> None:
    """The new pod waits until that one is gone."""
    watch = Watch()
    put(watch.lower.upper_pods, upper_pod(uid="new"))
    put(watch.lower.pods, twin(upper_pod(uid="old")))
    assert count(watch.created) == 0


def test_a_status_is_timed_until_the_upper_pod_has_it() -> None:
    """From the first change that it does not have."""
    watch, pod = Watch(), upper_pod()
    put(watch.lower.upper_pods, pod)
    put(watch.lower.pods, twin(pod))
    changed(watch.lower.pods, "web", run)
    watch.now += 2
    changed(watch.lower.pods, "web", end)
    watch.now += 1
    changed(watch.lower.upper_pods, "web", run)
    assert count(watch.reported) == 0
    changed(watch.lower.upper_pods, "web", end)
    changed(watch.lower.upper_pods, "web", relabel)
    assert (count(watch.reported), watch.reported.total) == (1, 3.0)


def test_a_readiness_gate_that_is_closed_does_not_count() -> None:
    """The time until a readiness gate opens is not counted as a delay. Without a gate, readiness counts."""
    watch = Watch()
    for name, gates in (("gated", [{"conditionType": "example.com/open"}]), ("plain", [])):
        pod = upper_pod(name, {"readinessGates": gates})
        put(watch.lower.upper_pods, pod)
        put(watch.lower.pods, twin(pod))
        changed(watch.lower.pods, name, be_ready)
    watch.now += 1
    for name in ("gated", "plain"):
        changed(watch.lower.upper_pods, name, run)
    assert (count(watch.reported), watch.reported.total) == (1, 1.0)
    watch.now += 50
    for name in ("gated", "plain"):
        changed(watch.lower.upper_pods, name, be_ready)
    assert (count(watch.reported), watch.reported.total) == (2, 52.0)


def be_ready(pod: Manifest) -> None:
    """Let a pod run and be ready."""
    pod["status"] = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}


def test_a_change_that_was_taken_back_is_forgotten() -> None:
    """Else the next one would seem to have taken since then."""
    watch, pod = Watch(), upper_pod(status={"phase": "Running"})
    put(watch.lower.upper_pods, pod)
    put(watch.lower.pods, twin(pod, {"phase": "Running"}))
    changed(watch.lower.pods, "web", end)
    changed(watch.lower.pods, "web", run)
    watch.now += 50
    changed(watch.lower.pods, "web", end)
    watch.now += 1
    changed(watch.lower.upper_pods, "web", end)
    assert (count(watch.reported), watch.reported.total) == (1, 1.0)


def test_a_deleted_pod_is_forgotten() -> None:
    """A new one of its name waits from its own binding on."""
    watch, pod, successor = Watch(), upper_pod(uid="old"), upper_pod(uid="new")
    put(watch.lower.upper_pods, pod)
    drop(watch.lower.upper_pods, "web")
    watch.now += 50
    put(watch.lower.upper_pods, successor)
    watch.now += 1
    put(watch.lower.pods, twin(successor))
    assert (count(watch.created), watch.created.total) == (1, 1.0)
