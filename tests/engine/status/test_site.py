"""Tests of the server of the status page: its access rules, how often it renders, and the topology form."""

import asyncio
import hashlib
import re
import socket
import time
from base64 import b64encode
from collections.abc import AsyncIterator
from io import BytesIO
from urllib.parse import urlencode

import aiohttp
import orjson
import pytest
import pytest_asyncio
from pagekit import ParsedPage, StatusPageHarness, populated, requesting, serving, site_of
from statuskit import accepted, pending_edit, row
from worldkit import put
from yarl import URL

from tensile.engine.metrics import Metrics
from tensile.engine.status.details import topology_page
from tensile.engine.status.page import PageView, ResourceUsage, content
from tensile.engine.status.report import StatusReport
from tensile.engine.status.site import MAX_TYPED_BYTES, PageSource, check_topology
from tensile.engine.telemetry_server import TelemetryServer
from tensile.kube.net import cancel_and_wait
from tensile.reconcile.world import World
from tensile.topology import parse
from tensile.topology.diff import Edit

PATHS = ("/", "/lowers/lower-00", "/pods/team-0/web-0000", "/search?q=web", "/topology")
TOPOLOGY = """\
apiVersion: tensile-kube.io/v1alpha1
kind: Topology
name: demo
lowers:
- {name: lower-00, kubeconfig: k/0, capacity: {reserve: {cpu: '8'}}, maintenance: drain}
"""


@pytest.fixture
def status_page() -> StatusPageHarness:
    """Return a world of two lowers with six pods."""
    return StatusPageHarness(populated())


@pytest_asyncio.fixture
async def url(status_page: StatusPageHarness) -> AsyncIterator[str]:
    """Return the address of its status page."""
    async with serving(status_page.source()) as address:
        yield address


@pytest_asyncio.fixture
async def client(url: str) -> AsyncIterator[aiohttp.ClientSession]:
    """Return a client of the page, whose requests time out after 30 seconds."""
    timeout = aiohttp.ClientTimeout(total=30)
    async with aiohttp.ClientSession(url, timeout=timeout) as session:
        yield session


async def event(answer: aiohttp.ClientResponse) -> str:
    """Return the next event of a stream."""
    async for line in answer.content:
        if line.startswith(b"data: "):
            found: str = orjson.loads(line.removeprefix(b"data: "))
            return found
    raise AssertionError("the stream has ended")


@pytest.mark.parametrize("path", PATHS)
async def test_the_content_security_policy_only_permits_the_pages_own_style_and_script(
    client: aiohttp.ClientSession, path: str
) -> None:
    """It has their hashes, and the page has no other host, no inline style and no inline handler."""
    async with client.get(path) as answer:
        text, policy = await answer.text(), answer.headers["Content-Security-Policy"]
    assert (answer.status, answer.content_type) == (200, "text/html")
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    for tag in ("style", "script"):
        assert all(sha256(one) in policy for one in re.findall(rf"<{tag}>(.*?)</{tag}>", text, re.DOTALL))
    page = ParsedPage(text)
    assert page.opened == []
    assert [name for _, one in page.elements for name in one if name == "style" or name.startswith("on")] == []
    assert "://" not in text


def sha256(text: str) -> str:
    """Return a hash in the form of a Content-Security-Policy."""
    return f"'sha256-{b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


async def test_every_link_leads_to_an_existing_page(client: aiohttp.ClientSession) -> None:
    """All links are followed, starting at the overview."""
    seen, left = set(), ["/"]
    while left:
        path = left.pop()
        async with client.get(path) as answer:
            assert answer.status == 200, path
            links = ParsedPage(await answer.text()).links if answer.content_type == "text/html" else []
        seen.add(path)
        left += [one for one in dict.fromkeys(links) if one not in seen and one not in left and one != "#main"]
    assert {"/lowers/lower-01", "/pods/team-1/web-0002", "/topology", "/metrics"} <= seen


@pytest.mark.parametrize("path", ["/lowers/x", "/lowers", "/lowers/a/b", "/pods/a", "/pods/team-0/x", "/pods/a/b/c"])
async def test_an_unknown_path_returns_404_as_a_page(client: aiohttp.ClientSession, path: str) -> None:
    """A browser shows it to the user."""
    async with client.get(path) as answer:
        assert (answer.status, answer.content_type) == (404, "text/html")
        assert "Not found" in await answer.text()


async def test_a_pod_name_with_url_delimiters_is_found(
    client: aiohttp.ClientSession, status_page: StatusPageHarness
) -> None:
    """The link in the search result leads to the page of that pod."""
    put(status_page.world.lowers["lower-00"].upper_pods, requesting("a/b?c#d%2F&e", "shop", "lower-00"))
    async with client.get("/search?q=b%3Fc") as answer:
        (link,) = (one for one in ParsedPage(await answer.text()).links if one.startswith("/pods/"))
    async with client.get(URL(link, encoded=True)) as answer:
        assert "Pod shop/a/b?c#d%2F&e" in ParsedPage(await answer.text()).text


async def test_each_change_is_sent_to_viewers_as_an_event(
    client: aiohttp.ClientSession, status_page: StatusPageHarness
) -> None:
    """The first event has the present content, and the next one follows the next change."""
    async with client.get("/events") as answer:
        assert answer.content_type == "text/event-stream"
        assert await event(answer) == content(status_page.view(ResourceUsage()))
        put(status_page.world.lowers["lower-00"].upper_pods, requesting("more", "shop", "lower-00"))
        assert "4 pods" in await event(answer)


async def test_the_page_is_rendered_once_for_all_viewers_and_only_after_a_change(
    client: aiohttp.ClientSession, status_page: StatusPageHarness
) -> None:
    """During constant changes, it is rendered about once a second."""
    answers = [await client.get("/events") for _ in range(10)]
    for answer in answers:
        await event(answer)
    assert status_page.views <= 2
    before, began = status_page.views, time.monotonic()
    for number in range(3):
        put(status_page.world.lowers["lower-00"].upper_pods, requesting(f"more-{number}", "shop", "lower-00"))
        assert len({await event(answer) for answer in answers}) == 1
    assert status_page.views - before <= 1 + (time.monotonic() - began) / 0.9
    rendered = status_page.views
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(1.0):
            await event(answers[0])
    assert status_page.views == rendered
    for answer in answers:
        answer.close()


async def test_a_new_viewer_receives_the_present_content_at_once(
    client: aiohttp.ClientSession, status_page: StatusPageHarness
) -> None:
    """It does so too if another viewer has the content already and nothing changes."""
    async with client.get("/events") as first:
        seen = await event(first)
        async with client.get("/events") as second:
            assert await event(second) == seen
    assert status_page.views <= 2


async def test_pages_are_prepared_one_at_a_time_with_rests(status_page: StatusPageHarness) -> None:
    """While one request rests for the cost of the previous page, nothing of the next page is computed."""
    request_count = 0

    def world() -> World:
        """Return the world after 50 milliseconds of computation."""
        nonlocal request_count
        request_count, began = request_count + 1, time.thread_time()
        while time.thread_time() < began + 0.05:
            pass
        return status_page.world

    async with serving(status_page.source(world=world)) as url, aiohttp.ClientSession(url) as session:
        await (await session.get("/pods/team-0/x")).read()
        once = request_count
        tasks = [asyncio.create_task(session.get(path)) for path in ("/pods/team-0/x", "/search?q=web")]
        done, waiting = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        assert (len(done), len(waiting), request_count) == (1, 1, 2 * once)
        assert {(await one).status for one in tasks} == {200, 404}


HOSTS = [("localhost", 200), ("127.0.0.1:9095", 200), ("[::1]:80", 200), ("evil.example.com", 403), ("10.0.0.1", 403)]


@pytest.mark.parametrize(("host", "status"), HOSTS)
async def test_requests_with_a_foreign_host_header_are_forbidden(
    client: aiohttp.ClientSession, host: str, status: int
) -> None:
    """A DNS name of another site can resolve to a loopback address, so only names of this machine are served."""
    for path in (*PATHS, "/events"):
        async with client.get(path, headers={"Host": host}) as answer:
            assert answer.status == status
    forged = {"Host": host, "Origin": f"http://{host}"}
    async with client.post("/topology", data={"topology": TOPOLOGY}, headers=forged) as answer:
        assert answer.status == status


async def test_the_status_page_is_only_served_on_a_loopback_address() -> None:
    """The port has no authentication, and in a cluster it listens on the pod's address; /healthz is public."""
    own = own_address()
    view = PageView(StatusReport("demo", accepted(), (row(),)), leads=True)
    server = TelemetryServer("0.0.0.0", 0, Metrics(), str, dict, site=site_of(view))
    await server.start()
    async with aiohttp.ClientSession() as session:
        for host, status in (("127.0.0.1", 200), (own, 403)):
            for path in ("/", "/search", "/topology"):
                async with session.get(f"http://{host}:{server.port}{path}") as answer:
                    assert answer.status == status
        async with session.get(f"http://{own}:{server.port}/healthz") as answer:
            assert answer.status == 200
    await server.close()


def own_address() -> str:
    """Return an address of this machine that is not a loopback address."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # no packet is sent: this selects the address that the machine would use
        except OSError:
            pytest.skip("the machine has no other address than loopback")
        return str(probe.getsockname()[0])


async def test_the_json_status_has_pod_names_only_on_a_loopback_address() -> None:
    """On other addresses, a pending edit has the number of affected pods, but neither their names nor the changes."""
    own, report = own_address(), StatusReport("demo", accepted().waiting(pending_edit()), (row(),))
    server = TelemetryServer("0.0.0.0", 0, Metrics(), str, report.document, site=site_of(PageView(report, leads=True)))
    await server.start()
    async with aiohttp.ClientSession() as session:
        for host, headers, is_told in ((own, {}, False), ("127.0.0.1", {}, True), ("127.0.0.1", {"Host": own}, False)):
            async with session.get(f"http://{host}:{server.port}/status", headers=headers) as answer:
                text, found = await answer.text(), await answer.json()
            assert ("shop/web-0" in text, "maintenance" in text) == (is_told, is_told)
            assert (found["pendingApproval"]["pods"], found["lowers"][0]["name"]) == (3, "lower-a")
    await server.close()


async def test_only_the_form_accepts_a_post_request(client: aiohttp.ClientSession) -> None:
    """Other methods return 405, and HEAD of the event stream ends at once."""
    for path in (*PATHS[:-1], "/events"):
        assert (await client.post(path)).status == 405
        assert (await client.head(path)).status == 200
    assert (await client.put("/topology")).status == 405


# Tests of the topology form.


async def sent(client: aiohttp.ClientSession, url: str, topology: str, **headers: str) -> tuple[int, str]:
    """Send the form as a browser does, and return the status and the text of the page."""
    given = {"Origin": url, **headers}
    async with client.post("/topology", data={"topology": topology}, headers=given) as answer:
        return answer.status, ParsedPage(await answer.text()).text if answer.content_type == "text/html" else ""


async def test_the_form_compares_a_topology_with_the_active_one(
    client: aiohttp.ClientSession, url: str, status_page: StatusPageHarness
) -> None:
    """The page has the differences, their effects on pods and the given text; the active topology stays."""
    before = status_page.world.topology
    status, text = await sent(client, url, TOPOLOGY)
    assert status == 200
    for fragment in (
        "Valid.",
        "lower lower-01 removed",
        "lowers[lower-00].maintenance: none -> drain",
        "lower-01: cordoned; 3 pods stay on its node",
        "kubeconfig: k/0",
    ):
        assert fragment in text
    assert status_page.world.topology is before


async def test_the_form_shows_the_plan_of_the_edit_as_text(status_page: StatusPageHarness) -> None:
    """A topology without a change is not planned."""
    planned_texts: list[str] = []

    async def plan(change: Edit) -> str:
        planned_texts.extend(change.changes)
        return "lower-00\n- Pod <b>shop</b>/web\x1b[2J\n\nPlan: 0 to add"

    async with serving(status_page.source(plan=plan)) as url, aiohttp.ClientSession(url) as session:
        text = (await sent(session, url, TOPOLOGY))[1]
        assert "- Pod <b>shop</b>/web\\u001b[2J" in text
        assert "Plan: 0 to add" in text
        assert planned_texts
        planned_texts.clear()
        status_page.world.topology = parse(TOPOLOGY)
        assert "the same as the topology in force" in (await sent(session, url, TOPOLOGY))[1]
        assert planned_texts == []


async def test_a_topology_is_only_validated_while_no_topology_is_active() -> None:
    """The page states that it is not compared."""
    source = PageSource(lambda _usage: None, str, world=lambda: None)  # type: ignore[arg-type, return-value]
    given, check = await check_topology(urlencode({"topology": TOPOLOGY}).encode(), source)
    text = ParsedPage(topology_page(given, check)).text
    assert "Valid." in text
    assert "It is not compared: no topology is in force yet." in text


async def test_changes_that_would_wait_are_left_out_while_pods_are_not_listed(status_page: StatusPageHarness) -> None:
    """They depend on the pods, which a standby for example does not know."""
    renamed = TOPOLOGY.replace("capacity:", "node: {name: other}, capacity:")
    async with serving(status_page.source()) as url, aiohttp.ClientSession(url) as session:
        assert "Would wait" in (await sent(session, url, renamed))[1]
        status_page.world.lowers["lower-01"].upper_pods.synced = False
        text = (await sent(session, url, renamed))[1]
        assert "Valid." in text
        assert "Would wait" not in text


async def test_changes_that_need_a_restart_are_listed_separately(client: aiohttp.ClientSession, url: str) -> None:
    """The name of the topology is an example of such a change."""
    _, text = await sent(client, url, TOPOLOGY.replace("name: demo", "name: other"))
    assert "Needs a restart of the engine" in text
    assert "name: demo -> other" in text


async def test_every_error_of_a_topology_is_shown_with_its_line(client: aiohttp.ClientSession, url: str) -> None:
    """The lines are those of `tensile validate`, and a text that is no topology at all is reported as not valid too."""
    _, text = await sent(client, url, TOPOLOGY + "lowerz: 1\nmaintenance: 2\n")
    assert "Not valid:" in text
    assert "topology:6:1: lowerz" in text
    assert "topology:7:1: maintenance" in text
    for odd in ("", "[" * 5000, "&a [*a, *a]", "\x00", "a: b: c"):
        status, text = await sent(client, url, odd)
        assert (status, "Not valid:" in text) == (200, True)


async def test_a_topology_is_only_validated_while_the_engine_has_no_world(status_page: StatusPageHarness) -> None:
    """No active topology exists to compare it with."""
    async with serving(status_page.source(world=lambda: None)) as url, aiohttp.ClientSession(url) as session:
        assert "Valid." in (await sent(session, url, TOPOLOGY))[1]
        assert "Not valid:" in (await sent(session, url, "x"))[1]


async def test_paths_are_invalid_in_a_topology_of_a_config_map(status_page: StatusPageHarness) -> None:
    """The error is the same as when the engine reads such a ConfigMap."""
    async with serving(status_page.source(in_configmap=True)) as url, aiohttp.ClientSession(url) as session:
        assert "kubeconfigSecret" in (await sent(session, url, TOPOLOGY))[1]


@pytest.mark.parametrize("origin", ["", "null", "http://evil.example.com", "https://127.0.0.1", "http://127.0.0.1:1"])
async def test_a_form_from_another_origin_is_forbidden(client: aiohttp.ClientSession, url: str, origin: str) -> None:
    """The Origin header of a browser names the site that sent the form."""
    assert (await sent(client, url, TOPOLOGY, Origin=origin))[0] == 403


async def test_an_invalid_form_is_refused(client: aiohttp.ClientSession, url: str) -> None:
    """Its media type, its encoding or its size can be wrong, and a very large body is not read."""
    own = {"Origin": url}
    async with client.post("/topology", data=b"topology=x", headers={**own, "Content-Type": "text/plain"}) as answer:
        assert answer.status == 403
    form = {**own, "Content-Type": "application/x-www-form-urlencoded"}
    for body in (b"topology=%ff", b"\xff", b"&".join([b"a=1"] * 9)):
        async with client.post("/topology", data=body, headers=form) as answer:
            assert "the form is not valid" in await answer.text()
    assert "larger than" in (await sent(client, url, "x" * (MAX_TYPED_BYTES + 1)))[1]
    async with client.post("/topology", data=BytesIO(b"x" * (4 * MAX_TYPED_BYTES)), headers=form) as answer:
        assert answer.status == 413


async def test_few_forms_are_queued_and_none_of_a_disconnected_client(status_page: StatusPageHarness) -> None:
    """A further form returns 503 with Retry-After, and a form of a disconnected client is not checked."""
    begun, free, request_count = asyncio.Event(), asyncio.Event(), 0

    async def plan(_change: Edit) -> str:
        """Wait, and return a plan."""
        nonlocal request_count
        request_count += 1
        begun.set()
        await free.wait()
        return "Plan: 0 to add"

    async with serving(status_page.source(plan=plan)) as url, aiohttp.ClientSession(url) as session:
        given = {"data": {"topology": TOPOLOGY}, "headers": {"Origin": url}}
        tasks = {asyncio.create_task(session.post("/topology", **given)) for _ in range(5)}
        (refused,), waiting = await asyncio.wait(tasks, timeout=30, return_when=asyncio.FIRST_COMPLETED)
        answer = await refused
        assert (answer.status, answer.headers["Retry-After"]) == (503, "2")
        await begun.wait()
        await cancel_and_wait(*waiting)
        assert (await session.get("/healthz")).status == 200
        free.set()
        assert (await session.get("/healthz")).status == 200
        async with session.post("/topology", **given) as answer:
            assert "Plan: 0 to add" in await answer.text()
    assert request_count == 2


async def test_other_requests_are_served_while_a_large_topology_is_checked(
    client: aiohttp.ClientSession, url: str
) -> None:
    """It is checked in a thread."""
    lowers = "".join(f"- {{name: lower-{n}, kubeconfig: k/{n}}}\n" for n in range(400))
    head = TOPOLOGY.partition("- {")[0]
    checking = asyncio.create_task(sent(client, url, head + lowers))
    answered = 0
    while not checking.done():
        async with client.get("/healthz") as answer:
            answered += answer.status == 200
    assert answered > 3
    text = (await checking)[1]
    assert "lower lower-1 added" in text
    assert "And 302 more." in text
