"""Tests of `tensile simulate`: how many pods would run, and where, also if lowers are lost or get more nodes."""

from pathlib import Path
from typing import Any

import orjson
import pytest
from placekit import claim, make_namespace, make_storage_class, node, pod, spec_requesting, spec_with_claims
from snapshotkit import (
    TOLERANT,
    cluster_snapshot,
    fleet_snapshot,
    make_lower_pod,
    make_upper_pod,
    two_nodes,
    virtual_node,
)

from tensile.diagnostics.commands import case_of, pictured, simulate
from tensile.diagnostics.podfile import Template, templates
from tensile.diagnostics.simulate import Addition, Case, simulated
from tensile.engine.lower import ClusterAccess
from tensile.errors import TensileError
from tensile.objects import CLAIM, NAMESPACE, NODE, POD, STORAGE_CLASS

Manifest = dict[str, Any]


def template(replicas: int | None = None, **requests: str) -> Template:
    """Make a template of a pod that tolerates virtual nodes."""
    return Template(pod(spec=spec_requesting(**requests) | TOLERANT), replicas)


def fits(document: Manifest) -> dict[str, int]:
    """Return how many pods fit in each lower."""
    return {one["name"]: one["fits"] for one in document["lowers"]}


def simulation_text(*arguments: Any) -> str:
    """Return the text."""
    seen, wanted, case = arguments
    return simulate(seen, [wanted], case, "text")[0]


PAIR = (two_nodes("lower-a"), two_nodes("lower-b"))


def test_pods_are_counted_by_node_and_not_by_the_sum_of_a_lower() -> None:
    """A lower has 8 cpu in all, 4 on each node: two pods of 3 fit, one on each."""
    found = simulated(fleet_snapshot([], *PAIR), template(cpu="3"), Case())
    assert fits(found) == {"lower-a": 2, "lower-b": 2}
    assert found["fits"] == 4
    assert found["asked"] is None
    assert found["lowers"][0]["nodes"] == [{"name": "lower-a-1", "fits": 1}, {"name": "lower-a-2", "fits": 1}]
    assert found["lowers"][0]["why"] == "0/2 nodes are available: 2 Insufficient cpu."


def test_a_pod_larger_than_every_single_node_fits_nowhere() -> None:
    """The sum of a lower's capacity does not matter."""
    found = simulated(fleet_snapshot([], *PAIR), template(cpu="5"), Case())
    assert found["fits"] == 0
    assert found["lowers"][0]["why"] == "0/2 nodes are available: 2 Insufficient cpu."


def test_the_allocatable_of_the_virtual_node_limits_the_pods_too() -> None:
    """Capacity of the lower that the virtual node does not advertise is not used."""
    small = (NODE, virtual_node("lower-a", cpu="2"))
    found = simulated(fleet_snapshot([small], *PAIR), template(cpu="1"), Case())
    assert fits(found) == {"lower-a": 2, "lower-b": 8}
    assert found["lowers"][0]["why"] == "its virtual node has no free capacity"
    assert found["lowers"][0]["more"] is False


def test_a_lower_whose_virtual_node_refuses_the_pod_gets_no_pods() -> None:
    """The pod selects another virtual node, or has no toleration."""
    pinned = Template(pod(spec=spec_requesting(cpu="1") | TOLERANT | {"nodeSelector": {"clusterID": "lower-b"}}), None)
    found = simulated(fleet_snapshot([], *PAIR), pinned, Case())
    assert fits(found) == {"lower-a": 0, "lower-b": 8}
    assert found["lowers"][0]["why"].startswith("the upper scheduler does not bind it there: node(s) didn't match")
    plain = simulated(fleet_snapshot([], *PAIR), Template(pod(), None), Case())
    assert plain["fits"] == 0


LABELLED = pod(spec=spec_requesting(cpu="1"), labels={"virtual-pod": "true"})
WEBHOOK = {"enabled": True, "url": "https://webhook.example:8443"}


@pytest.mark.parametrize("webhook", [{}, {"enabled": True}, WEBHOOK], ids=["off", "without an address", "on"])
def test_a_pod_labeled_for_virtual_nodes_gets_the_tolerations(webhook: Manifest) -> None:
    """The webhook or the engine adds the tolerations, so files do not contain them."""
    seen = fleet_snapshot([], *PAIR, webhook=webhook)
    assert fits(simulated(seen, Template(LABELLED, None), Case())) == {"lower-a": 8, "lower-b": 8}


def test_a_selector_of_lower_nodes_is_met_only_if_the_webhook_moves_it() -> None:
    """The engine cannot change a selector: without a webhook the pod waits for a virtual node with the label."""
    labelled = [(NODE, node(f"lower-a-{number}", labels={"disk": "ssd"}, cpu="4")) for number in (1, 2)]
    lowers = cluster_snapshot("lower-a", *labelled, (NAMESPACE, make_namespace("default"))), PAIR[1]
    asking_for_disk = pod(
        spec=spec_requesting(cpu="1") | {"nodeSelector": {"disk": "ssd"}}, labels={"virtual-pod": "true"}
    )
    found = [
        fits(simulated(fleet_snapshot([], *lowers, webhook=webhook), Template(asking_for_disk, None), Case()))
        for webhook in ({}, WEBHOOK)
    ]
    assert found == [{"lower-a": 0, "lower-b": 0}, {"lower-a": 8, "lower-b": 0}]


def test_the_result_depends_on_the_requested_number_of_pods() -> None:
    """The number of the file is used, unless another one is given; the exit code reports whether all fit."""
    enough, short = Case(8), Case(9)
    seen = fleet_snapshot([], *PAIR)
    assert simulated(seen, template(3, cpu="2"), Case())["asked"] == 3
    assert simulate(fleet_snapshot([], *PAIR), [template(cpu="2")], enough, "text")[1]
    text, found = simulate(fleet_snapshot([], *PAIR), [template(3, cpu="2")], short, "text")
    assert not found
    assert text.endswith("8 of 9 pods of default/web fit.")


def test_a_lost_lower_gets_no_pods_and_its_pods_move() -> None:
    """The pods that move use capacity that the template cannot use."""
    web = make_upper_pod(spec=spec_requesting(cpu="3") | {"nodeName": "lower-a"})
    lower = two_nodes("lower-a", (POD, make_lower_pod(web, "lower-a-1")))
    found = simulated(
        fleet_snapshot([(POD, web)], lower, PAIR[1]), template(cpu="3"), Case(lost=frozenset({"lower-a"}))
    )
    assert fits(found) == {"lower-a": 0, "lower-b": 1}
    assert found["lowers"][0]["lost"]
    assert found["moved"] == [
        {"namespace": "default", "name": "web", "lower": "lower-b", "node": "lower-b-1", "why": ""}
    ]


def test_pods_of_a_lost_lower_that_fit_nowhere_are_reported_with_the_reason() -> None:
    """The reason of each remaining lower is reported; large pods are placed first."""
    pods = [
        make_upper_pod(name, spec_requesting(cpu=cpu) | {"nodeName": "lower-a"})
        for name, cpu in (("s", "1"), ("l", "4"), ("m", "3"), ("x", "4"))
    ]
    seen = fleet_snapshot([(POD, one) for one in pods] + [(NODE, virtual_node("lower-b", cpu="40"))], *PAIR)
    found = simulated(seen, None, Case(lost=frozenset({"lower-a"})))
    assert [(one["name"], one["lower"]) for one in found["moved"]] == [
        ("l", "lower-b"),
        ("x", "lower-b"),
        ("m", ""),
        ("s", ""),
    ]
    assert found["moved"][2]["why"] == "lower-b: 0/2 nodes are available: 2 Insufficient cpu."
    assert found["fits"] is None
    text, enough = simulate(seen, [], Case(lost=frozenset({"lower-a"})), "text")
    assert not enough
    assert text.startswith(
        "2 of 4 pods of the lost clusters fit elsewhere.\n  default/m fits nowhere: lower-b: 0/2 nodes"
    )


def test_pods_of_a_lost_lower_that_may_not_move_are_reported_with_the_reason() -> None:
    """The pod selects the lost lower, or no other lower is left."""
    web = make_upper_pod(spec={"nodeName": "lower-a", "nodeSelector": {"clusterID": "lower-a"}})
    one = simulated(fleet_snapshot([(POD, web)], *PAIR), None, Case(lost=frozenset({"lower-a"})))
    assert one["moved"][0]["why"].startswith("lower-b: node(s) didn't match Pod's node affinity/selector")
    both = simulated(fleet_snapshot([(POD, web)], *PAIR), None, Case(lost=frozenset({"lower-a", "lower-b"})))
    assert both["moved"][0]["why"] == "no other lower cluster is left"


def test_ended_foreign_and_unmirrored_pods_do_not_move_from_a_lost_lower() -> None:
    """Pods that have ended, are on another node, or are in an excluded namespace are ignored."""
    upper = [
        (POD, make_upper_pod("ended", {"nodeName": "lower-a"}, {"phase": "Succeeded"})),
        (POD, make_upper_pod("other", {"nodeName": "lower-b"})),
        (POD, make_upper_pod("system", {"nodeName": "lower-a"}, namespace="kube-system")),
    ]
    assert simulated(fleet_snapshot(upper, *PAIR), None, Case(lost=frozenset({"lower-a"})))["moved"] == []


def test_added_nodes_are_empty_and_like_an_existing_node() -> None:
    """The virtual node advertises the added capacity too."""
    lower = two_nodes("lower-a", (POD, pod("r", spec_requesting(cpu="4"), on="lower-a-1")))
    seen = fleet_snapshot([(NODE, virtual_node("lower-a", cpu="4"))], lower, PAIR[1])
    case = Case(added=(Addition("lower-a", 2, "lower-a-1"), Addition("lower-a", 1)))
    found = simulated(seen, template(cpu="4"), case)
    assert found["lowers"][0]["nodes"] == [
        {"name": f"lower-a-{name}", "fits": 1} for name in ("1-new-1", "1-new-2", "1-new-3", "2")
    ]
    assert fits(simulated(seen, template(cpu="4"), Case())) == {"lower-a": 1, "lower-b": 2}


def test_added_nodes_increase_the_allocatable_of_the_virtual_node() -> None:
    """The virtual node grows by the allocatable of the added nodes."""
    seen = fleet_snapshot([(NODE, virtual_node("lower-a", cpu="1"))], *PAIR)
    assert fits(simulated(seen, template(cpu="4"), Case()))["lower-a"] == 0
    assert fits(simulated(seen, template(cpu="4"), Case(added=(Addition("lower-a", 1),))))["lower-a"] == 1


def test_an_added_node_is_schedulable_even_if_its_model_is_cordoned() -> None:
    """The model is the first schedulable node, or the one that is named."""
    lower = cluster_snapshot(
        "lower-a", (NODE, node("c", spec={"unschedulable": True})), (NODE, node("o", labels={"kind": "open"}))
    )
    seen = fleet_snapshot([], lower, PAIR[1])
    first = simulated(seen, template(cpu="4"), Case(added=(Addition("lower-a", 1),)))
    assert [one["name"] for one in first["lowers"][0]["nodes"]] == ["o", "o-new-1"]
    named = simulated(seen, template(cpu="4"), Case(added=(Addition("lower-a", 1, "c"),)))
    assert [one["name"] for one in named["lowers"][0]["nodes"]] == ["c-new-1", "o"]


@pytest.mark.parametrize(
    ("case", "why"),
    [
        (Case(lost=frozenset({"x"})), "x: no lower cluster of the topology; there are: lower-a, lower-b"),
        (Case(added=(Addition("x", 1),)), "x: no lower cluster"),
        (Case(added=(Addition("lower-a", 1, "x"),)), "lower-a: no node x; there are: lower-a-1, lower-a-2"),
    ],
)
def test_an_unknown_lower_or_node_is_refused_with_the_existing_ones(case: Case, why: str) -> None:
    """The error lists the lowers of the topology, or the nodes of the lower."""
    with pytest.raises(TensileError, match=why):
        simulated(fleet_snapshot([], *PAIR), template(), case)


def test_nodes_cannot_be_added_to_a_lower_without_nodes() -> None:
    """An added node needs an existing node as its model."""
    with pytest.raises(TensileError, match="no node to take as a model; there are: none"):
        simulated(
            fleet_snapshot([], cluster_snapshot("lower-a"), PAIR[1]), template(), Case(added=(Addition("lower-a", 1),))
        )


def test_an_unreachable_lower_gets_no_pods() -> None:
    """The text contains the error of the lower."""
    found = fleet_snapshot([], cluster_snapshot("lower-a", error="lower-a: no answer"), PAIR[1])
    assert fits(simulated(found, template(cpu="4"), Case())) == {"lower-a": 0, "lower-b": 2}
    assert "lower-a   0      -" in simulation_text(found, template(cpu="4"), Case())
    assert "lower-a: no answer" in simulation_text(found, template(cpu="4"), Case())


def test_a_claim_that_the_engine_would_mirror_counts_as_existing() -> None:
    """The pod's claim exists in the upper cluster only."""
    lowers = [two_nodes(name, (STORAGE_CLASS, make_storage_class("fast"))) for name in ("lower-a", "lower-b")]
    upper = [(CLAIM, claim(storageClassName="fast")), (STORAGE_CLASS, make_storage_class("fast"))]
    wanted = Template(pod(spec=spec_requesting(cpu="4") | TOLERANT | spec_with_claims("data")), None)
    assert simulated(fleet_snapshot(upper, *lowers), wanted, Case())["fits"] == 4


def test_more_than_1000_pods_of_an_anti_affine_template_are_not_counted() -> None:
    """The text shows "1000 or more", because such pods are placed one by one."""
    term = {"topologyKey": "x", "labelSelector": {"matchLabels": {"app": "other"}}}
    spec = {"affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}}
    big = cluster_snapshot("lower-a", (NODE, node("n", pods="3000")))
    wide = virtual_node("lower-a")
    wide["status"]["allocatable"]["pods"] = "3000"
    seen = fleet_snapshot([(NODE, wide)], big, cluster_snapshot("lower-b"))
    text = simulation_text(seen, Template(pod(spec=spec | TOLERANT), None), Case())
    assert "lower-a   1000 or more" in text
    assert text.endswith("1000 or more pods of default/web fit.")


def test_the_text_of_a_simulation_has_a_table_and_a_summary() -> None:
    """The whole text is compared."""
    lower = two_nodes("lower-b")
    lower.unread.append("volumeattachments: forbidden")
    assert simulation_text(fleet_snapshot([], two_nodes("lower-a"), lower), template(4, cpu="4"), Case()) == (
        "LOWER     FITS   NODES                      WHY NOT MORE\n"
        "lower-a   2      lower-a-1 1, lower-a-2 1   0/2 nodes are available: 2 Insufficient cpu.\n"
        "lower-b   2      lower-b-1 1, lower-b-2 1   0/2 nodes are available: 2 Insufficient cpu.\n"
        "\n"
        "lower-b: cannot be read: volumeattachments: forbidden\n"
        "All 4 pods of default/web fit."
    )


def test_several_templates_use_capacity_in_turn() -> None:
    """Pods of the second template do not fit on the nodes that pods of the first one fill.

    Each template is a section of the text, and an item of the JSON.
    """
    seen = fleet_snapshot([], *PAIR)
    both = [template(3, cpu="4"), template(2, cpu="4")]
    text, enough = simulate(seen, both, Case(), "text")
    assert not enough
    assert [line for line in text.splitlines() if line.endswith("fit.")] == [
        "All 3 pods of default/web fit.",
        "1 of 2 pods of default/web fit.",
    ]
    items = orjson.loads(simulate(seen, both, Case(), "json")[0])["items"]
    assert [one["fits"] for one in items] == [4, 1]
    assert simulate(seen, both[1:], Case(), "text")[1]
    with pytest.raises(TensileError, match="--replicas: the file has 2 pods or templates; give it one"):
        simulate(seen, both, Case(3), "text")


def test_a_pod_that_fits_nowhere_is_a_failure_without_a_requested_number() -> None:
    """A file of one Pod contains no number, so at least one pod must fit."""
    text, enough = simulate(fleet_snapshot([], *PAIR), [template(cpu="400")], Case(), "text")
    assert not enough, text


def test_the_json_of_a_simulation_has_a_format_version() -> None:
    """The version is 1."""
    text, enough = simulate(fleet_snapshot([], *PAIR), [template(cpu="4")], Case(), "json")
    assert enough
    assert orjson.loads(text)["formatVersion"] == 1


@pytest.mark.parametrize(
    ("text", "addition"), [("lower-a=2", Addition("lower-a", 2)), ("lower-a/n=1", Addition("lower-a", 1, "n"))]
)
def test_an_addition_names_a_lower_its_count_and_optionally_a_model_node(text: str, addition: Addition) -> None:
    """LOWER=COUNT adds nodes, and LOWER/NODE=COUNT names the model."""
    assert case_of(3, ["lower-b"], [text]) == Case(3, frozenset({"lower-b"}), (addition,))


@pytest.mark.parametrize("text", ["lower-a", "lower-a=", "=1", "lower-a=0", "lower-a=-1", "lower-a=many"])
def test_an_invalid_addition_is_refused_with_the_valid_form(text: str) -> None:
    """The count must be at least one."""
    with pytest.raises(TensileError, match="write LOWER=COUNT"):
        case_of(None, [], [text])


def test_a_simulation_with_a_snapshot_file_reads_no_cluster(tmp_path: Path) -> None:
    """The result equals that of the clusters from which the snapshot was made."""
    before = fleet_snapshot([], *PAIR)
    path = tmp_path / "snapshot.json"
    path.write_bytes(before.to_bytes())
    after = pictured(before.topology, ClusterAccess(tmp_path), path)
    assert simulation_text(after, template(cpu="3"), Case()) == simulation_text(before, template(cpu="3"), Case())


def test_control_characters_in_the_error_of_a_lower_are_escaped() -> None:
    """The error of a cluster must not create a line or control the terminal."""
    found = fleet_snapshot([], cluster_snapshot("lower-a", error="lower-a: no\x1b[2J\nanswer"), PAIR[1])
    assert "lower-a: no\\u001b[2J\\nanswer" in simulation_text(found, template(cpu="4"), Case())


def test_a_lost_lower_without_pods_is_reported() -> None:
    """The command succeeds, although there is nothing to move."""
    lost = Case(lost=frozenset({"lower-a"}))
    assert simulate(fleet_snapshot([], *PAIR), [], lost, "text") == ("No pods run in lower-a.", True)
    assert simulate(fleet_snapshot([], *PAIR), [], Case(), "text") == ("No pods to place.", True)


def test_lowers_of_a_snapshot_that_the_topology_does_not_have_are_ignored(tmp_path: Path) -> None:
    """A lower that the snapshot does not have gets no pods."""
    before = fleet_snapshot([], *PAIR, cluster_snapshot("gone"))
    kept = before.to_bytes().replace(b'"name":"lower-b","objects"', b'"name":"gone","objects"', 1)
    path = tmp_path / "snapshot.json"
    path.write_bytes(kept)
    after = pictured(before.topology, ClusterAccess(tmp_path), path)
    assert list(after.lowers) == ["lower-a", "lower-b"]
    assert fits(simulated(after, template(cpu="4"), Case())) == {"lower-a": 2, "lower-b": 0}
    with pytest.raises(TensileError, match="gone: no lower cluster of the topology"):
        simulated(after, None, Case(lost=frozenset({"gone"})))


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (b'"name":"lower-a-1"', b'"title":"lower-a-1"', "lower-a: nodes[0]: Object missing required field `name`"),
        (b'"containers":', b'"boxes":', "lower-a: pods[0]: Object missing required field `containers`"),
        (b'"containers":', b'"containers":5,"x":', "pods[0]: Expected `array`, got `int`"),
    ],
)
def test_an_edited_snapshot_is_refused_with_its_position(tmp_path: Path, old: bytes, new: bytes, message: str) -> None:
    """The name of a node, and the containers of a pod are required."""
    before = fleet_snapshot(
        [], two_nodes("lower-a", (POD, pod("r", spec_requesting(cpu="4"), on="lower-a-1"))), PAIR[1]
    )
    path = tmp_path / "snapshot.json"
    kept = before.to_bytes()
    assert old in kept
    path.write_bytes(kept.replace(old, new, 1))
    with pytest.raises(TensileError) as caught:
        pictured(before.topology, ClusterAccess(tmp_path), path)
    assert str(caught.value).startswith(f"{path}: not a valid snapshot: ")
    assert message in str(caught.value)


def test_the_anti_affinity_of_pods_of_a_lost_lower_has_no_effect() -> None:
    """The pods are removed with their node, so they repel neither their replacements nor other pods."""
    terms = [{"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {"app": "web"}}}]
    apart = {"affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}}
    web = make_upper_pod(
        "web", spec=spec_requesting(cpu="1") | TOLERANT | {"nodeName": "lower-a"} | apart, labels={"app": "web"}
    )
    found = simulated(fleet_snapshot([(POD, web)], *PAIR), template(cpu="3"), Case(lost=frozenset({"lower-a"})))
    assert [one["lower"] for one in found["moved"]] == ["lower-b"]
    assert fits(found) == {"lower-a": 0, "lower-b": 2}


STATEFUL = b"""
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: web}
spec:
  replicas: 2
  template:
    metadata: {labels: {app: web}}
    spec:
      tolerations: [{operator: Exists}]
      containers: [{name: a, image: b, resources: {requests: {cpu: 2}}}]
      topologySpreadConstraints:
      - {topologyKey: clusterID, maxSkew: 5, whenUnsatisfiable: DoNotSchedule, labelSelector: {matchLabels: {app: web}}}
"""


def test_a_simulated_pod_does_not_replace_a_real_pod_of_the_same_name() -> None:
    """The existing pods of a StatefulSet have the names that its replicas would get."""
    runs = make_upper_pod(
        "web-0", spec=spec_requesting(cpu="2") | TOLERANT | {"nodeName": "lower-a"}, labels={"app": "web"}
    )
    snapshot = cluster_snapshot(
        "lower-a", (NODE, node("n", cpu="4")), (NAMESPACE, make_namespace("default")), (POD, make_lower_pod(runs, "n"))
    )
    seen = fleet_snapshot(
        [(NODE, virtual_node("lower-a", cpu="4")), (POD, runs)], snapshot, cluster_snapshot("lower-b")
    )
    assert simulated(seen, templates(STATEFUL, "x")[0], Case())["fits"] == 1


@pytest.mark.parametrize("name", ["pool-1", "new-pool-1", "pool-new-1"])
def test_only_added_nodes_increase_the_allocatable_of_the_virtual_node(name: str) -> None:
    """The names of existing nodes do not matter."""
    snapshot = cluster_snapshot("lower-a", (NODE, node(name, cpu="8")), (NAMESPACE, make_namespace("default")))
    seen = fleet_snapshot([(NODE, virtual_node("lower-a", cpu="2"))], snapshot, cluster_snapshot("lower-b"))
    assert fits(simulated(seen, template(cpu="1"), Case()))["lower-a"] == 2
    grown = Case(added=(Addition("lower-a", 1),))
    assert fits(simulated(seen, template(cpu="1"), grown))["lower-a"] == 10


def test_an_added_node_does_not_replace_a_real_node_of_the_same_name() -> None:
    """A real node may have the name that an added one would get; its pods stay on it."""
    nodes = ((NODE, node(name, cpu="2")) for name in ("w", "w-new-1"))
    full = make_upper_pod("full", spec=spec_requesting(cpu="2") | TOLERANT | {"nodeName": "lower-a"})
    snapshot = cluster_snapshot(
        "lower-a", *nodes, (NAMESPACE, make_namespace("default")), (POD, make_lower_pod(full, "w-new-1"))
    )
    seen = fleet_snapshot(
        [(NODE, virtual_node("lower-a", cpu="4")), (POD, full)], snapshot, cluster_snapshot("lower-b")
    )
    found = simulated(seen, template(cpu="1"), Case(added=(Addition("lower-a", 1, "w"),)))
    assert {one["name"]: one["fits"] for one in found["lowers"][0]["nodes"]} == {"w": 2, "w-new-2": 2}


def test_added_nodes_do_not_exceed_the_capacity_limit_of_the_topology() -> None:
    """`capacity.limit` bounds what the virtual node advertises, for any number of nodes."""
    lowers = [{"name": "lower-a", "kubeconfig": "a", "capacity": {"limit": {"cpu": "2"}}}]
    snapshot = cluster_snapshot("lower-a", (NODE, node("n", cpu="8")), (NAMESPACE, make_namespace("default")))
    seen = fleet_snapshot([(NODE, virtual_node("lower-a", cpu="2"))], snapshot, lowers=lowers)
    grown = Case(added=(Addition("lower-a", 1),))
    assert fits(simulated(seen, template(cpu="1"), grown)) == {"lower-a": 2}


DAEMONS = b"""
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: agent, namespace: shop}
spec:
  template:
    metadata: {labels: {app: agent}}
    spec: {tolerations: [{operator: Exists}], containers: [{name: a, image: b, resources: {requests: {cpu: 1}}}]}
"""


@pytest.mark.parametrize(
    ("before", "after", "why"),
    [
        (b"", b"", "pods of DaemonSets are mirrored only with the label virtual-pod"),
        (b"namespace: shop", b"namespace: kube-system", "pods of namespace kube-system are not mirrored"),
        (b"{app: agent}", b'{virtual-pod: "true"}', ""),
    ],
)
def test_pods_that_are_not_mirrored_fit_nowhere_and_use_no_capacity(before: bytes, after: bytes, why: str) -> None:
    """Each lower has the reason; placed before another template, they leave it all the capacity."""
    seen, agent = (
        fleet_snapshot([(NAMESPACE, make_namespace("shop"))], *PAIR),
        templates(DAEMONS.replace(before, after), "x")[0],
    )
    found = simulated(seen, agent, Case())
    assert [why in one["why"] for one in found["lowers"]] == [True, True]
    assert (found["fits"] == 0) == bool(why)
    assert simulated(seen, template(cpu="1"), Case(), [agent])["fits"] == (16 if why else 15)
