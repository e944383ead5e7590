"""Tests of `tensile plan --drift` with clusters in memory: it reports changes by other clients, and no upper edits."""

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import orjson
import pytest
from clikit import run_failing
from openkit import MemoryClusters
from worldkit import (
    OWNER_HERE,
    A,
    B,
    add_namespace,
    add_virtual_node,
    config_map,
    make_lower_pod,
    make_namespace,
    make_upper_pod,
    make_world,
    put,
    secret,
    spec_with_references,
    with_owner_marks,
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


class DriftedClusters:
    """A synced pod in lower-a with a ConfigMap and a Secret; a test changes copies or originals.

    The upper objects were created before the copies were last written.
    """

    def __init__(self) -> None:
        self.world = make_world(f"name: {A}")
        add_namespace(self.world)
        put(self.world.upper.namespaces, make_namespace())
        add_virtual_node(self.world)
        self.upper = {
            CONFIG_MAP: booked(config_map(creationTimestamp=BEFORE), "helm", BEFORE, data=["key"]),
            SECRET: booked(secret(creationTimestamp=BEFORE), "helm", BEFORE, data=["key"]),
            POD: make_upper_pod(
                spec=spec_with_references(config_maps=["settings"], secrets=["password"]),
                status=RAN,
                labels={"app": "web"},
                creationTimestamp=WRITTEN,
            ),
        }
        self.lower: dict[Any, Manifest | None] = {
            POD: make_lower_pod(self.upper[POD], RAN, resourceVersion="1"),
            **{
                kind: booked(
                    with_owner_marks(self.upper[kind], f"{kind.name}-{self.upper[kind]['metadata']['name']}"),
                    FIELD_MANAGER,
                    WRITTEN,
                    data=["key"],
                )
                for kind in (CONFIG_MAP, SECRET)
            },
        }

    def edit(
        self, kind: Any, change: Callable[[Manifest], object], manager: str = "", **fields: Any
    ) -> "DriftedClusters":
        """Change a copy as another client does, which then owns these fields."""
        found = deepcopy(self.lower[kind])
        assert found is not None
        change(found)
        for part, keys in fields.items():
            for book in found["metadata"]["managedFields"]:
                for key in keys:
                    book["fieldsV1"].get(f"f:{part}", {}).pop(f"f:{key}", None)
        self.lower[kind] = booked(found, manager, LATER, **fields) if manager else found
        return self

    async def report(self, only: PlanScope = WHOLE_PLAN, **unreached: str) -> DriftReport:
        """Return the drift that is found, after a check that nothing was written."""
        lower_state = self.world.lowers[A]
        put(self.world.upper.config_maps, self.upper[CONFIG_MAP])
        put(self.world.upper.secrets, self.upper[SECRET])
        put(lower_state.upper_pods, self.upper[POD])
        for kind, cache in (
            (POD, lower_state.pods),
            (CONFIG_MAP, lower_state.config_maps),
            (SECRET, lower_state.secrets),
        ):
            found = self.lower[kind]
            if found is not None and OWNER in found["metadata"]["labels"]:
                put(cache, found)
        clusters = MemoryClusters(self.world, **unreached)
        for kind, found in self.lower.items():
            if found is not None and OWNER not in found["metadata"]["labels"]:
                clusters.connections[A].hold(kind, orjson.dumps({**found, "kind": kind.name, "apiVersion": kind.api}))
        async with clusters.opening() as (opened, away, _waits):
            report = await examined(opened, away, only)
        assert clusters.writes == []
        return report


def drift_by_object(report: DriftReport) -> list[tuple[str, ...]]:
    """Return the kind of drift of each object, and its fields with their managers."""
    return [
        (one.sort, one.ref.kind.name, *(f"{found.path} {found.manager}".strip() for found in one.fields))
        for one in report.objects
    ]


async def test_clusters_in_sync_have_no_drift() -> None:
    """The engine's own writes are no drift; the last line is for scripts."""
    report = await DriftedClusters().report()
    assert drift_by_object(report) == []
    assert drift_text(report, colour=False) == (
        "No drift. No other client is known to have changed objects.\n\n"
        "Drift: 0 changed, 0 deleted, 0 without marks, 0 without an upper object (none)"
    )


async def test_upper_edits_that_are_not_mirrored_yet_are_no_drift() -> None:
    """Changed, added and removed values of data and labels do not count."""
    clusters = DriftedClusters()
    settings = clusters.upper[CONFIG_MAP]
    settings["data"] = {"key": "new", "more": "added"}
    clusters.upper[CONFIG_MAP] = booked(settings, "kubectl-edit", LATER, data=["more"])
    del clusters.upper[SECRET]["data"]["key"]
    clusters.upper[POD]["metadata"]["labels"] = {"new": "yes"}
    clusters.upper[POD]["spec"]["containers"][0]["image"] = "app:2"
    assert drift_by_object(await clusters.report()) == []


async def test_drift_and_upper_edits_of_one_object_are_distinguished() -> None:
    """The field that another client owns is drift, and the field that the engine owns is not."""
    clusters = DriftedClusters()
    clusters.upper[CONFIG_MAP]["data"] = {"key": "new", "other": "above"}
    clusters.lower[CONFIG_MAP] = {**(clusters.lower[CONFIG_MAP] or {}), "data": {"key": "value", "other": "old"}}
    clusters.edit(CONFIG_MAP, lambda one: one["data"].update(other="edited"), "kubectl-edit", data=["other"])
    assert drift_by_object(await clusters.report()) == [("changed", "ConfigMap", "/data/other kubectl-edit")]


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
    report = await DriftedClusters().edit(kind, change, "oc" if owned else "", **owned).report()
    assert drift_by_object(report) == [("changed", kind.name, *fields)]
    for output in (drift_text(report, colour=True), drift_json(report), drift_markdown(report)):
        assert HIDDEN not in output
        assert "dmFsdWU=" not in output


async def test_edited_labels_and_images_of_a_pod_are_drift() -> None:
    """Both are reverted and reported with their client; an added deadline cannot be reverted."""
    clusters = DriftedClusters()
    element = {"f:containers": {'k:{"name":"main"}': {"f:image": {}}}, "f:activeDeadlineSeconds": {}}

    def change(pod: Manifest) -> None:
        pod["metadata"]["labels"]["app"] = "edited"
        pod["spec"]["containers"][0]["image"] = "app:9"
        pod["spec"]["activeDeadlineSeconds"] = 60
        fields = {"f:metadata": {"f:labels": {"f:app": {}}}, "f:spec": element}
        pod["metadata"]["managedFields"][0]["fieldsV1"]["f:metadata"]["f:labels"].pop("f:app")
        pod["metadata"]["managedFields"].append({"manager": "hand", "time": LATER, "fieldsV1": fields})

    (found,) = (await clusters.edit(POD, change).report()).objects
    assert [(one.path, one.old, one.new, one.manager, one.lasts) for one in found.fields] == [
        ("/metadata/labels/app", "web", "edited", "hand", False),
        ("/spec/containers/0/image", "app:1", "app:9", "hand", False),
        ("/spec/activeDeadlineSeconds", None, 60, "hand", True),
    ]
    assert found.outcome == "the engine puts it back, but not all of it: Kubernetes does not allow that"


@pytest.mark.parametrize("kind", [CONFIG_MAP, SECRET])
async def test_a_deleted_copy_is_drift_if_a_newer_pod_refers_to_it(kind: Any) -> None:
    """A pod newer than the upper object proves that the copy existed; a newer upper object proves nothing."""
    clusters = DriftedClusters()
    clusters.lower[kind] = None
    (found,) = (await clusters.report()).objects
    assert (found.sort, found.ref.kind, found.evidence) == (
        "deleted",
        kind,
        "pod default/web refers to it and is newer than the upper object",
    )
    newer = DriftedClusters()
    newer.lower[kind] = None
    newer.upper[kind]["metadata"]["creationTimestamp"] = LATER
    assert drift_by_object(await newer.report()) == []


async def test_a_deleted_lower_pod_is_drift_if_it_ran() -> None:
    """Its upper pod still exists; a pod that never ran may not have been created yet."""
    clusters = DriftedClusters()
    clusters.lower[POD] = None
    report = await clusters.report()
    assert drift_by_object(report) == [("deleted", "Pod")]
    assert "deleted by another client (its upper pod ran there); the engine marks the upper pod Failed" in drift_text(
        report, colour=False
    )
    waiting = DriftedClusters()
    waiting.lower[POD], waiting.upper[POD]["status"] = None, {"phase": "Pending"}
    assert drift_by_object(await waiting.report()) == []


@pytest.mark.parametrize("kind", [CONFIG_MAP, POD])
async def test_an_object_without_its_owner_label_is_drift(kind: Any) -> None:
    """The engine does not change it any more, and the report has the missing label."""
    report = await DriftedClusters().edit(kind, lambda one: one["metadata"]["labels"].pop(OWNER)).report()
    assert drift_by_object(report) == [("unmarked", kind.name, "/metadata/labels/tensile-kube.io~1owner")]
    (found,) = report.objects[0].fields
    assert (found.old, found.new) == (OWNER_HERE.mark, None)


async def test_an_edited_and_a_deleted_virtual_node_are_drift() -> None:
    """The virtual node in the upper cluster belongs to this topology too."""
    clusters = DriftedClusters()
    (node,) = clusters.world.upper.nodes
    body = deepcopy(node.manifest())
    body["metadata"]["labels"]["clusterID"] = "edited"
    body["metadata"]["managedFields"][0]["fieldsV1"]["f:metadata"]["f:labels"].pop("f:clusterID")
    fields = {"f:metadata": {"f:labels": {"f:clusterID": {}}}}
    body["metadata"]["managedFields"].append({"manager": "kubectl-label", "time": LATER, "fieldsV1": fields})
    put(clusters.world.upper.nodes, body)
    report = await clusters.report()
    assert drift_by_object(report) == [("changed", "Node", "/metadata/labels/clusterID kubectl-label")]
    assert report.objects[0].ref == Ref(UPPER, NODE, "", A)
    gone = DriftedClusters()
    gone.world.upper.nodes.replace([], 99)
    assert drift_by_object(await gone.report()) == [("deleted", "Node")]


async def test_copies_without_an_upper_object_are_drift() -> None:
    """They are in a namespace to which no upper namespace maps, so the engine does not change them."""
    clusters = DriftedClusters()
    clusters.world.lowers[A].upper_namespaces = clusters.world.upper.namespaces
    put(clusters.world.lowers[A].config_maps, with_owner_marks(config_map("lost", namespace="elsewhere"), "gone"))
    (found,) = (await clusters.report()).objects
    assert (found.sort, found.ref.namespaced_name) == ("stray", "elsewhere/lost")


async def test_a_scope_limits_the_report() -> None:
    """It selects lowers, upper namespaces and kinds."""
    clusters = DriftedClusters().edit(CONFIG_MAP, change_data(key="edited"), "oc", data=["key"])
    clusters.edit(SECRET, change_data(key=HIDDEN), "oc", data=["key"])
    assert drift_by_object(await clusters.report(PlanScope(kinds=("Secret",)))) == [
        ("changed", "Secret", "/data/key oc")
    ]
    assert drift_by_object(await clusters.report(PlanScope(namespaces=("other",)))) == []
    report = await clusters.report(PlanScope(lowers=(A,)), **{B: "out of reach"})
    assert (len(report.objects), report.unreached) == (2, {})


async def test_drift_that_is_reverted_before_the_second_read_is_omitted() -> None:
    """A running engine may revert it between the dry run and the second read."""
    here = DriftedClusters().edit(CONFIG_MAP, change_data(key="edited"), "oc", data=["key"])
    here.lower[SECRET] = None
    settings, password = DriftedClusters().lower[CONFIG_MAP], DriftedClusters().lower[SECRET]
    put(here.world.lowers[A].config_maps, here.lower[CONFIG_MAP] or {})
    put(here.world.upper.config_maps, here.upper[CONFIG_MAP])
    put(here.world.upper.secrets, here.upper[SECRET])
    put(here.world.lowers[A].upper_pods, here.upper[POD])
    put(here.world.lowers[A].pods, here.lower[POD] or {})
    clusters = MemoryClusters(here.world)
    for kind, one in ((CONFIG_MAP, settings), (SECRET, password)):
        assert one is not None
        one["metadata"]["resourceVersion"] = "77"
        clusters.connections[A].hold(kind, orjson.dumps(one))
    async with clusters.opening() as (opened, away, _waits):
        assert drift_by_object(await examined(opened, away)) == []


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
    clusters = DriftedClusters().edit(
        CONFIG_MAP, change_data(key="edited", more="added"), "kubectl-edit", data=["key", "more"]
    )
    clusters.edit(SECRET, change_data(key=HIDDEN), "oc", data=["key"])
    clusters.lower[POD] = None
    away = "out of reach: no response: check that its apiserver works, its address, and the firewalls in between"
    report = await clusters.report(**{B: away})
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
    assert "--drift excludes --out and --drain" in run_failing("plan", "--drift", "--out", "x.plan")
    assert "--drift excludes --out and --drain" in run_failing("plan", "--drift", "--drain", A)
