"""How many pods would run and where, from what was seen; what if lowers are lost or have more nodes."""

from pathlib import Path
from typing import Any

import orjson
import pytest
from picturekit import TOLERANT, above, below, picture, sight, two_nodes, virtual
from placekit import asking, claim, kind, node, pod, space, using

from tensile.diagnostics.commands import case_of, pictured, simulate
from tensile.diagnostics.podfile import Template, templates
from tensile.diagnostics.simulate import Addition, Case, simulated
from tensile.engine.lower import ClusterAccess
from tensile.errors import TensileError
from tensile.objects import CLAIM, NAMESPACE, NODE, POD, STORAGE_CLASS

Manifest = dict[str, Any]


def template(replicas: int | None = None, **requests: str) -> Template:
    """Make a template of a pod that may go to virtual nodes."""
    return Template(pod(spec=asking(**requests) | TOLERANT), replicas)


def fits(document: Manifest) -> dict[str, int]:
    """Return how many each lower takes."""
    return {one["name"]: one["fits"] for one in document["lowers"]}


def told(*arguments: Any) -> str:
    """Return the text."""
    seen, wanted, case = arguments
    return simulate(seen, [wanted], case, "text")[0]


PAIR = (two_nodes("lower-a"), two_nodes("lower-b"))


def test_nodes_are_counted_not_their_sum() -> None:
    """8 cpu in all, 4 on each node: two pods of 3 fit, one on each."""
    found = simulated(picture([], *PAIR), template(cpu="3"), Case())
    assert fits(found) == {"lower-a": 2, "lower-b": 2}
    assert found["fits"] == 4
    assert found["asked"] is None
    assert found["lowers"][0]["nodes"] == [{"name": "lower-a-1", "fits": 1}, {"name": "lower-a-2", "fits": 1}]
    assert found["lowers"][0]["why"] == "0/2 nodes are available: 2 Insufficient cpu."


def test_fragments_below() -> None:
    """Where no single node is large enough, nothing fits, whatever the sum."""
    found = simulated(picture([], *PAIR), template(cpu="5"), Case())
    assert found["fits"] == 0
    assert found["lowers"][0]["why"] == "0/2 nodes are available: 2 Insufficient cpu."


def test_the_virtual_node_is_a_bound_too() -> None:
    """What is held back above is not given away."""
    small = (NODE, virtual("lower-a", cpu="2"))
    found = simulated(picture([small], *PAIR), template(cpu="1"), Case())
    assert fits(found) == {"lower-a": 2, "lower-b": 8}
    assert found["lowers"][0]["why"] == "its virtual node has no free capacity"
    assert found["lowers"][0]["more"] is False


def test_a_lower_that_the_upper_does_not_send_it_to() -> None:
    """By the pod's own choice, or for want of a toleration."""
    pinned = Template(pod(spec=asking(cpu="1") | TOLERANT | {"nodeSelector": {"clusterID": "lower-b"}}), None)
    found = simulated(picture([], *PAIR), pinned, Case())
    assert fits(found) == {"lower-a": 0, "lower-b": 8}
    assert found["lowers"][0]["why"].startswith("the upper scheduler does not bind it there: node(s) didn't match")
    plain = simulated(picture([], *PAIR), Template(pod(), None), Case())
    assert plain["fits"] == 0


LABELLED = pod(spec=asking(cpu="1"), labels={"virtual-pod": "true"})
WEBHOOK = {"enabled": True, "url": "https://webhook.example:8443"}


@pytest.mark.parametrize("webhook", [{}, {"enabled": True}, WEBHOOK], ids=["off", "without an address", "on"])
def test_a_pod_that_asked_for_a_virtual_node_gets_its_tolerations(webhook: Manifest) -> None:
    """From the webhook or from the engine: no file has them."""
    seen = picture([], *PAIR, webhook=webhook)
    assert fits(simulated(seen, Template(LABELLED, None), Case())) == {"lower-a": 8, "lower-b": 8}


def test_what_a_pod_asks_of_lower_nodes_is_met_where_a_webhook_moves_it() -> None:
    """The engine cannot change a selector: without a webhook such a pod waits for a virtual node that has the label."""
    labelled = [(NODE, node(f"lower-a-{number}", labels={"disk": "ssd"}, cpu="4")) for number in (1, 2)]
    lowers = sight("lower-a", *labelled, (NAMESPACE, space("default"))), PAIR[1]
    asking_for_disk = pod(spec=asking(cpu="1") | {"nodeSelector": {"disk": "ssd"}}, labels={"virtual-pod": "true"})
    found = [
        fits(simulated(picture([], *lowers, webhook=webhook), Template(asking_for_disk, None), Case()))
        for webhook in ({}, WEBHOOK)
    ]
    assert found == [{"lower-a": 0, "lower-b": 0}, {"lower-a": 8, "lower-b": 0}]


def test_as_many_as_are_asked_for() -> None:
    """The file's number, unless another one is given; enough is told by the exit code."""
    enough, short = Case(8), Case(9)
    seen = picture([], *PAIR)
    assert simulated(seen, template(3, cpu="2"), Case())["asked"] == 3
    assert simulate(picture([], *PAIR), [template(cpu="2")], enough, "text")[1]
    text, found = simulate(picture([], *PAIR), [template(3, cpu="2")], short, "text")
    assert not found
    assert text.endswith("8 of 9 pods of default/web fit.")


def test_a_lower_that_is_lost() -> None:
    """It takes none, and its pods take the room of others."""
    web = above(spec=asking(cpu="3") | {"nodeName": "lower-a"})
    lower = two_nodes("lower-a", (POD, below(web, "lower-a-1")))
    found = simulated(picture([(POD, web)], lower, PAIR[1]), template(cpu="3"), Case(lost=frozenset({"lower-a"})))
    assert fits(found) == {"lower-a": 0, "lower-b": 1}
    assert found["lowers"][0]["lost"]
    assert found["moved"] == [
        {"namespace": "default", "name": "web", "lower": "lower-b", "node": "lower-b-1", "why": ""}
    ]


def test_pods_of_a_lost_lower_that_find_no_place() -> None:
    """It is said why, for each lower that is left; large ones are placed first."""
    pods = [
        above(name, asking(cpu=cpu) | {"nodeName": "lower-a"})
        for name, cpu in (("s", "1"), ("l", "4"), ("m", "3"), ("x", "4"))
    ]
    seen = picture([(POD, one) for one in pods] + [(NODE, virtual("lower-b", cpu="40"))], *PAIR)
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


def test_pods_that_may_not_go_elsewhere() -> None:
    """Pinned to the lower that is lost; with no other lower left, nobody is asked."""
    web = above(spec={"nodeName": "lower-a", "nodeSelector": {"clusterID": "lower-a"}})
    one = simulated(picture([(POD, web)], *PAIR), None, Case(lost=frozenset({"lower-a"})))
    assert one["moved"][0]["why"].startswith("lower-b: node(s) didn't match Pod's node affinity/selector")
    both = simulated(picture([(POD, web)], *PAIR), None, Case(lost=frozenset({"lower-a", "lower-b"})))
    assert both["moved"][0]["why"] == "no other lower cluster is left"


def test_pods_that_are_not_moved() -> None:
    """Ended, of another node, or never mirrored."""
    upper = [
        (POD, above("ended", {"nodeName": "lower-a"}, {"phase": "Succeeded"})),
        (POD, above("other", {"nodeName": "lower-b"})),
        (POD, above("system", {"nodeName": "lower-a"}, namespace="kube-system")),
    ]
    assert simulated(picture(upper, *PAIR), None, Case(lost=frozenset({"lower-a"})))["moved"] == []


def test_nodes_that_come() -> None:
    """Empty ones like one that is there; the virtual node grows with them."""
    lower = two_nodes("lower-a", (POD, pod("r", asking(cpu="4"), on="lower-a-1")))
    seen = picture([(NODE, virtual("lower-a", cpu="4"))], lower, PAIR[1])
    case = Case(added=(Addition("lower-a", 2, "lower-a-1"), Addition("lower-a", 1)))
    found = simulated(seen, template(cpu="4"), case)
    assert found["lowers"][0]["nodes"] == [
        {"name": f"lower-a-{name}", "fits": 1} for name in ("1-new-1", "1-new-2", "1-new-3", "2")
    ]
    assert fits(simulated(seen, template(cpu="4"), Case())) == {"lower-a": 1, "lower-b": 2}


def test_a_virtual_node_that_is_too_small_today() -> None:
    """With more nodes behind it, it offers as much more as they do."""
    seen = picture([(NODE, virtual("lower-a", cpu="1"))], *PAIR)
    assert fits(simulated(seen, template(cpu="4"), Case()))["lower-a"] == 0
    assert fits(simulated(seen, template(cpu="4"), Case(added=(Addition("lower-a", 1),))))["lower-a"] == 1


def test_a_new_node_takes_pods_though_its_model_is_cordoned() -> None:
    """It is like the first node that takes pods, or like the one that is named."""
    lower = sight(
        "lower-a", (NODE, node("c", spec={"unschedulable": True})), (NODE, node("o", labels={"kind": "open"}))
    )
    seen = picture([], lower, PAIR[1])
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
def test_what_there_is_not(case: Case, why: str) -> None:
    """It is refused, with what there is."""
    with pytest.raises(TensileError, match=why):
        simulated(picture([], *PAIR), template(), case)


def test_a_lower_without_nodes_has_no_model() -> None:
    """There is nothing that new ones could be like."""
    with pytest.raises(TensileError, match="no node to take as a model; there are: none"):
        simulated(picture([], sight("lower-a"), PAIR[1]), template(), Case(added=(Addition("lower-a", 1),)))


def test_a_lower_out_of_reach() -> None:
    """It takes none, and it is said why."""
    found = picture([], sight("lower-a", trouble="lower-a: no answer"), PAIR[1])
    assert fits(simulated(found, template(cpu="4"), Case())) == {"lower-a": 0, "lower-b": 2}
    assert "lower-a   0      -" in told(found, template(cpu="4"), Case())
    assert "lower-a: no answer" in told(found, template(cpu="4"), Case())


def test_a_claim_that_the_engine_would_make() -> None:
    """The pod's claim exists above only."""
    lowers = [two_nodes(name, (STORAGE_CLASS, kind("fast"))) for name in ("lower-a", "lower-b")]
    upper = [(CLAIM, claim(storageClassName="fast")), (STORAGE_CLASS, kind("fast"))]
    wanted = Template(pod(spec=asking(cpu="4") | TOLERANT | using("data")), None)
    assert simulated(picture(upper, *lowers), wanted, Case())["fits"] == 4


def test_more_than_can_be_placed_one_by_one() -> None:
    """It says so."""
    term = {"topologyKey": "x", "labelSelector": {"matchLabels": {"app": "other"}}}
    spec = {"affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}}
    big = sight("lower-a", (NODE, node("n", pods="3000")))
    wide = virtual("lower-a")
    wide["status"]["allocatable"]["pods"] = "3000"
    seen = picture([(NODE, wide)], big, sight("lower-b"))
    text = told(seen, Template(pod(spec=spec | TOLERANT), None), Case())
    assert "lower-a   1000 or more" in text
    assert text.endswith("1000 or more pods of default/web fit.")


def test_the_text() -> None:
    """To the letter."""
    lower = two_nodes("lower-b")
    lower.unread.append("volumeattachments: forbidden")
    assert told(picture([], two_nodes("lower-a"), lower), template(4, cpu="4"), Case()) == (
        "LOWER     FITS   NODES                      WHY NOT MORE\n"
        "lower-a   2      lower-a-1 1, lower-a-2 1   0/2 nodes are available: 2 Insufficient cpu.\n"
        "lower-b   2      lower-b-1 1, lower-b-2 1   0/2 nodes are available: 2 Insufficient cpu.\n"
        "\n"
        "lower-b: cannot be read: volumeattachments: forbidden\n"
        "All 4 pods of default/web fit."
    )


def test_several_templates_take_their_room_in_turn() -> None:
    """All four nodes have 4 cpu: what the first takes, the second has not; each is a section, or one of the items."""
    seen = picture([], *PAIR)
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


def test_a_pod_that_fits_nowhere_is_not_room_enough() -> None:
    """A file of one Pod does not say how many, so it is how many fit that counts: none is too few."""
    text, enough = simulate(picture([], *PAIR), [template(cpu="400")], Case(), "text")
    assert not enough, text


def test_the_json() -> None:
    """It has a version of its form."""
    text, enough = simulate(picture([], *PAIR), [template(cpu="4")], Case(), "json")
    assert enough
    assert orjson.loads(text)["formatVersion"] == 1


@pytest.mark.parametrize(
    ("text", "addition"), [("lower-a=2", Addition("lower-a", 2)), ("lower-a/n=1", Addition("lower-a", 1, "n"))]
)
def test_additions_as_written(text: str, addition: Addition) -> None:
    """A lower and a number, or a node of it to take as a model."""
    assert case_of(3, ["lower-b"], [text]) == Case(3, frozenset({"lower-b"}), (addition,))


@pytest.mark.parametrize("text", ["lower-a", "lower-a=", "=1", "lower-a=0", "lower-a=-1", "lower-a=many"])
def test_additions_that_say_nothing(text: str) -> None:
    """They are refused with the form."""
    with pytest.raises(TensileError, match="write LOWER=COUNT"):
        case_of(None, [], [text])


def test_a_snapshot_in_place_of_clusters(tmp_path: Path) -> None:
    """What was kept is asked, and no cluster."""
    before = picture([], *PAIR)
    path = tmp_path / "snapshot.json"
    path.write_bytes(before.to_bytes())
    after = pictured(before.topology, ClusterAccess(tmp_path), path)
    assert told(after, template(cpu="3"), Case()) == told(before, template(cpu="3"), Case())


def test_words_of_others_do_nothing_to_a_terminal() -> None:
    """What a cluster answered stands in its line."""
    found = picture([], sight("lower-a", trouble="lower-a: no\x1b[2J\nanswer"), PAIR[1])
    assert "lower-a: no\\u001b[2J\\nanswer" in told(found, template(cpu="4"), Case())


def test_a_lost_lower_that_no_pod_is_on_is_said_to_have_none() -> None:
    """It was asked, though there is nothing to move."""
    lost = Case(lost=frozenset({"lower-a"}))
    assert simulate(picture([], *PAIR), [], lost, "text") == ("No pods run in lower-a.", True)
    assert simulate(picture([], *PAIR), [], Case(), "text") == ("No pods to place.", True)


def test_a_snapshot_may_know_lowers_that_the_topology_has_no_more(tmp_path: Path) -> None:
    """They count for nothing, and one that is new has not been seen."""
    before = picture([], *PAIR, sight("gone"))
    kept = before.to_bytes().replace(b'"name":"lower-b","objects"', b'"name":"gone","objects"', 1)
    path = tmp_path / "snapshot.json"
    path.write_bytes(kept)
    after = pictured(before.topology, ClusterAccess(tmp_path), path)
    assert list(after.lowers) == ["lower-a", "lower-b"]
    assert fits(simulated(after, template(cpu="4"), Case())) == {"lower-a": 2, "lower-b": 0}
    with pytest.raises(TensileError, match="gone: no lower cluster of the topology"):
        simulated(after, None, Case(lost=frozenset({"gone"})))


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        (b'"name":"lower-a-1"', b'"title":"lower-a-1"', "lower-a: nodes[0]: Object missing required field `name`"),
        (b'"containers":', b'"boxes":', "lower-a: pods[0]: Object missing required field `containers`"),
        (b'"containers":', b'"containers":5,"x":', "pods[0]: Expected `array`, got `int`"),
    ],
)
def test_a_snapshot_that_was_edited_is_refused_by_its_place(tmp_path: Path, old: bytes, new: bytes, words: str) -> None:
    """Nothing that every object has may be missing."""
    before = picture([], two_nodes("lower-a", (POD, pod("r", asking(cpu="4"), on="lower-a-1"))), PAIR[1])
    path = tmp_path / "snapshot.json"
    kept = before.to_bytes()
    assert old in kept
    path.write_bytes(kept.replace(old, new, 1))
    with pytest.raises(TensileError) as caught:
        pictured(before.topology, ClusterAccess(tmp_path), path)
    assert str(caught.value).startswith(f"{path}: not a valid snapshot: ")
    assert words in str(caught.value)


def test_pods_of_a_lost_lower_keep_no_others_away() -> None:
    """Neither the pods that are moved nor others, by their anti-affinity: they are gone with their node."""
    terms = [{"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {"app": "web"}}}]
    apart = {"affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}}
    web = above("web", spec=asking(cpu="1") | TOLERANT | {"nodeName": "lower-a"} | apart, labels={"app": "web"})
    found = simulated(picture([(POD, web)], *PAIR), template(cpu="3"), Case(lost=frozenset({"lower-a"})))
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


def test_a_simulated_pod_does_not_take_the_place_of_a_real_one() -> None:
    """The pods of a StatefulSet that runs already have the names that its replicas would get."""
    runs = above("web-0", spec=asking(cpu="2") | TOLERANT | {"nodeName": "lower-a"}, labels={"app": "web"})
    here = sight("lower-a", (NODE, node("n", cpu="4")), (NAMESPACE, space("default")), (POD, below(runs, "n")))
    seen = picture([(NODE, virtual("lower-a", cpu="4")), (POD, runs)], here, sight("lower-b"))
    assert simulated(seen, templates(STATEFUL, "x")[0], Case())["fits"] == 1


@pytest.mark.parametrize("name", ["pool-1", "new-pool-1", "pool-new-1"])
def test_only_added_nodes_enlarge_the_virtual_node(name: str) -> None:
    """Whatever the nodes that exist are called."""
    here = sight("lower-a", (NODE, node(name, cpu="8")), (NAMESPACE, space("default")))
    seen = picture([(NODE, virtual("lower-a", cpu="2"))], here, sight("lower-b"))
    assert fits(simulated(seen, template(cpu="1"), Case()))["lower-a"] == 2
    grown = Case(added=(Addition("lower-a", 1),))
    assert fits(simulated(seen, template(cpu="1"), grown))["lower-a"] == 10


def test_an_added_node_does_not_take_the_place_of_a_real_one() -> None:
    """A real node may have the name that an added one would get; its pods stay on it."""
    nodes = ((NODE, node(name, cpu="2")) for name in ("w", "w-new-1"))
    full = above("full", spec=asking(cpu="2") | TOLERANT | {"nodeName": "lower-a"})
    here = sight("lower-a", *nodes, (NAMESPACE, space("default")), (POD, below(full, "w-new-1")))
    seen = picture([(NODE, virtual("lower-a", cpu="4")), (POD, full)], here, sight("lower-b"))
    found = simulated(seen, template(cpu="1"), Case(added=(Addition("lower-a", 1, "w"),)))
    assert {one["name"]: one["fits"] for one in found["lowers"][0]["nodes"]} == {"w": 2, "w-new-2": 2}


def test_added_nodes_do_not_exceed_the_limit_of_the_topology() -> None:
    """`capacity.limit` bounds what the virtual node advertises, however many nodes there are."""
    lowers = [{"name": "lower-a", "kubeconfig": "a", "capacity": {"limit": {"cpu": "2"}}}]
    here = sight("lower-a", (NODE, node("n", cpu="8")), (NAMESPACE, space("default")))
    seen = picture([(NODE, virtual("lower-a", cpu="2"))], here, lowers=lowers)
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
def test_pods_that_are_not_mirrored_fit_nowhere(before: bytes, after: bytes, why: str) -> None:
    """Each lower says why; as pods that come before others, they take no room."""
    seen, agent = picture([(NAMESPACE, space("shop"))], *PAIR), templates(DAEMONS.replace(before, after), "x")[0]
    found = simulated(seen, agent, Case())
    assert [why in one["why"] for one in found["lowers"]] == [True, True]
    assert (found["fits"] == 0) == bool(why)
    assert simulated(seen, template(cpu="1"), Case(), [agent])["fits"] == (16 if why else 15)
