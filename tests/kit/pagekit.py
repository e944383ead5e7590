"""A status page without a cluster: its sources, and the server, for a world of plain data."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from html.parser import HTMLParser
from typing import TYPE_CHECKING, Any

import worldkit
from statuskit import NOW, accepted
from worldkit import put

from tensile.engine.metrics import Metrics
from tensile.engine.status.page import PageView, RecentChanges, ResourceUsage, stamp
from tensile.engine.status.report import StatusReport, rows
from tensile.engine.status.site import PageSource, StatusSite
from tensile.engine.telemetry_server import TelemetryServer
from tensile.objects import POD, Manifest, Ref
from tensile.reconcile.drift import DriftLog
from tensile.reconcile.plan import Step
from tensile.reconcile.world import Key, World

if TYPE_CHECKING:
    from tensile.kubelet.pods.events import CarriedEvent

VOID = frozenset(("meta", "link", "br", "input"))
GPU = "nvidia.com/gpu"
SECRET = "hunter2-do-not-show"
"""The value in each place where a pod may hold a secret; no page may show it."""


class ParsedPage(HTMLParser):
    """A page as a browser parses it: its elements with their attributes, and its text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.opened: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Record an element."""
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.opened.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Record an element of SVG, which ends at once."""
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        """Close the element that was opened last, which must have that name."""
        assert self.opened.pop() == tag

    def handle_data(self, data: str) -> None:
        """Record text."""
        self.text += data

    @property
    def tags(self) -> list[str]:
        """The elements' names."""
        return [tag for tag, _ in self.elements]

    @property
    def links(self) -> list[str]:
        """The addresses of all links."""
        return [str(attributes["href"]) for tag, attributes in self.elements if tag == "a"]


class StatusPageHarness:
    """A world and the other sources of the page, which a test may change; the engine holds `held_steps`."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.changes = RecentChanges(lambda: NOW)
        self.drift = DriftLog()
        self.held_steps: dict[Key, tuple[Step, ...]] = {}
        self.carried_events: tuple[CarriedEvent, ...] = ()
        self.views = 0

    def view(self, usage: ResourceUsage) -> PageView:
        """Return what the overview shows, and count the call."""
        self.views += 1
        world = self.world
        report = StatusReport("demo", accepted(), tuple(rows(world, {})))
        used = {lower.name: usage.of(lower) for lower in world.lowers.values()}
        counts = {key: len(steps) for key, steps in self.held_steps.items()}
        return PageView(
            report, True, tuple(world.problems.items()), tuple(self.changes), used, counts, tuple(self.drift)
        )

    def source(self, **more: Any) -> PageSource:
        """Return the source of the pages, with fields replaced."""

        def shown() -> object:
            return self.changes.count, self.drift.counts.total(), stamp(self.world)

        found = PageSource(
            self.view, shown, lambda: self.world, lambda: self.held_steps, lambda *_: self.carried_events
        )
        return found._replace(**more)


@asynccontextmanager
async def serving(source: PageSource) -> AsyncIterator[str]:
    """Serve a page on a free port, and yield its address."""
    server = TelemetryServer("127.0.0.1", 0, Metrics(), str, dict, site=StatusSite(source))
    await server.start()
    try:
        yield f"http://127.0.0.1:{server.port}"
    finally:
        await server.close()


def step(name: str, verb: Any = "create", reason: str = "it is bound to node lower-a") -> Step:
    """Make a step for a pod of lower-a."""
    return Step(verb, Ref("lower-a", POD, "shop", name), reason)


def requesting(name: str, namespace: str, node: str, **more: Any) -> Manifest:
    """Make an upper pod that requests half a core and 256Mi, with a possibly secret value in each kind of place."""
    container = {
        "name": "main",
        "image": f"registry.example.com/{namespace}/app:1",
        "env": [{"name": "PASSWORD", "value": SECRET}],
        "command": ["serve", f"--token={SECRET}"],
        "resources": {"requests": {"cpu": "500m", "memory": "256Mi"}},
        **more,
    }
    spec = {"nodeName": node, "containers": [container]}
    uid, notes = f"{node}-{namespace}-{name}", {"example.com/token": SECRET}
    return worldkit.make_upper_pod(name, spec, running(), namespace=namespace, uid=uid, annotations=notes)


def running() -> Manifest:
    """Make the status of a pod that runs and is ready."""
    kinds = ("PodScheduled", "Initialized", "ContainersReady", "Ready")
    conditions = [{"type": kind, "status": "True", "lastTransitionTime": "2026-03-01T12:00:00Z"} for kind in kinds]
    container = {"name": "main", "image": "app:1", "ready": True, "restartCount": 1, "state": {"running": {}}}
    return {"phase": "Running", "podIP": "10.1.0.7", "conditions": conditions, "containerStatuses": [container]}


def populated(lowers: int = 2, pods: int = 6, namespaces: int = 2) -> World:
    """Make a world with so many pods, spread over lowers and their namespaces, and with foreign pods."""
    names = [f"lower-{place:02}" for place in range(lowers)]
    world = worldkit.make_world(*(f"name: {name}, capacity: {{reserve: {{cpu: '8'}}}}" for name in names))
    for lower in world.lowers.values():
        lower.version = "v1.36.3"
        for number in range(3):
            node = worldkit.make_lower_node(f"n{number}", "96")
            node["status"]["allocatable"] |= {"memory": "384Gi", "pods": "500", GPU: "8"}
            put(lower.nodes, node)
        for number in range(4):
            put(lower.foreign_pods, foreign(f"other-{number}"))
        worldkit.add_virtual_node(world, lower.name)
    for number in range(pods):
        lower = world.lowers[names[number % lowers]]
        upper_object = requesting(f"web-{number:04}", f"team-{number // lowers % namespaces}", lower.node)
        lower_object = worldkit.make_lower_pod(upper_object, running())
        lower_object["spec"] = {**lower_object["spec"], "nodeName": "n1"}
        put(lower.upper_pods, upper_object)
        put(lower.pods, lower_object)
    return world


def foreign(name: str) -> Manifest:
    """Make a foreign pod on node n0, which requests four cores, 16Gi and a GPU."""
    requests = {"cpu": "4", "memory": "16Gi", GPU: "1"}
    spec = {"nodeName": "n0", "containers": [{"name": "main", "image": "x", "resources": {"requests": requests}}]}
    return {**worldkit.make_object("Pod", name, "others"), "spec": spec, "status": {"phase": "Running"}}


def site_of(view: PageView) -> StatusSite:
    """Make the status page of an engine that always shows the same, and has no world yet."""
    return StatusSite(PageSource(lambda _usage: view, str))
