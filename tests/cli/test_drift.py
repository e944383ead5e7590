"""Tests of `tensile plan --drift` with clusters in memory: it reports changes by other clients, and no upper edits."""

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import orjson
import pytest
from clikit import refused
from openkit import MemoryClusters
from worldkit import (
    OWNER_HERE,
    A,
    B,
    config_map,
    home,
    marked,
    put,
    raised,
    referring,
    secret,
    space,
    twin,
    upper_pod,
    world,
)

from tensile.cli.drift import examined
from tensile.names import FIELD_MANAGER, OWNER
from tensile.objects import CONFIG_MAP, NODE, POD, SECRET, UPPER, Manifest, Ref
from tensile.reconcile.report import WHOLE_PLAN, PlanScope
from tensile.reconcile.report.drift import DriftReport, drift_json, drift_markdown, drift_text

HIDDEN = "aGlkZGVu"
BEFORE, WRITTEN, LATER = (f"2026-03-01T1{hour}:00:00Z" for hour in (0, 1, 2))
RAN = {"phase": "Running", "containerStatuses": [{"name": "main", "ready": True}]}


def booked(one: Manifest, manager: str, time: str, **fields: Any) -> Manifest:
    """Return an object with one more entry of managedFields; `data=["key"]` are fields f:key of f:data."""
    held = {f"f:{part}": {".": {}, **{f"f:{key}": {} for key in keys}} for part, keys in fields.items()}
    book = {"manager": manager, "operation": "Update", "time": time, "fieldsV1": held}
    meta = one["metadata"]
    return {**one, "metadata": {**meta, "managedFields": [*meta.get("managedFields", []), book]}}


class Clusters:
    """A synced pod in lower-a with a ConfigMap and a Secret; a test changes copies or originals.

    The upper objects were created before the copies were last written.
    """

    def __init__(self) -> None:
        self.world = world(f"name: {A}")
        home(self.world)
        put(self.world.upper.namespaces, space())
        raised(self.world)
        self.above = {
            CONFIG_MAP: booked(config_map(creationTimestamp=BEFORE), "helm", BEFORE, data=["key"]),
            SECRET: booked(secret(creationTimestamp=BEFORE), "helm", BEFORE, data=["key"]),
            POD: upper_pod(
                spec=referring(config_maps=["settings"], secrets=["password"]),
                status=RAN,
                labels={"app": "web"},
                creationTimestamp=WRITTEN,
            ),
        }
        self.below: dict[Any, Manifest | None] = {
            POD: twin(self.above[POD], RAN, resourceVersion="1"),
            **{
                kind: booked(
                    marked(self.above[kind], f"{kind.name}-{self.above[kind]['metadata']['name']}"),
                    FIELD_MANAGER,
                    WRITTEN,
                    data=["key"],
                )
                for kind in (CONFIG_MAP, SECRET)
            },
        }

    def edit(self, kind: Any, change: Callable[[Manifest], object], manager: str = "", **fields: Any) -> "Clusters":
        """Change a copy as another client does, which then owns these fields."""
        found = deepcopy(self.below[kind])
        assert found is not None
        change(found)
        for part, keys in fields.items():
            for book in found["metadata"]["managedFields"]:
                for key in keys:
                    book["fieldsV1"].get(f"f:{part}", {}).pop(f"f:{key}", None)
        self.below[kind] = booked(found, manager, LATER, **fields) if manager else found
        return self

    async def report(self, only: PlanScope = WHOLE_PLAN, **unreached: str) -> DriftReport:
        """Return the drift that is found, after a check that nothing was written."""
        here = self.world.lowers[A]
        put(self.world.upper.config_maps, self.above[CONFIG_MAP])
        put(self.world.upper.secrets, self.above[SECRET])
        put(here.upper_pods, self.above[POD])
        for kind, cache in ((POD, here.pods), (CONFIG_MAP, here.config_maps), (SECRET, here.secrets)):
            found = self.below[kind]
            if found is not None and OWNER in found["metadata"]["labels"]:
                put(cache, found)
        clusters = MemoryClusters(self.world, **unreached)
        for kind, found in self.below.items():
            if found is not None and OWNER not in found["metadata"]["labels"]:
                clusters.connections[A].hold(kind, orjson.dumps({**found, "kind": kind.name, "apiVersion": kind.api}))
        async with clusters.opening() as (opened, away, _waits):
            report = await examined(opened, away, only)
        assert clusters.writes == []
        return report


def told(report: DriftReport) -> list[tuple[str, ...]]:
    """Return the kind of drift of each object, and its fields with their managers."""
    return [
        (one.sort, one.ref.kind.name, *(f"{found.path} {found.manager}".strip() for found in one.fields))
        for one in report.objects
    ]


async def test_clusters_in_sync_have_no_drift() -> None:
    """The engine's own writes are no drift; the last line is for scripts."""
    report = await Clusters().report()
    assert told(report) == []
    assert drift_text(report, colour=False) == (
        "No drift. No other client is known to have changed objects.\n\n"
        "Drift: 0 changed, 0 deleted, 0 without marks, 0 without an upper object (none)"
    )


async def test_upper_edits_that_are_not_mirrored_yet_are_no_drift() -> None:
    """Changed, added and removed values of data and labels do not count."""
    here = Clusters()
    settings = here.above[CONFIG_MAP]
    settings["data"] = {"key": "new", "more": "added"}
    here.above[CONFIG_MAP] = booked(settings, "kubectl-edit", LATER, data=["more"])
    del here.above[SECRET]["data"]["key"]
    here.above[POD]["metadata"]["labels"] = {"new": "yes"}
    here.above[POD]["spec"]["containers"][0]["image"] = "app:2"
    assert told(await here.report()) == []


async def test_drift_and_upper_edits_of_one_object_are_distinguished() -> None:
    """The field that another client owns is drift, and the field that the engine owns is not."""
    here = Clusters()
    here.above[CONFIG_MAP]["data"] = {"key": "new", "other": "above"}
    here.below[CONFIG_MAP] = {**(here.below[CONFIG_MAP] or {}), "data": {"key": "value", "other": "old"}}
    here.edit(CONFIG_MAP, lambda one: one["data"].update(other="edited"), "kubectl-edit", data=["other"])
    assert told(await here.report()) == [("changed", "ConfigMap", "/data/other kubectl-edit")]


def change_data(**values: str) -> Callable[[Manifest], object]:
    """Return an edit of the data."""
    return lambda one: one["data"].update(values)


@pytest.mark.parametrize(
    ("kind", "change", "owned", "fields"),
    [
        (CONFIG_MAP, change_data(key="edited"), {"data": ["key"]}, ["/data/key oc"]),
        (CONFIG_MAP, change_data(added="x"), {"data": ["added"]}, ["/data/added oc"]),
        (CONFIG_MAP, lambda one: one["data"].clear(), {}, ["/data/key"]),
        (CONFIG_MAP, lambda one: one.pop("data"), {}, ["/data/key"]),
        (SECRET, change_data(key=HIDDEN), {"data": ["key"]}, ["/data/key oc"]),
        (SECRET, lambda one: one["data"].clear(), {}, ["/data/key"]),
        (POD, lambda one: one["metadata"]["labels"].pop("app"), {}, ["/metadata/labels/app"]),
    ],
    ids=["edited", "added", "removed", "emptied", "secret", "secret removed", "label removed from a pod"],
)
async def test_fields_that_another_client_changed_are_reported(
    kind: Any, change: Callable[[Manifest], object], owned: Any, fields: list[str]
) -> None:
    """The client is reported if managedFields has it; a removal leaves no trace of the client."""
    report = await Clusters().edit(kind, change, "oc" if owned else "", **owned).report()
    assert told(report) == [("changed", kind.name, *fields)]
    for output in (drift_text(report, colour=True), drift_json(report), drift_markdown(report)):
        assert HIDDEN not in output
        assert "dmFsdWU=" not in output


async def test_edited_labels_and_images_of_a_pod_are_drift() -> None:
    """Both are reverted and reported with their client; an added deadline cannot be reverted."""
    here = Clusters()
    element = {"f:containers": {'k:{"name":"main"}': {"f:image": {}}}, "f:activeDeadlineSeconds": {}}

    def change(pod: Manifest) -> None:
        pod["metadata"]["labels"]["app"] = "edited"
        pod["spec"]["containers"][0]["image"] = "app:9"
        pod["spec"]["activeDeadlineSeconds"] = 60
        fields = {"f:metadata": {"f:labels": {"f:app": {}}}, "f:spec": element}
        pod["metadata"]["managedFields"][0]["fieldsV1"]["f:metadata"]["f:labels"].pop("f:app")
        pod["metadata"]["managedFields"].append({"manager": "hand", "time": LATER, "fieldsV1": fields})

    (found,) = (await here.edit(POD, change).report()).objects
    assert [(one.path, one.old, one.new, one.manager, one.lasts) for one in found.fields] == [
        ("/metadata/labels/app", "web", "edited", "hand", False),
        ("/spec/containers/0/image", "app:1", "app:9", "hand", False),
        ("/spec/activeDeadlineSeconds", None, 60, "hand", True),
    ]
    assert found.outcome == "the engine puts it back, but not all of it: Kubernetes does not allow that"


@pytest.mark.parametrize("kind", [CONFIG_MAP, SECRET])
async def test_a_deleted_copy_is_drift_if_a_newer_pod_refers_to_it(kind: Any) -> None:
    """A pod newer than the upper object proves that the copy existed; a newer upper object proves nothing."""
    here = Clusters()
    here.below[kind] = None
    (found,) = (await here.report()).objects
    assert (found.sort, found.ref.kind, found.evidence) == (
        "deleted",
        kind,
        "pod default/web refers to it and is newer than the upper object",
    )
    newer = Clusters()
    newer.below[kind] = None
    newer.above[kind]["metadata"]["creationTimestamp"] = LATER
    assert told(await newer.report()) == []


async def test_a_deleted_lower_pod_is_drift_if_it_ran() -> None:
    """Its upper pod still exists; a pod that never ran may not have been created yet."""
    here = Clusters()
    here.below[POD] = None
    report = await here.report()
    assert told(report) == [("deleted", "Pod")]
    assert "deleted by another client (its upper pod ran there); the engine marks the upper pod Failed" in drift_text(
        report, colour=False
    )
    waiting = Clusters()
    waiting.below[POD], waiting.above[POD]["status"] = None, {"phase": "Pending"}
    assert told(await waiting.report()) == []


@pytest.mark.parametrize("kind", [CONFIG_MAP, POD])
async def test_an_object_without_its_owner_label_is_drift(kind: Any) -> None:
    """The engine does not change it any more, and the report has the missing label."""
    report = await Clusters().edit(kind, lambda one: one["metadata"]["labels"].pop(OWNER)).report()
    assert told(report) == [("unmarked", kind.name, "/metadata/labels/tensile-kube.io~1owner")]
    (found,) = report.objects[0].fields
    assert (found.old, found.new) == (OWNER_HERE.mark, None)


async def test_an_edited_and_a_deleted_virtual_node_are_drift() -> None:
    """The virtual node in the upper cluster belongs to this topology too."""
    here = Clusters()
    (node,) = here.world.upper.nodes
    body = deepcopy(node.manifest())
    body["metadata"]["labels"]["clusterID"] = "edited"
    body["metadata"]["managedFields"][0]["fieldsV1"]["f:metadata"]["f:labels"].pop("f:clusterID")
    fields = {"f:metadata": {"f:labels": {"f:clusterID": {}}}}
    body["metadata"]["managedFields"].append({"manager": "kubectl-label", "time": LATER, "fieldsV1": fields})
    put(here.world.upper.nodes, body)
    report = await here.report()
    assert told(report) == [("changed", "Node", "/metadata/labels/clusterID kubectl-label")]
    assert report.objects[0].ref == Ref(UPPER, NODE, "", A)
    gone = Clusters()
    gone.world.upper.nodes.replace([], 99)
    assert told(await gone.report()) == [("deleted", "Node")]


async def test_copies_without_an_upper_object_are_drift() -> None:
    """They are in a namespace to which no upper namespace maps, so the engine does not change them."""
    here = Clusters()
    here.world.lowers[A].upper_namespaces = here.world.upper.namespaces
    put(here.world.lowers[A].config_maps, marked(config_map("lost", namespace="elsewhere"), "gone"))
    (found,) = (await here.report()).objects
    assert (found.sort, found.ref.namespaced_name) == ("stray", "elsewhere/lost")


async def test_a_scope_limits_the_report() -> None:
    """It selects lowers, upper namespaces and kinds."""
    here = Clusters().edit(CONFIG_MAP, change_data(key="edited"), "oc", data=["key"])
    here.edit(SECRET, change_data(key=HIDDEN), "oc", data=["key"])
    assert told(await here.report(PlanScope(kinds=("Secret",)))) == [("changed", "Secret", "/data/key oc")]
    assert told(await here.report(PlanScope(namespaces=("other",)))) == []
    report = await here.report(PlanScope(lowers=(A,)), **{B: "out of reach"})
    assert (len(report.objects), report.unreached) == (2, {})


async def test_drift_that_is_reverted_before_the_second_read_is_omitted() -> None:
    """A running engine may revert it between the dry run and the second read."""
    here = Clusters().edit(CONFIG_MAP, change_data(key="edited"), "oc", data=["key"])
    here.below[SECRET] = None
    settings, password = Clusters().below[CONFIG_MAP], Clusters().below[SECRET]
    put(here.world.lowers[A].config_maps, here.below[CONFIG_MAP] or {})
    put(here.world.upper.config_maps, here.above[CONFIG_MAP])
    put(here.world.upper.secrets, here.above[SECRET])
    put(here.world.lowers[A].upper_pods, here.above[POD])
    put(here.world.lowers[A].pods, here.below[POD] or {})
    clusters = MemoryClusters(here.world)
    for kind, one in ((CONFIG_MAP, settings), (SECRET, password)):
        assert one is not None
        one["metadata"]["resourceVersion"] = "77"
        clusters.connections[A].hold(kind, orjson.dumps(one))
    async with clusters.opening() as (opened, away, _waits):
        assert told(await examined(opened, away)) == []


TEXT = """\
Lower cluster lower-a: 2 changed, 1 deleted
~ ConfigMap default/settings: changed by kubectl-edit at 2026-03-01T12:00:00Z; the engine puts it back
    /data/key: "value" -> "edited"
    /data/more: set to "added"
~ Secret default/password: changed by oc at 2026-03-01T12:00:00Z; the engine puts it back
    /data/key: (changed)
- Pod default/web: deleted by another client (its upper pod ran there); the engine marks the upper pod Failed, so that \
its controller replaces it

Values: as the engine writes them -> as they are now.

Not examined
! lower-b: out of reach: no response: check that its apiserver works, its address, and the firewalls in between

Drift: 2 changed, 1 deleted, 0 without marks, 0 without an upper object (lower-a: 2 changed, 1 deleted; \
not examined: lower-b)"""


async def test_text_json_and_markdown_have_the_same_content() -> None:
    """They have client, time, change and outcome; JSON lists each field, and Markdown contains the text."""
    here = Clusters().edit(CONFIG_MAP, change_data(key="edited", more="added"), "kubectl-edit", data=["key", "more"])
    here.edit(SECRET, change_data(key=HIDDEN), "oc", data=["key"])
    here.below[POD] = None
    away = "out of reach: no response: check that its apiserver works, its address, and the firewalls in between"
    report = await here.report(**{B: away})
    assert drift_text(report, colour=False) == TEXT
    body, _, last = TEXT.rpartition("\n\n")
    assert drift_markdown(report) == f"```diff\n{body}\n```\n\n{last}"
    assert "\x1b[33m~\x1b[0m ConfigMap" in drift_text(report, colour=True)
    document = orjson.loads(drift_json(report))
    assert document["formatVersion"] == "1.0"
    assert document["unreached"] == [{"lower": B, "message": away}]
    assert document["summary"] == {"changed": 2, "deleted": 1, "unmarked": 0, "stray": 0}
    settings, password, pod = document["drift"]
    assert (settings["cluster"], settings["kind"], settings["namespace"], settings["name"], settings["change"]) == (
        A,
        "ConfigMap",
        "default",
        "settings",
        "changed",
    )
    by = {"manager": "kubectl-edit", "time": LATER, "putBack": True}
    assert settings["fields"] == [
        {"path": "/data/key", "from": "value", "to": "edited", **by},
        {"path": "/data/more", "from": None, "to": "added", **by},
    ]
    assert [(one["from"], one["to"]) for one in password["fields"]] == [("(redacted)", "(redacted)")]
    assert (pod["change"], pod["evidence"], pod["fields"]) == ("deleted", "its upper pod ran there", [])


def test_drift_excludes_out_and_drain() -> None:
    """Drift concerns past changes, so there is no plan to save and no lower to drain."""
    assert "--drift excludes --out and --drain" in refused("plan", "--drift", "--out", "x.plan")
    assert "--drift excludes --out and --drain" in refused("plan", "--drift", "--drain", A)
