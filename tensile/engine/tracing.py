"""How long pods take: OpenTelemetry traces of their start, and latencies for the metrics.

A trace is the start of one pod, and its spans are the steps between the clusters. Traces are sent where the standard
variables of the environment name an endpoint (`OTEL_EXPORTER_OTLP_ENDPOINT`). They are no part of the topology: where
to send telemetry is a property of a process, as for other programs. Without an endpoint nothing is imported and no
cache has a further listener.

The ids follow from the UID of the upper pod and the name of the step. So an engine that takes over continues the trace
of the one before. A step that was complete before an engine has listed the pod is left to the engine before.

Most times are when the engine saw a change, in nanoseconds of its own clock: the times of the API are whole seconds, of
two clocks. Only what happened before the engine could see it has the time of the API.

Spans are sent by a thread of the SDK, from a queue that drops the oldest when it is full. So a collector that is away
costs a warning, not the pods.

Latencies for the metrics are measured at the same caches, whether there are traces or not: until a lower pod exists,
and until the status of a lower pod stands on the upper one. They include the time in the work queue, waiting for other
objects, and every retry. What was there before the engine listed it is not counted, since it is not known since when.
"""

import asyncio
import logging
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import structlog

from tensile import __version__
from tensile.kube.limits import LogThrottle
from tensile.kube.measures import Histogram
from tensile.kube.store import Delta, Entry
from tensile.kubelet.pods.conditions import SCHEDULED, conditions_of, is_ready
from tensile.objects import Manifest, metadata, moment_of
from tensile.reconcile.pods.index import differ, is_shown_alike
from tensile.reconcile.world import LowerWorld

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import SpanProcessor

ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
_PROTOCOLS = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
_PROTOCOL = "http/protobuf"
_SERVICE = "tensile-kube"
START = "start pod"
"""The span of the whole start: from the creation of the upper pod until it is Ready."""
STEPS = ("schedule", "create lower pod", "start lower pod", "report Ready")
"""The spans in it, each from the end of the one before: until the pod is bound to its virtual node, until its lower pod
exists, until that is Ready, and until the upper pod is."""
_FLUSH_TIMEOUT = 2.0
"""Seconds that an engine waits for its last spans when it stops."""
_TRACE_BYTES, _SPAN_BYTES = 16, 8
_NANOSECONDS = 1_000_000_000
_DELETED = "the pod was deleted before it was Ready"
_FAILED = "the pod failed before it was Ready"
_INSTALL_ADVICE = "pip install 'tensile-kube[otel]'"
_LIBRARY = "opentelemetry"
_EXPORTER = f"{_LIBRARY}.exporter"
_log = structlog.get_logger("tensile.tracing")
_Name = tuple[str, str]


class PodSpan(NamedTuple):
    """One finished span. Ids are numbers as in OpenTelemetry, times nanoseconds since 1970.

    `parent_id` is 0 for the span of the whole start; `error` is why the pod did not become Ready, "" if it did.
    """

    name: str
    trace_id: int
    span_id: int
    parent_id: int
    start: int
    end: int
    attributes: Mapping[str, str]
    error: str = ""


class SpanSink(Protocol):
    """Takes finished spans; neither method waits."""

    def is_sampled(self, trace_id: int) -> bool:
        """Report whether the spans of a trace are wanted."""

    def send(self, span: PodSpan) -> None:
        """Take a span of a trace that is wanted."""


def trace_id_of(uid: str) -> int:
    """Return the trace id of an upper pod: not its UID itself, whose fixed bits would defeat sampling by ratio."""
    return int.from_bytes(sha256(uid.encode()).digest()[:_TRACE_BYTES])


def span_id_of(uid: str, name: str) -> int:
    """Return the id of the span of that name in the trace of an upper pod."""
    return int.from_bytes(sha256(f"{uid}/{name}".encode()).digest()[:_SPAN_BYTES])


@dataclass(slots=True)
class _PodTrace:
    """A pod that starts: its spans so far. `step` is the number of the step that it is in, since `since`."""

    uid: str
    created: int
    since: int
    step: int
    attributes: Mapping[str, str]


class PodTraces:
    """Follows the pods of all lowers from their binding until they are Ready; `clock` returns nanoseconds."""

    def __init__(self, sink: SpanSink, clock: Callable[[], int] = time.time_ns) -> None:
        self._sink = sink
        self._clock = clock

    def follow(self, lower: LowerWorld) -> None:
        """Trace the pods of a lower from now on, for as long as its caches exist."""
        listener = _LowerTraces(lower, self._sink, self._clock)
        _listen(lower, listener)


class _Listener(Protocol):
    """Receives the changes of a lower's pods, and when their first list is complete."""

    def on_sync(self) -> None: ...
    def on_upper_pod(self, delta: Delta) -> None: ...
    def on_lower_pod(self, delta: Delta) -> None: ...


def _listen(lower: LowerWorld, listener: _Listener) -> None:
    lower.upper_pods.on_sync(listener.on_sync)
    lower.upper_pods.subscribe(listener.on_upper_pod)
    lower.pods.subscribe(listener.on_lower_pod)


class _LowerTraces:
    """The pods of one lower that start, by their upper names."""

    def __init__(self, lower: LowerWorld, sink: SpanSink, clock: Callable[[], int]) -> None:
        self._lower = lower
        self._sink = sink
        self._clock = clock
        self._traces: dict[_Name, _PodTrace] = {}
        self._is_listed = lower.upper_pods.synced

    def on_sync(self) -> None:
        """Record that the first list is complete: pods that appear from now on were bound a moment ago."""
        self._is_listed = True

    def on_upper_pod(self, delta: Delta) -> None:
        """Follow an upper pod: its binding, its readiness and its end."""
        before, after = delta
        name = (delta.entry.namespace, delta.entry.name)
        trace = self._traces.get(name)
        if trace is not None and (after is None or after.uid != trace.uid):
            self._end(name, trace, _DELETED)
        if after is None:
            return
        if before is None or before.uid != after.uid:
            self._begin(name, after)
        elif trace is not None and not is_shown_alike(before, after):
            self._follow_upper(name, trace, after)

    def on_lower_pod(self, delta: Delta) -> None:
        """Follow a lower pod: its creation and its readiness."""
        before, after = delta
        if after is None or not self._traces or (before is not None and is_shown_alike(before, after)):
            return
        trace = self._traces.get((self._lower.upper_namespace(after.namespace), after.name))
        if trace is not None and after.facts.upper_uid == trace.uid:
            self._follow_lower(trace, after)

    def _begin(self, name: _Name, upper: Entry) -> None:
        """Follow a pod from its binding on, unless it may have been Ready before."""
        facts, pod = upper.facts, upper.manifest()
        if facts.terminal or facts.terminating or facts.daemon or _has_started(pod):
            return
        if not self._sink.is_sampled(trace_id_of(upper.uid)):
            return
        created = _nanoseconds(metadata(pod).get("creationTimestamp")) or self._clock()
        bound = max(created, self._clock() if self._is_listed else _scheduled_at(pod) or created)
        trace = self._traces[name] = _PodTrace(upper.uid, created, created, 0, _attributes(pod, self._lower.name))
        self._complete_steps(trace, 1, bound, sends=self._is_listed)
        lower_pod = self._lower.pods.get(self._lower.namespace(upper.namespace), upper.name)
        if lower_pod is not None and lower_pod.facts.upper_uid == upper.uid:
            self._follow_lower(trace, lower_pod)

    def _follow_lower(self, trace: _PodTrace, lower_pod: Entry) -> None:
        """Complete the steps that the lower pod shows."""
        step = 3 if is_ready(lower_pod.manifest()) else 2
        self._complete_steps(trace, step, self._clock(), sends=self._is_listed)

    def _follow_upper(self, name: _Name, trace: _PodTrace, upper: Entry) -> None:
        """Complete the trace of a pod that is Ready or has ended."""
        if is_ready(upper.manifest()):
            self._complete_steps(trace, len(STEPS), self._clock())
            self._end(name, trace)
        elif upper.facts.terminal:
            is_success = (upper.manifest().get("status") or {}).get("phase") == "Succeeded"
            self._end(name, trace, "" if is_success else _DELETED if upper.facts.terminating else _FAILED)

    def _complete_steps(self, trace: _PodTrace, step: int, end: int, *, sends: bool = True) -> None:
        """Complete all steps before a place; those that were skipped take no time."""
        while trace.step < step:
            end = max(end, trace.since)
            if sends:
                self._send(trace, STEPS[trace.step], trace.since, end)
            trace.since, trace.step = end, trace.step + 1

    def _end(self, name: _Name, trace: _PodTrace, error: str = "") -> None:
        """Send the span of the whole start, and before it that of a step that is not complete."""
        del self._traces[name]
        end = trace.since
        if trace.step < len(STEPS):
            end = max(self._clock(), end)
            self._send(trace, STEPS[trace.step], trace.since, end, error)
        self._send(trace, START, trace.created, end, error)

    def _send(self, trace: _PodTrace, name: str, start: int, end: int, error: str = "") -> None:
        root = span_id_of(trace.uid, START)
        span_id, parent_id = (root, 0) if name == START else (span_id_of(trace.uid, name), root)
        self._sink.send(PodSpan(name, trace_id_of(trace.uid), span_id, parent_id, start, end, trace.attributes, error))


def _attributes(pod: Manifest, lower: str) -> Mapping[str, str]:
    """Return the attributes of all spans of a pod, by the names of OpenTelemetry's conventions where it has some."""
    meta = metadata(pod)
    return {
        "k8s.pod.uid": meta["uid"],
        "k8s.pod.name": meta["name"],
        "k8s.namespace.name": meta["namespace"],
        "k8s.node.name": pod["spec"].get("nodeName") or "",
        "tensile.lower": lower,
    }


def _has_started(pod: Manifest) -> bool:
    """Report whether a container of a pod has run: such a pod may have been Ready before."""
    statuses: Iterable[Manifest] = (pod.get("status") or {}).get("containerStatuses") or ()
    return any(one.get("restartCount") or (one.get("state") or {}).keys() - {"waiting"} for one in statuses)


def _scheduled_at(pod: Manifest) -> int:
    condition = conditions_of(pod).get(SCHEDULED) or {}
    return _nanoseconds(condition.get("lastTransitionTime")) if condition.get("status") == "True" else 0


def _nanoseconds(text: str | None) -> int:
    """Return a time of the API in nanoseconds since 1970, 0 for none."""
    return int(moment_of(text).timestamp()) * _NANOSECONDS if text else 0


class TraceExport:
    """Sends spans by OTLP; made by `open_export`."""

    def __init__(self, tracer: Any, ids: Any, sampler: Any, processor: "SpanProcessor") -> None:
        self._tracer = tracer
        self._ids = ids
        self._sampler = sampler
        self._processor = processor

    def is_sampled(self, trace_id: int) -> bool:
        """Report whether the sampler of the environment takes a trace."""
        return bool(self._sampler.should_sample(None, trace_id, START).decision.is_sampled())

    def send(self, span: PodSpan) -> None:
        """Put a span into the queue."""
        from opentelemetry import trace  # noqa: PLC0415 - imported only where traces are sent

        self._ids.trace_id, self._ids.span_id = span.trace_id, span.span_id
        parent_context = None
        if span.parent_id:
            parent = trace.SpanContext(
                span.trace_id, span.parent_id, is_remote=False, trace_flags=trace.TraceFlags(trace.TraceFlags.SAMPLED)
            )
            parent_context = trace.set_span_in_context(trace.NonRecordingSpan(parent))
        started = self._tracer.start_span(span.name, parent_context, attributes=span.attributes, start_time=span.start)
        if span.error:
            started.set_status(trace.StatusCode.ERROR, span.error)
        started.end(span.end)

    async def close(self) -> None:
        """Send what is left, for two seconds at most: a collector that is away does not hold up the end."""
        loop, done = asyncio.get_running_loop(), asyncio.Event()

        def end() -> None:
            """Wait in a thread of its own, which the process does not wait for."""
            self._processor.shutdown()
            with suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(done.set)

        threading.Thread(target=end, name="last spans", daemon=True).start()
        with suppress(TimeoutError):
            async with asyncio.timeout(_FLUSH_TIMEOUT):
                await done.wait()


def open_export(environ: Mapping[str, str], log: Any = _log) -> TraceExport | None:
    """Return the export to the endpoint that the environment names, None if it names none.

    What is wrong is a warning, and then there is no export either: traces are never a reason not to run. The SDK itself
    reads its other variables, such as headers, certificates, the sampler and the size of the queue.
    """
    if not any(environ.get(name) for name in ENDPOINTS) or _is_disabled(environ):
        return None
    protocol = next((environ[name] for name in _PROTOCOLS if environ.get(name)), _PROTOCOL)
    if protocol != _PROTOCOL:
        log.warning("traces are not sent", error=f"protocol {protocol!r} is not supported: use {_PROTOCOL}")
        return None
    try:
        return _opened(log)
    except ImportError as error:
        log.warning("traces are not sent", error=f"{error.name} is not installed: {_INSTALL_ADVICE}")
    except (ValueError, OSError) as error:
        log.warning("traces are not sent", error=str(error))
    return None


def _is_disabled(environ: Mapping[str, str]) -> bool:
    is_off = environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true"
    return is_off or environ.get("OTEL_TRACES_EXPORTER", "").strip().lower() == "none"


def _opened(log: Any) -> TraceExport:
    """Return the export. Raises ImportError without the packages of the extra, ValueError for a bad variable."""
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter  # noqa: PLC0415
    from opentelemetry.sdk.resources import OTELResourceDetector, Resource  # noqa: PLC0415
    from opentelemetry.sdk.trace import TracerProvider  # noqa: PLC0415
    from opentelemetry.sdk.trace.export import BatchSpanProcessor  # noqa: PLC0415
    from opentelemetry.sdk.trace.id_generator import IdGenerator  # noqa: PLC0415

    class Ids(IdGenerator):
        """Returns the ids of the span that is sent next."""

        trace_id = span_id = 0

        def generate_trace_id(self) -> int:
            """Return its trace id."""
            return self.trace_id

        def generate_span_id(self) -> int:
            """Return its own id."""
            return self.span_id

    _adopt_logs(log)
    own = Resource({"service.name": _SERVICE, "service.version": __version__})
    ids, processor = Ids(), BatchSpanProcessor(OTLPSpanExporter())
    resource = own.merge(OTELResourceDetector().detect())
    provider = TracerProvider(resource=resource, id_generator=ids, shutdown_on_exit=False)
    provider.add_span_processor(processor)
    return TraceExport(provider.get_tracer("tensile", __version__), ids, provider.sampler, processor)


class _SDKLogHandler(logging.Handler):
    """Turns what the SDK logs into one warning a minute: it repeats itself with each batch.

    A failed attempt is tried again, and its reason is logged when the last one has failed.
    """

    def __init__(self, log: Any) -> None:
        super().__init__(logging.WARNING)
        self._log = log
        self._throttle = LogThrottle(time.monotonic)
        self._attempt = ""

    def emit(self, record: logging.LogRecord) -> None:
        """Log the first failure, and later how many there were."""
        message = record.getMessage()
        if record.levelno < logging.ERROR and record.name.startswith(_EXPORTER):
            self._attempt = message
            return
        log_fields = {"error": message} | ({"attempt": self._attempt} if record.levelno >= logging.ERROR else {})
        self._throttle.log(record.name, lambda more: self._log.warning("traces are not sent", **log_fields, **more))


def _adopt_logs(log: Any) -> None:
    logger = logging.getLogger(_LIBRARY)
    logger.handlers = [_SDKLogHandler(log)]
    logger.propagate = False


class SyncLatency:
    """The latencies of all lowers by name: `created` until lower pods exist, `reported` until upper statuses do.

    They stay when a lower leaves, as it may come back. `clock` returns seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self.created: defaultdict[str, Histogram] = defaultdict(Histogram)
        self.reported: defaultdict[str, Histogram] = defaultdict(Histogram)
        self._clock = clock

    def follow(self, lower: LowerWorld) -> None:
        """Measure a lower from now on, for as long as its caches exist."""
        listener = _PodTimes(lower, self.created[lower.name], self.reported[lower.name], self._clock)
        _listen(lower, listener)


class _PodTimes:
    """Since when each pod of one lower waits, by its upper name: to be created, or to have its status reported."""

    def __init__(self, lower: LowerWorld, created: Histogram, reported: Histogram, clock: Callable[[], float]) -> None:
        self._lower = lower
        self._created = created
        self._reported = reported
        self._clock = clock
        self._bound: dict[_Name, float] = {}
        self._changed_at: dict[_Name, float] = {}
        self._is_listed = lower.upper_pods.synced

    def on_sync(self) -> None:
        """Record that the first list is complete: pods that appear from now on were bound a moment ago."""
        self._is_listed = True

    def on_upper_pod(self, delta: Delta) -> None:
        """Note a pod that was bound, and one whose status has arrived."""
        before, after = delta
        name = (delta.entry.namespace, delta.entry.name)
        if after is None:
            self._bound.pop(name, None)
            self._changed_at.pop(name, None)
        elif before is None or before.uid != after.uid:
            self._changed_at.pop(name, None)
            if self._is_listed:
                self._bound[name] = self._clock()
        elif name in self._changed_at:
            lower_pod = self._lower.pods.get(self._lower.namespace(after.namespace), after.name)
            if not differ(after, lower_pod):
                self._reported.observe(self._clock() - self._changed_at.pop(name))

    def on_lower_pod(self, delta: Delta) -> None:
        """Note a lower pod that was created, and one whose status differs from that of its upper pod."""
        before, after = delta
        if after is None or (before is not None and is_shown_alike(before, after)):
            return
        name = (self._lower.upper_namespace(after.namespace), after.name)
        upper = self._lower.upper_pods.get(*name)
        if upper is None or upper.uid != after.facts.upper_uid:
            return
        if name in self._bound:
            self._created.observe(self._clock() - self._bound.pop(name))
        if differ(upper, after):
            self._changed_at.setdefault(name, self._clock())
        else:
            self._changed_at.pop(name, None)
