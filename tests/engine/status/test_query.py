"""Tests of requests for the status of an engine: over HTTP, from its ConfigMap, and if no engine responds."""

from collections.abc import Awaitable, Callable
from contextlib import aclosing
from datetime import timedelta
from typing import Any

import orjson
import pytest
import yaml
from aiohttp import web
from statuskit import LATER, NOW, PLACE, accepted, invalid_update, row, valid_update

from tensile.engine.status.configmap import status_owner, status_ref, write
from tensile.engine.status.query import (
    LEASE_SECONDS,
    StatusAnswer,
    _followed,
    _read_engine_status,
    _status_of,
    _url,
    follow_engine,
)
from tensile.engine.status.report import StatusReport, TopologyStatus
from tensile.errors import TensileError
from tensile.names import LEASE_NAMESPACE
from tensile.objects import LEASE, NAMESPACE, NODE, UPPER, Manifest
from tensile.reconcile.dryrun.cluster import DryRunCluster
from tensile.topology import Telemetry

UID = "11111111-upper"


def file_of(port: int, name: str = "demo", more: str = "") -> bytes:
    """Return a topology file with telemetry at a port."""
    head = f"apiVersion: tensile-kube.io/v1alpha1\nkind: Topology\nname: {name}\nlowers: []\n{more}"
    return f"{head}telemetry:\n  port: {port}\n".encode()


async def serving(body: bytes, status: int = 200) -> tuple[web.AppRunner, int]:
    """Serve one response at /status of a free port."""

    async def answer(_request: web.Request) -> web.Response:
        """Return the response."""
        return web.Response(body=body, status=status)

    app = web.Application()
    app.add_routes([web.get("/status", answer)])
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    return runner, int(runner.addresses[0][1])


async def queried_document(body: bytes, name: str = "demo", status: int = 200, more: str = "") -> dict[str, Any]:
    """Return the document of a server that responds with this body."""
    runner, port = await serving(body, status)
    try:
        return (await _read_engine_status(file_of(port, name, more), "f")).document
    finally:
        await runner.cleanup()


@pytest.mark.parametrize(
    ("bind", "url"),
    [
        ("127.0.0.1", "http://127.0.0.1:9095/status"),
        ("0.0.0.0", "http://127.0.0.1:9095/status"),
        ("::", "http://[::1]:9095/status"),
        ("10.1.2.3", "http://10.1.2.3:9095/status"),
    ],
)
def test_the_status_url_follows_from_the_bind_address_of_the_topology(bind: str, url: str) -> None:
    """A server that listens on all addresses is requested on the loopback address."""
    assert _url(Telemetry.model_validate({"bind": bind}), "/status") == url


async def test_the_report_of_an_engine_is_returned_unchanged() -> None:
    """The document is the JSON that the engine responds with."""
    document = StatusReport("demo", accepted(), (row(),)).document()
    assert await queried_document(orjson.dumps(document)) == document


async def test_an_engine_of_another_topology_is_an_error() -> None:
    """With two engines on one machine, a wrong port is enough to reach the other one."""
    with pytest.raises(TensileError, match="runs topology demo, not other: use its file, or set another"):
        await queried_document(orjson.dumps(StatusReport("demo", accepted(), ()).document()), name="other")


async def test_an_engine_is_accepted_if_it_reports_that_the_new_name_needs_a_restart() -> None:
    """It runs under the former name until its restart, and its report has that change."""
    needed = ("name: demo -> other: this change requires a restart of the engine",)
    verdict = TopologyStatus().after(valid_update(), LATER, needed)
    document = StatusReport("demo", verdict, ()).document()
    assert await queried_document(orjson.dumps(document), name="other") == document


@pytest.mark.parametrize("body", [b"<html>", b"[]", b"{}", b"", b'"x"'])
async def test_a_server_that_is_no_engine_is_an_error(body: bytes) -> None:
    """Another program may listen on that port."""
    with pytest.raises(TensileError, match=r"the server at http://127.* is not an engine: correct telemetry"):
        await queried_document(body)


async def test_an_unreachable_engine_is_an_error_with_the_remedy() -> None:
    """The message has the URL, and advises to start or restart the engine."""
    runner, port = await serving(b"")
    await runner.cleanup()
    with pytest.raises(
        TensileError, match=rf"no engine responds at http://127.0.0.1:{port}/status .*: start or restart "
    ):
        await _read_engine_status(file_of(port), "f")


BROKEN = ("nonsense: 1\n", "lowers: []\n", "guard: {maxDeletes: 2\n", "a: b: c\n", "webhook: [\n")


@pytest.mark.parametrize("more", BROKEN)
async def test_the_report_is_returned_although_the_topology_file_is_invalid(more: str) -> None:
    """The engine continues with the last valid file, and its report has the error of the rejected one."""
    document = StatusReport("demo", accepted(invalid_update()), (row(),)).document()
    assert await queried_document(orjson.dumps(document), more=more) == document


async def test_the_telemetry_address_is_found_in_an_invalid_json_file() -> None:
    """A JSON file has the address too, although it is a single line."""
    document = orjson.dumps(StatusReport("demo", accepted(invalid_update()), (row(),)).document())
    runner, port = await serving(document)
    file = {**yaml.safe_load(file_of(port)), "nonsense": 1}
    try:
        assert (await _read_engine_status(orjson.dumps(file), "f")).document == orjson.loads(document)
    finally:
        await runner.cleanup()


async def test_an_invalid_file_that_the_engine_did_not_reject_is_reported() -> None:
    """The engine may follow another file."""
    runner, port = await serving(orjson.dumps(StatusReport("demo", accepted(), (row(),)).document()))
    answer = await _read_engine_status(file_of(port, more=BROKEN[0]), "f")
    await runner.cleanup()
    assert answer.problem.startswith("f:5:1: nonsense: unknown key; ")


async def test_the_errors_of_an_invalid_file_come_first_if_no_engine_responds() -> None:
    """They may hide the telemetry address, so the message does not advise to start an engine."""
    runner, port = await serving(b"")
    await runner.cleanup()
    with pytest.raises(TensileError, match=rf"^f:5:1: nonsense: .*\nno status from http://127.0.0.1:{port}/"):
        await _read_engine_status(file_of(port, more=BROKEN[0]), "f")


class UpperWithStatus(DryRunCluster):
    """An upper cluster in which an engine has written its status."""

    def __init__(self) -> None:
        super().__init__(UPPER, now=lambda: NOW)
        for name in (PLACE.namespace, LEASE_NAMESPACE):
            self.place(NAMESPACE, {"metadata": {"name": name}})

    async def write_status(self, report: StatusReport) -> None:
        """Write the status as the engine does."""
        ref = status_ref(PLACE)
        made = write(None, report.data(), ref, status_owner(UID, PLACE), "map-1")
        assert made is not None
        assert made.create is not None
        await self.create(ref, made.create)

    def node(self, name: str, renewed: float) -> None:
        """Create a virtual node whose lease was renewed this many seconds ago."""
        self.place(NODE, {"metadata": {"name": name}, "status": {"allocatable": {"cpu": "90", "hugepages-2Mi": "0"}}})
        time = (NOW - timedelta(seconds=renewed)).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        lease: Manifest = {"metadata": {"name": name, "namespace": LEASE_NAMESPACE}, "spec": {"renewTime": time}}
        self.place(LEASE, lease)


async def answer(upper: UpperWithStatus, uid: str = UID) -> tuple[dict[str, Any], str]:
    """Return the status that is read from the ConfigMap, and the problem."""
    return await _status_of(upper, PLACE, uid, lambda: NOW)


async def test_the_document_combines_the_status_config_map_with_the_virtual_nodes() -> None:
    """The advertised resources are those in the allocatable of the nodes."""
    upper = UpperWithStatus()
    report = StatusReport("demo", accepted(), (row(), row("lower-b")))
    await upper.write_status(report)
    upper.node("node-lower-a", 3)
    document, error = await answer(upper)
    expected = report.document()
    expected["lowers"][0]["advertised"] = {"cpu": "90"}
    expected["lowers"][1]["advertised"] = {}
    assert (document, error) == (expected, "")


async def test_a_problem_is_reported_if_no_lease_of_the_nodes_is_renewed() -> None:
    """One renewed lease is enough, and without lowers no conclusion is possible."""
    upper = UpperWithStatus()
    await upper.write_status(StatusReport("demo", accepted(), (row(), row("lower-b"))))
    upper.node("node-lower-a", LEASE_SECONDS + 1)
    assert "no engine renews the leases of its nodes" in (await answer(upper))[1]
    upper.node("node-lower-b", 9)
    assert (await answer(upper))[1] == ""
    alone = UpperWithStatus()
    await alone.write_status(StatusReport("demo", accepted(), ()))
    assert (await answer(alone))[1] == ""


async def test_a_missing_status_config_map_or_one_of_another_owner_is_an_error() -> None:
    """The error for a missing one has the command that runs an engine."""
    upper = UpperWithStatus()
    with pytest.raises(TensileError, match=r"ConfigMap ops/topo-status does not exist: .* run --configmap ops/topo`"):
        await answer(upper)
    await upper.write_status(StatusReport("demo", accepted(), ()))
    with pytest.raises(TensileError, match="ConfigMap ops/topo-status belongs to another owner"):
        await answer(upper, "22222222-upper")


async def test_following_a_status_continues_after_an_error() -> None:
    """It never ends by itself, and pauses after each request."""
    found: list[StatusAnswer | TensileError] = [StatusAnswer({"n": 1}), TensileError("gone"), StatusAnswer({"n": 2})]
    seen: list[object] = []

    async def ask() -> StatusAnswer:
        """Return or raise the next result."""
        one = found.pop(0)
        seen.append("asked")
        if isinstance(one, TensileError):
            raise one
        return one

    async def pause() -> None:
        """Record the pause."""
        seen.append("paused")

    await _taken(ask, pause, 3, seen)
    assert [str(one) for one in seen] == [
        "asked",
        "StatusAnswer(document={'n': 1}, problem='')",
        "paused",
        "asked",
        "gone",
        "paused",
        "asked",
        "StatusAnswer(document={'n': 2}, problem='')",
    ]


async def _taken(
    ask: Callable[[], Awaitable[StatusAnswer]], pause: Callable[[], Awaitable[None]], most: int, seen: list[object]
) -> None:
    async with aclosing(_followed(ask, pause)) as updates:
        async for update in updates:
            seen.append(update)
            most -= 1
            if not most:
                break


async def test_following_an_engine_reads_the_file_again_for_each_update() -> None:
    """An error that follows from the file is an update like any other."""
    runner, port = await serving(orjson.dumps(StatusReport("demo", accepted(), (row(),)).document()))
    files = [file_of(port, "other"), file_of(port)]
    try:
        async with aclosing(follow_engine(lambda: ("f", files.pop(0)), at_once)) as updates:
            first, second = await anext(updates), await anext(updates)
    finally:
        await runner.cleanup()
    assert "runs topology demo, not other" in str(first)
    assert isinstance(second, StatusAnswer)
    assert second.document["topology"] == "demo"


async def at_once() -> None:
    """Pause for no time."""
