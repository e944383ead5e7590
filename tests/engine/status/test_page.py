"""The status page: what is on it, that text of clusters stays text, and how it is served."""

import asyncio
import hashlib
import re
import socket
from base64 import b64encode
from collections.abc import AsyncIterator
from html.parser import HTMLParser
from typing import Any

import aiohttp
import orjson
import pytest
from statuskit import NOW, accepted, bad, row

from tensile.engine.health import TelemetryServer
from tensile.engine.metrics import Metrics
from tensile.engine.status.page import PageView, RecentChanges, content, page
from tensile.engine.status.report import LowerRow, StatusReport, TopologyStatus
from tensile.objects import NODE, POD, UPPER, Ref
from tensile.reconcile.plan import Step
from tensile.reconcile.world import Key, Problem

POD_KEY = Key("pod", "lower-a", "shop", "web")
MISSING = Problem("ConfigMapNotFound", "ConfigMap shop/settings: it does not exist")
VOID = frozenset(("meta", "link", "br"))
HOSTILE = (
    "<script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    '"><svg onload=alert(1)>',
    "' onmouseover='alert(1)",
    "</main></body><iframe src=//example.com>",
    "javascript:alert(1)",
    "\x1b[31mred\x1b]0;title\x07",
    "a\u202egnp.exe",
    "&lt;b&gt;",
    "x" * 1_000_000,
)


class Seen(HTMLParser):
    """What a browser makes of a page: its elements with their attributes, and its text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.opened: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Keep an element."""
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.opened.append(tag)

    def handle_endtag(self, tag: str) -> None:
        """Close the element that was opened last, which must be of that name."""
        assert self.opened.pop() == tag

    def handle_data(self, data: str) -> None:
        """Keep text."""
        self.text += data

    @property
    def tags(self) -> list[str]:
        """The elements' names."""
        return [tag for tag, _ in self.elements]


def step(name: str, verb: Any = "create", reason: str = "it is bound to node lower-a") -> Step:
    """Make a step for a pod of lower-a."""
    return Step(verb, Ref("lower-a", POD, "shop", name), reason)


def changes(*steps: Step) -> Any:
    """Return the last changes after steps."""
    found = RecentChanges(lambda: NOW)
    for one in steps:
        found.add(one)
    return tuple(found)


def view(*rows: LowerRow, **fields: Any) -> PageView:
    """Make what the page of a leader shows."""
    return PageView(StatusReport("demo", accepted(), rows), leads=True)._replace(**fields)


def test_a_lower_has_a_card_with_its_state_and_what_its_node_offers() -> None:
    """With a bar for each resource, which a screen reader reads as a sentence."""
    found = Seen(page(view(row("lower-a"), row("lower-b", state="NoAnswer", lag=130, message="no answer"))))
    assert found.opened == []
    assert found.tags.count("li") == 2
    for words in (
        "demo",
        "Engine: leader",
        "lower-a",
        "Ready",
        "Node node-lower-a, 3 pods",
        "90 of 96",
        "768Gi of 768Gi",
    ):
        assert words in found.text
    assert "NoAnswer 2m10s" in found.text
    meters = [attributes for tag, attributes in found.elements if tag == "meter"]
    assert (len(meters), meters[0]["value"], meters[0]["aria-label"]) == (6, "0.938", "cpu advertised: 90 of 96")


def test_what_needs_attention_comes_with_a_command() -> None:
    """Blocked objects and lowers with a problem; without any, the page says so."""
    found = Seen(content(view(row(message="no such file", state="Error"), problems=((POD_KEY, MISSING),))))
    for words in ("no such file", "tensile doctor", MISSING.reason, MISSING.message, "tensile explain pod shop/web"):
        assert words in found.text
    assert "Nothing." in Seen(content(view(row()))).text


def test_many_problems_are_counted() -> None:
    """The page stays short."""
    found = content(view(row(), problems=((POD_KEY, MISSING),) * 73))
    assert found.count(MISSING.reason) == 50
    assert "And 23 more" in found


def test_the_last_changes_are_listed_with_their_reasons_the_latest_first() -> None:
    """Fifty of them, with the cluster and the object."""
    steps = [step(f"web-{number}") for number in range(60)]
    node = Step("patch", Ref(UPPER, NODE, "", "lower-a"), "labels differ")
    found = changes(*steps, node)
    assert len(found) == 50
    text = Seen(content(view(row(), changes=found))).text
    assert "2026-03-01T12:00:00ZupperNode lower-a changedlabels differ" in text
    assert text.index("web-59") < text.index("web-11")
    assert "Pod shop/web-59 created" in text
    assert "None since" in Seen(content(view(row()))).text


def test_what_is_wrong_with_the_topology_is_said() -> None:
    """A refused edit, an edit that waits, one that needs a restart, and what the engine waits for."""
    verdict = accepted(bad()).pending(("node.name: once the node is gone",))
    found = content(view(row(), report=StatusReport("demo", verdict, None, "the upper cluster has not answered yet")))
    for words in ("lowerz: unknown key", "Not active yet: node.name", "Not ready: the upper cluster", "Not known yet"):
        assert words in found
    empty = content(PageView(StatusReport("", TopologyStatus(), ()), leads=False))
    for words in ("No topology", "replica", "The topology has none"):
        assert words in empty


@pytest.mark.parametrize("text", HOSTILE)
def test_text_of_clusters_stays_text(text: str) -> None:
    """Wherever it is shown: no element, no attribute and no control character comes of it, and it is cut."""
    plain = Seen(page(view(row(), problems=((POD_KEY, MISSING),), changes=changes(step("x")))))
    hostile = view(
        row(text, node=text, message="", advertised={"cpu": "1"}),
        problems=((Key("pod", text, text, text), Problem(text, text)),),
        changes=changes(step(text, reason=text)),
    )
    made = page(hostile)
    found = Seen(made)
    assert found.tags == plain.tags
    assert [sorted(attributes) for _, attributes in found.elements] == [sorted(one) for _, one in plain.elements]
    assert re.search(r"[\x00-\x08\x0b-\x1f\x7f\u202a-\u202e\u2066-\u2069]", made) is None
    assert len(made) < 20_000


@pytest.fixture
async def served() -> AsyncIterator[tuple[TelemetryServer, list[PageView]]]:
    """The telemetry server, and what its page shows, which is the last of a list."""
    shown = [view(row())]
    server = TelemetryServer("127.0.0.1", 0, Metrics(), str, bytes, view=lambda: shown[-1])
    await server.start()
    yield server, shown
    await server.close()


async def test_a_browser_is_told_to_run_nothing_but_the_pages_own_script(served: Any) -> None:
    """By hashes that are those of its style and its script; and no other host is named."""
    server, _ = served
    async with aiohttp.ClientSession() as session, session.get(f"http://127.0.0.1:{server.port}/") as answer:
        text, policy = await answer.text(), answer.headers["Content-Security-Policy"]
    assert answer.status == 200
    assert answer.content_type == "text/html"
    assert "default-src 'none'" in policy
    for tag, directive in (("style", "style-src"), ("script", "script-src")):
        inner = re.findall(rf"<{tag}>(.*?)</{tag}>", text, re.DOTALL)
        assert [sha256(one) in policy for one in inner] == [True]
        assert "unsafe" not in policy.split(directive, 1)[1].split(";")[0]
    assert "://" not in text


def sha256(text: str) -> str:
    """Return a hash as a Content-Security-Policy has it."""
    return f"'sha256-{b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


async def test_what_changes_is_sent_at_once_and_nothing_else(served: Any) -> None:
    """The first event has the present content, the next one comes with the next change."""
    server, shown = served
    async with (
        asyncio.timeout(30),
        aiohttp.ClientSession() as session,
        session.get(f"http://127.0.0.1:{server.port}/events") as answer,
    ):
        assert answer.content_type == "text/event-stream"
        assert orjson.loads(await event(answer)) == content(shown[-1])
        shown.append(view(row(state="Cordoned")))
        assert orjson.loads(await event(answer)) == content(shown[-1])


async def event(answer: aiohttp.ClientResponse) -> bytes:
    """Read the data of the next event."""
    async for line in answer.content:
        if line.startswith(b"data: "):
            return line.removeprefix(b"data: ").strip()
    raise AssertionError("the stream has ended")


@pytest.mark.parametrize(
    ("host", "status"),
    [("localhost", 200), ("127.0.0.1:9095", 200), ("[::1]:80", 200), ("evil.example.com", 403), ("10.0.0.1", 403)],
)
async def test_a_website_whose_name_leads_here_reads_nothing(served: Any, host: str, status: int) -> None:
    """A browser sends the name that it called: on a loopback address only names of this machine are answered."""
    server, _ = served
    async with aiohttp.ClientSession(f"http://127.0.0.1:{server.port}", headers={"Host": host}) as session:
        for path in ("/", "/events"):
            async with session.get(path) as answer:
                assert answer.status == status


async def test_the_page_is_only_served_on_a_loopback_address() -> None:
    """The port has no authentication, and in a cluster it listens on the pod's address."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # no packet is sent: this chooses the address that the machine would use
        except OSError:
            pytest.skip("the machine has no other address than loopback")
        own = str(probe.getsockname()[0])
    server = TelemetryServer("0.0.0.0", 0, Metrics(), str, bytes, view=lambda: view(row()))
    await server.start()
    async with aiohttp.ClientSession() as session:
        for host, status in (("127.0.0.1", 200), (own, 403)):
            async with session.get(f"http://{host}:{server.port}/") as answer:
                assert answer.status == status
        async with session.get(f"http://{own}:{server.port}/healthz") as answer:
            assert answer.status == 200
    await server.close()


async def test_the_page_is_only_read(served: Any) -> None:
    """There is nothing to write to; HEAD of a stream ends at once."""
    server, _ = served
    async with asyncio.timeout(20), aiohttp.ClientSession(f"http://127.0.0.1:{server.port}") as session:
        for path in ("/", "/events"):
            assert (await session.post(path)).status == 405
            assert (await session.head(path)).status == 200
