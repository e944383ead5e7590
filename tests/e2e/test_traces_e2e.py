"""Tests of traces of pods by `tensile run`, with a collector on loopback, and of their timelines."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import orjson
import pytest
import pytest_asyncio
from enginekit import A, B, wait_until
from otlpkit import Collector, collector, received, url
from programkit import Program, running_program
from sitekit import Manifest

from tensile.diagnostics import commands
from tensile.engine.lower import ClusterAccess
from tensile.engine.tracing import START, STEPS
from tensile.sandbox.sandbox import Sandbox

pytestmark = [pytest.mark.real, pytest.mark.asyncio(loop_scope="module")]


class TracedProgram(Program):
    """A program that sends traces to `receiver`, at once."""

    receiver: Collector

    async def spans(self, uid: str, count: int) -> dict[str, Any]:
        """Wait for this many spans of the pod with a UID, and return them by name."""

        def found() -> list[Any]:
            ours = {"key": "k8s.pod.uid", "value": uid}
            return [one for one in received(self.receiver) if ours in _attributes(one)]

        await wait_until(lambda: len(found()) >= count)
        assert len(found()) == count
        return {one.name: one for one in found()}


def _attributes(span: Any) -> list[dict[str, str]]:
    return [{"key": one.key, "value": one.value.string_value} for one in span.attributes]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def program(sandbox: Sandbox, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[TracedProgram]:
    """Return a program whose collector runs."""
    with collector() as receiver:
        TracedProgram.receiver = receiver
        TracedProgram.variables = {"OTEL_EXPORTER_OTLP_ENDPOINT": url(receiver), "OTEL_BSP_SCHEDULE_DELAY": "100"}
        async with running_program(sandbox, tmp_path_factory.mktemp("traced"), TracedProgram) as found:
            yield found


async def explained(program: TracedProgram, name: str) -> Manifest:
    """Return the timeline of a pod, read with an administrator's kubeconfigs."""
    topology, cluster_access = program.topology(), ClusterAccess(program.sandbox.directory)
    text = await asyncio.to_thread(commands.explain_timeline, topology, cluster_access, name, program.namespace, "json")
    return dict(orjson.loads(text))


async def test_a_started_pod_has_one_trace_and_one_matching_timeline(program: TracedProgram) -> None:
    """Both contain the steps of the pod in both clusters, in order."""
    pod = await program.run_pod("traced")
    spans = await program.spans(pod["metadata"]["uid"], len(STEPS) + 1)
    ends = [spans[name].end_time_unix_nano for name in STEPS]
    starts = [spans[name].start_time_unix_nano for name in STEPS]
    assert starts[1:] == ends[:-1]
    assert (starts[0], ends[-1]) == (spans[START].start_time_unix_nano, spans[START].end_time_unix_nano)
    assert {spans[name].parent_span_id for name in STEPS} == {spans[START].span_id}
    events = f"{program.path('events')}?fieldSelector=involvedObject.name=traced,reason=Scheduled"
    await program.sites[A].until_all(events, bool)
    found = await explained(program, "traced")
    assert found["pod"]["traceId"] == spans[START].trace_id.hex()
    assert found["lower"] == {"name": A, "namespace": program.namespace, "pod": "traced"}
    steps = [one["step"] for one in found["moments"] if one["step"]]
    assert steps == ["created", "bound", "lowerCreated", "lowerBound", "started", "lowerReady", "ready"]
    begun, ended = found["moments"][0], next(one for one in found["moments"] if one["step"] == "ready")
    whole = (spans[START].end_time_unix_nano - spans[START].start_time_unix_nano) / 1e9
    assert abs((ended["offsetSeconds"] - begun["offsetSeconds"]) - whole) <= 2
    assert any(one["cluster"] == A and one["what"].startswith("Normal Scheduled") for one in found["moments"])
    assert found["notes"][0].startswith("Times have a resolution of 1 second")


async def test_the_timeline_of_a_pod_that_never_runs_ends_with_the_step_that_it_waits_for(
    program: TracedProgram,
) -> None:
    """No node of the lower cluster is large enough.

    Its trace ends with the deletion of the pod.
    """
    large = {"name": "main", "image": "app:1", "resources": {"requests": {"cpu": "4000"}}}
    pod = await program.bind("large", {"containers": [large]}, B)
    await program.sites[B].until(program.pod_path("large"), bool)
    found = await explained(program, "large")
    assert found["steps"][-1]["from"] == "lowerCreated"
    assert found["steps"][-1]["to"] is None
    await program.end_pods("large")
    spans = await program.spans(pod["metadata"]["uid"], 4)
    assert spans[START].status.message == "the pod was deleted before it was Ready"
    assert spans["start lower pod"].status.message == spans[START].status.message


async def test_a_collector_that_stops_does_not_affect_pods(program: TracedProgram) -> None:
    """Pods start as before, and the log has one warning."""
    program.receiver.shutdown()
    program.receiver.server_close()
    for number in range(3):
        await program.run_pod(f"silent-{number}")
    await program.wait_for_log("traces are not sent")
    assert program.log.read_text().count("traces are not sent") == 1
