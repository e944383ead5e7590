"""What a drain of a lower cluster would come to, before anybody asks for it."""

import pytest
from deschedulingkit import ON, A, B, crowd, ground, owned_by, seeker, stranger
from worldkit import put, twin

from tensile.objects import Manifest
from tensile.policy.descheduler.plan import Eviction, as_document, as_text, evictions
from tensile.reconcile.world import World

DAEMON = [{**owned_by("agent")[0], "kind": "DaemonSet"}]


def running(*pods: Manifest, cpus: tuple[tuple[str, ...], ...] = (("8",), ("4", "2"))) -> World:
    """Make a world in which pods run in lower-a."""
    here = ground(cpus=cpus)
    for pod in pods:
        put(here.lowers[A].upper_pods, {**pod, "status": {"phase": "Running"}})
    return here


def found(here: World) -> dict[str, Eviction]:
    """Return what is said, by the pods' names."""
    return {one.name: one for one in evictions(here, A)}


def test_each_pod_is_sent_where_there_is_room_for_it() -> None:
    """The one before takes its room; what is over would stay Pending, and it is said why."""
    told = found(running(seeker("one", cpu="3"), seeker("two", cpu="2"), seeker("three", cpu="2")))
    assert told["one"] == Eviction("default", "one", leaves=True, target=B, node="lower-b-n1")
    assert told["three"] == Eviction("default", "three", leaves=True, target=B, node="lower-b-n2")
    assert (told["two"].leaves, told["two"].target, told["two"].is_lost) == (True, "", True)
    assert "it would stay Pending: lower-b: " in told["two"].why
    assert "Insufficient cpu" in told["two"].why


def test_room_that_strangers_take_is_not_there() -> None:
    """Nobody knows of them above."""
    here = running(seeker("one", cpu="3"))
    crowd(here, B, stranger("theirs", "lower-b-n1", "2"))
    assert found(here)["one"].target == ""


def test_those_that_stay_are_those_that_a_drain_leaves() -> None:
    """With the same words."""
    told = found(running(seeker("bare", cpu="5", ownerReferences=[]), seeker("agent", ownerReferences=DAEMON)))
    assert [one.leaves for one in told.values()] == [False, False]
    assert "it fits in no other lower cluster: lower-b: " in told["bare"].why
    assert "DaemonSet" in told["agent"].why


def test_a_pod_without_a_controller_leaves_where_there_is_room() -> None:
    """Those that leave in any case come first; one with claims stays, since nobody would make it Pending either."""
    volumes = [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]
    bare = seeker("bare", cpu="4", ownerReferences=[])
    told = found(
        running(bare, seeker("later", cpu="2"), seeker("stored", ownerReferences=[], spec={"volumes": volumes}))
    )
    assert list(told) == ["bare", "later", "stored"]
    assert (told["bare"].leaves, told["later"].node) == (False, "lower-b-n1")
    assert found(running(bare))["bare"] == Eviction("default", "bare", leaves=True, target=B, node="lower-b-n1")
    assert (told["stored"].leaves, told["stored"].why.partition(":")[0]) == (False, "not moved")


def test_a_pod_without_a_controller_stays_unless_the_topology_has_it_recreated() -> None:
    """There may be room for it: nobody would create it again, and it takes no room from others."""
    here = ground(cpus=(("8",), ("4",)), more="")
    for pod in (seeker("bare", ownerReferences=[]), seeker("owned")):
        put(here.lowers[A].upper_pods, {**pod, "status": {"phase": "Running"}})
    told = found(here)
    why = (
        "not moved: it has no controller; with descheduler.recreateBarePods it moves if another lower cluster has room"
    )
    assert told["bare"] == Eviction("default", "bare", leaves=False, why=why)
    assert told["owned"].target == B


def test_what_has_ended_leaves_for_nowhere() -> None:
    """Nobody makes it again."""
    here = running()
    put(here.lowers[A].upper_pods, {**seeker("done", ownerReferences=[]), "status": {"phase": "Succeeded"}})
    assert found(here)["done"] == Eviction("default", "done", leaves=True)
    assert not found(here)["done"].is_lost


def test_a_pod_with_claims_leaves_and_finds_no_place() -> None:
    """Its volume is where it was."""
    volumes = [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]
    told = found(running(seeker(spec={"volumes": volumes})))["web"]
    assert (told.leaves, told.is_lost, told.why) == (True, True, "its volumes are in lower-a: it would stay Pending")


def test_a_lower_that_is_not_there_is_no_lower() -> None:
    """The caller names one of the topology."""
    with pytest.raises(KeyError):
        evictions(running(), "lower-x")


def test_the_table_says_it_in_a_line_for_each() -> None:
    """And counts at the end."""
    told = evictions(running(seeker("one", cpu="3"), seeker("bare", cpu="5", ownerReferences=[])), A)
    head, bare, one, empty, last = as_text(A, told).splitlines()
    assert head.split("   ")[0].strip() == "POD"
    assert bare.split()[:3] == ["default/bare", "stays", "-"]
    assert one.split() == ["default/one", B, "lower-b-n1"]
    assert (empty, last) == ("", "Drain of lower-a: 1 to evict, 0 of them fit in no other lower cluster, 1 to stay.")
    assert as_text(A, []) == "Drain of lower-a: 0 to evict, 0 of them fit in no other lower cluster, 0 to stay."


def test_programs_get_all_of_it() -> None:
    """Every field of each pod."""
    told = as_document(A, evictions(running(seeker("one", cpu="3")), A))
    assert told["lower"] == A
    (pod,) = told["pods"]
    assert pod.pop("others") == pod.pop("full") == ()
    assert pod == {
        "namespace": "default",
        "name": "one",
        "leaves": True,
        "target": B,
        "node": "lower-b-n1",
        "why": "",
    }


def elsewhere(*pods: Manifest, cpus: tuple[tuple[str, ...], ...], more: str = ON) -> World:
    """Make a world of three lowers in which pods run in the first."""
    here = ground(*(f"name: lower-{letter}" for letter in "abc"), cpus=cpus, more=more)
    for pod in pods:
        put(here.lowers[A].upper_pods, {**pod, "status": {"phase": "Running"}})
    return here


def test_where_several_have_room_all_are_named() -> None:
    """Which of them it is, is the upper scheduler's choice."""
    here = elsewhere(seeker("one"), cpus=(("8",), ("4",), ("4",)))
    assert (found(here)["one"].target, found(here)["one"].others) == (B, ("lower-c",))
    assert as_text(A, evictions(here, A)).splitlines()[1].split()[1:4] == [B, "or", "lower-c"]


def test_what_another_pod_is_counted_on_to_take_may_be_had_by_either() -> None:
    """Each is told of both, and room is counted for each of them once."""
    told = found(elsewhere(seeker("one"), seeker("two"), cpus=(("8",), ("4",), ("4",))))
    assert (told["one"].target, told["one"].others) == (B, ("lower-c",))
    assert (told["two"].target, told["two"].others) == ("lower-c", (B,))


def test_a_node_whose_room_is_in_fragments_is_told_as_one_to_wait_in() -> None:
    """The upper scheduler sees the sum, and may take it for room."""
    cpus = (("8",), ("4",), ("2", "2"))
    told = found(elsewhere(seeker("one"), cpus=cpus))["one"]
    assert (told.target, told.others, told.full) == (B, (), ("lower-c",))
    assert (
        as_text(A, [told])
        .splitlines()[1]
        .endswith("the upper scheduler may bind it to lower-c, which has no free capacity")
    )
    asking = elsewhere(seeker("one"), cpus=cpus, more=ON + "extender: {enabled: true}\n")
    assert found(asking)["one"].full == (), "it asks the extender, which knows better"


def test_what_is_told_of_a_pod_stays_in_its_line() -> None:
    """Why it stays may be in words of others."""
    text = as_text(A, [Eviction("default", "web", leaves=False, why="held\x1b[2J\nback")])
    assert text.splitlines()[1].endswith("held\\u001b[2J\\nback")


def test_closed_clusters_are_domains_all_the_same() -> None:
    """The upper scheduler counts their pods in a spread, so with one pod in each nothing else takes a second one."""
    spread = {"topologyKey": "clusterID", "maxSkew": 1, "whenUnsatisfiable": "DoNotSchedule"}
    spec = {"topologySpreadConstraints": [{**spread, "labelSelector": {"matchLabels": {"app": "web"}}}]}
    lowers = (f"name: {A}, maintenance: drain", f"name: {B}", "name: lower-c")
    here = ground(*lowers, cpus=(("8",), ("8",), ("8",)))
    for number, lower in enumerate(here.lowers.values()):
        meta = {"labels": {"app": "web"}, "ownerReferences": owned_by("web")}
        pod = seeker(f"web-{number}", node=lower.node, cpu="1", spec=spec, **meta)
        put(lower.upper_pods, pod)
        put(lower.pods, twin(pod, {"phase": "Running"}, node=lower.node))
    (row,) = evictions(here, A)
    assert (row.leaves, row.target) == (True, "")
    assert "topology spread" in row.why
