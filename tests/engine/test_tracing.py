"""Tests of the traces of pod starts: their spans, their export to a collector, and the warnings if that fails."""

import re
import subprocess
import sys
from typing import Any

import orjson
import pytest
from otlpkit import collector, received, url
from worldkit import A, change_as_other_client, delete_observed, make_lower_pod, make_upper_pod, make_world, put

from bench.kit.spareports import spare_ports
from tensile.engine.tracing import START, STEPS, PodSpan, PodTraces, open_export, span_id_of, trace_id_of
from tensile.objects import Manifest

CREATED = "2026-03-01T12:00:00Z"
NOON = 1772366400
SECOND = 1_000_000_000


class Sink:
    """A sink that keeps the spans, and samples every trace except that of the pod with the UID `unwanted`."""

    def __init__(self) -> None:
        self.spans: list[PodSpan] = []
        self.unwanted = trace_id_of("unwanted")

    def is_sampled(self, trace_id: int) -> bool:
        """Report whether the trace is not the unwanted one."""
        return trace_id != self.unwanted

    def send(self, span: PodSpan) -> None:
        """Keep a span."""
        self.spans.append(span)


class TracedLower:
    """A lower whose pods are traced, with or without a list of upper pods, and a clock in seconds after noon."""

    def __init__(self, *, listed: bool = True) -> None:
        self.now = 0.0
        self.sink = Sink()
        self.lower = make_world().lowers[A]
        self.lower.upper_pods.synced = listed
        PodTraces(self.sink, lambda: NOON * SECOND + int(self.now * SECOND)).follow(self.lower)

    def at(self, second: float) -> "TracedLower":
        """Set the clock."""
        self.now = second
        return self

    def upper(self, edit: Any) -> None:
        """Change the upper pod."""
        change_as_other_client(self.lower.upper_pods, "web", edit)

    def below(self, edit: Any) -> None:
        """Change the lower pod."""
        change_as_other_client(self.lower.pods, "web", edit)

    @property
    def spans(self) -> list[tuple[str, float, float, str]]:
        """Return the spans: name, start and end in seconds after noon, and the error."""
        return [
            (one.name, (one.start / SECOND) - NOON, (one.end / SECOND) - NOON, one.error) for one in self.sink.spans
        ]


def pod(uid: str = "u", **status: Any) -> Manifest:
    """Return an upper pod that was created at noon and is bound to the lower's node."""
    return make_upper_pod(uid=uid, creationTimestamp=CREATED, status={"phase": "Pending", **status})


def ready(one: Manifest) -> None:
    """Set the status of a pod that is Ready."""
    one["status"] = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}


def running(one: Manifest) -> None:
    """Set the status of a pod with a container that runs and is not ready."""
    state = {"name": "main", "ready": False, "restartCount": 0, "state": {"running": {"startedAt": CREATED}}}
    one["status"] = {"phase": "Running", "containerStatuses": [state]}


def failed(one: Manifest) -> None:
    """Set the phase of a pod to Failed."""
    one["status"] = {"phase": "Failed"}


def succeeded(one: Manifest) -> None:
    """Set the phase of a pod to Succeeded."""
    one["status"] = {"phase": "Succeeded"}


def started(watch: TracedLower) -> None:
    """Start a pod: it is bound after 1.5 s and Ready in the upper cluster after 4.5 s."""
    put(watch.at(1.5).lower.upper_pods, pod())
    put(watch.at(2.5).lower.pods, make_lower_pod(pod()))
    watch.at(3).below(running)
    watch.at(3.5).below(ready)
    watch.at(4.5).upper(ready)


def test_a_started_pod_has_a_span_for_each_step_and_one_for_the_whole_start() -> None:
    """The trace lasts from the creation time in the API until the engine sees the upper pod Ready."""
    watch = TracedLower()
    started(watch)
    assert watch.spans == [
        ("schedule", 0, 1.5, ""),
        ("create lower pod", 1.5, 2.5, ""),
        ("start lower pod", 2.5, 3.5, ""),
        ("report Ready", 3.5, 4.5, ""),
        (START, 0, 4.5, ""),
    ]
    assert [one.name for one in watch.sink.spans[:-1]] == list(STEPS)
    assert watch.sink.spans[0].attributes == {
        "k8s.pod.uid": "u",
        "k8s.pod.name": "web",
        "k8s.namespace.name": "default",
        "k8s.node.name": "lower-a",
        "tensile.lower": "lower-a",
    }


def test_trace_and_span_ids_are_derived_from_the_pod_uid() -> None:
    """Two engines thus write to one trace, and the spans of the steps are children of the span of the whole start."""
    watch = TracedLower()
    started(watch)
    assert {one.trace_id for one in watch.sink.spans} == {trace_id_of("u")}
    assert [one.span_id for one in watch.sink.spans] == [span_id_of("u", name) for name in (*STEPS, START)]
    assert [one.parent_id for one in watch.sink.spans] == [*[span_id_of("u", START)] * 4, 0]
    assert 0 < trace_id_of("u") < 1 << 128
    assert 0 < span_id_of("u", START) < 1 << 64
    assert len({span_id_of("u", name) for name in (*STEPS, START)}) == 5


def test_a_pod_that_was_ready_once_gets_no_further_spans() -> None:
    """Its start is complete, even if it becomes not Ready and Ready again."""
    watch = TracedLower()
    started(watch)
    watch.upper(running)
    watch.upper(ready)
    delete_observed(watch.lower.upper_pods, "web")
    assert len(watch.spans) == 5


def test_the_current_step_ends_with_an_error_if_the_pod_is_deleted_before_it_is_ready() -> None:
    """The span of the step in which the pod waited has the error, and so has the span of the whole start."""
    watch = TracedLower()
    put(watch.at(1).lower.upper_pods, pod())
    delete_observed(watch.at(9).lower.upper_pods, "web")
    error = "the pod was deleted before it was Ready"
    assert watch.spans == [("schedule", 0, 1, ""), ("create lower pod", 1, 9, error), (START, 0, 9, error)]


def deleted(one: Manifest) -> None:
    """Set the status of a deleted pod that has ended, as the engine reports it before the pod is removed."""
    one["metadata"] |= {"deletionTimestamp": CREATED, "deletionGracePeriodSeconds": 0}
    failed(one)


@pytest.mark.parametrize(
    ("end", "error"),
    [
        (failed, "the pod failed before it was Ready"),
        (succeeded, ""),
        (deleted, "the pod was deleted before it was Ready"),
    ],
)
def test_the_trace_ends_if_the_pod_ends_before_it_is_ready(end: Any, error: str) -> None:
    """Failure and deletion are errors; a pod that succeeds that fast is none."""
    watch = TracedLower()
    put(watch.lower.upper_pods, pod())
    put(watch.lower.pods, make_lower_pod(pod()))
    watch.at(2).upper(end)
    assert watch.spans[-1] == (START, 0, 2, error)
    assert watch.spans[-2][0] == "start lower pod"


def test_steps_that_are_observed_at_the_same_time_have_no_duration() -> None:
    """After a gap in the watch, one event can show that several steps are complete."""
    watch = TracedLower()
    put(watch.at(1).lower.upper_pods, pod())
    watch.at(5).upper(ready)
    assert watch.spans[1:4] == [
        ("create lower pod", 1, 5, ""), ("start lower pod", 5, 5, ""), ("report Ready", 5, 5, ""),
    ]  # fmt: skip


def test_a_new_leader_continues_the_trace_with_the_first_incomplete_step() -> None:
    """The time of the binding comes from the API; the former leader has sent the span of that step."""
    watch = TracedLower(listed=False)
    bound = {"type": "PodScheduled", "status": "True", "lastTransitionTime": "2026-03-01T12:00:02Z"}
    put(watch.at(60).lower.upper_pods, pod(conditions=[bound]))
    watch.lower.upper_pods.take_over(tuple(watch.lower.upper_pods), watch.lower.upper_pods.version)
    put(watch.at(61).lower.pods, make_lower_pod(pod()))
    watch.at(62).below(ready)
    watch.at(63).upper(ready)
    assert [one[:3] for one in watch.spans] == [
        ("create lower pod", 2, 61), ("start lower pod", 61, 62), ("report Ready", 62, 63), (START, 0, 63),
    ]  # fmt: skip


def test_a_pod_that_already_runs_in_the_first_list_is_not_traced() -> None:
    """It may have been Ready before the engine started."""
    watch, one = TracedLower(listed=False), pod()
    running(one)
    put(watch.lower.upper_pods, one)
    watch.upper(ready)
    assert watch.spans == []


def test_a_new_pod_of_the_same_name_has_its_own_trace() -> None:
    """A lower pod of the old UID does not complete a step of the new pod."""
    watch = TracedLower()
    put(watch.lower.upper_pods, pod("old"))
    put(watch.lower.upper_pods, pod("new"))
    put(watch.lower.pods, make_lower_pod(pod("old")))
    traces = [(one.name, one.trace_id == trace_id_of("new")) for one in watch.sink.spans]
    assert traces == [("schedule", False), ("create lower pod", False), (START, False), ("schedule", True)]


def test_a_pod_that_is_not_sampled_gets_no_spans() -> None:
    """The sampling decision holds for the whole trace of a pod."""
    watch = TracedLower()
    put(watch.lower.upper_pods, pod("unwanted"))
    watch.upper(ready)
    assert watch.spans == []


def test_no_span_ends_before_it_starts_if_the_engines_clock_is_behind() -> None:
    """The end of a span is at the earliest its start, even if the pod was created in the future."""
    watch = TracedLower()
    watch.at(-5)
    started_at_noon = pod()
    put(watch.lower.upper_pods, started_at_noon)
    watch.upper(ready)
    assert all(one.end >= one.start for one in watch.sink.spans)


SENDING = """
import asyncio, os, sys, time
from tensile.engine import logging
from tensile.engine.tracing import START, STEPS, PodSpan, open_export, span_id_of, trace_id_of
logging.configure("info", "json", sys.stderr)
export = open_export(os.environ)
def span(uid, name, parent=0, error=""):
    return PodSpan(name, trace_id_of(uid), span_id_of(uid, name), parent, 5, 9, {"k8s.pod.uid": uid}, error)
async def main():
    if export is None:
        return
    for number in range(int(sys.argv[1])):
        uid = f"pod-{number}"
        if export.is_sampled(trace_id_of(uid)):
            export.send(span(uid, STEPS[0], span_id_of(uid, START), "late"))
            export.send(span(uid, START))
    begun = time.monotonic()
    await export.close()
    print(time.monotonic() - begun)
asyncio.run(main())
"""


def sending(count: int, *, before: str = "", **environ: str) -> subprocess.CompletedProcess[str]:
    """Send the traces of `count` pods from a separate process with these environment variables."""
    command = [sys.executable, "-c", before + SENDING, str(count)]
    return subprocess.run(command, env=environ, capture_output=True, text=True, timeout=60, check=True)


@pytest.mark.process
def test_spans_are_exported_as_the_otel_variables_configure() -> None:
    """They have ids, times, parents, errors and attributes, and the configured service name and headers."""
    with collector() as server:
        sending(
            1,
            OTEL_EXPORTER_OTLP_ENDPOINT=url(server),
            OTEL_EXPORTER_OTLP_HEADERS="x-token=abc",
            OTEL_SERVICE_NAME="edge",
        )
    child, root = received(server)
    assert server.paths == {"/v1/traces"}
    assert server.headers["x-token"] == "abc"
    (resource,) = server.requests[0].resource_spans
    assert {one.key: one.value.string_value for one in resource.resource.attributes}["service.name"] == "edge"
    assert int.from_bytes(child.trace_id) == int.from_bytes(root.trace_id) == trace_id_of("pod-0")
    assert (int.from_bytes(root.span_id), root.parent_span_id) == (span_id_of("pod-0", START), b"")
    assert child.parent_span_id == root.span_id
    assert (child.name, child.start_time_unix_nano, child.end_time_unix_nano) == (STEPS[0], 5, 9)
    assert (child.status.message, child.status.code, root.status.code) == ("late", 2, 0)
    assert [(one.key, one.value.string_value) for one in root.attributes] == [("k8s.pod.uid", "pod-0")]


@pytest.mark.process
def test_the_sampler_exports_the_configured_ratio_of_the_traces() -> None:
    """A trace is exported with all its spans or not at all, and the traces endpoint is used without an added path."""
    with collector() as server:
        sending(
            200,
            OTEL_EXPORTER_OTLP_TRACES_ENDPOINT=f"{url(server)}/own",
            OTEL_TRACES_SAMPLER="traceidratio",
            OTEL_TRACES_SAMPLER_ARG="0.5",
        )
    traces = [span.trace_id for span in received(server)]
    assert server.paths == {"/own"}
    assert 60 < len(set(traces)) < 140
    assert len(traces) == 2 * len(set(traces))


@pytest.mark.process
def test_an_unreachable_collector_causes_one_warning() -> None:
    """Not each batch is logged, the warning has the reason, and the engine still stops in time."""
    (port,) = spare_ports(1)
    away = {"OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{port}", "OTEL_EXPORTER_OTLP_TIMEOUT": "1"}
    done = sending(200, OTEL_BSP_MAX_EXPORT_BATCH_SIZE="100", **away)
    assert float(done.stdout) < 10
    (line,) = done.stderr.splitlines()
    log_line = orjson.loads(line)
    assert (log_line["event"], log_line["level"]) == ("traces are not sent", "warning")
    assert "Failed to export spans batch" in log_line["error"]
    full = sending(3000, OTEL_BSP_MAX_QUEUE_SIZE="512", **away).stderr
    assert full.count("Queue full") == 1
    assert full.count("\n") <= 2


@pytest.mark.process
def test_a_missing_opentelemetry_package_is_logged_with_the_install_command() -> None:
    """The engine runs without traces."""
    absent = "import sys\nsys.modules['opentelemetry'] = None\n"
    done = sending(1, before=absent, OTEL_EXPORTER_OTLP_ENDPOINT="http://127.0.0.1:1")
    log_line = orjson.loads(done.stderr)
    assert (log_line["event"], log_line["level"]) == ("traces are not sent", "warning")
    assert re.fullmatch(r"opentelemetry\S* is not installed: pip install 'tensile-kube\[otel\]'", log_line["error"])
    assert done.stdout == ""


@pytest.mark.process
def test_no_opentelemetry_module_is_imported_without_an_endpoint() -> None:
    """Without an endpoint the engine loads neither the SDK nor its threads."""
    code = "import sys, tensile.engine.run as run\nassert run.open_export({}) is None\n"
    code += "print([name for name in sys.modules if name.startswith('opentelemetry')])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "[]\n"


class ErrorKeepingLogger:
    """A logger that keeps the errors of warnings."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def warning(self, event: str, **fields: str) -> None:
        """Keep the error of a warning."""
        assert event == "traces are not sent"
        self.lines.append(fields["error"])


@pytest.mark.parametrize(
    ("more", "warnings"),
    [
        ({"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, ["protocol 'grpc' is not supported: use http/protobuf"]),
        ({"OTEL_SDK_DISABLED": "true"}, []),
        ({"OTEL_TRACES_EXPORTER": "none"}, []),
    ],
)
def test_no_export_is_opened_if_it_is_unsupported_or_disabled(more: dict[str, str], warnings: list[str]) -> None:
    """An unsupported protocol is logged as a warning; a disabled export is not."""
    logger = ErrorKeepingLogger()
    assert open_export({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1", **more}, logger) is None
    assert logger.lines == warnings
