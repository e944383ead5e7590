"""What is kept of a cluster that was seen, and what is not: a snapshot is handed around."""

from typing import Any

import msgspec
import orjson
import pytest
from picturekit import NOW, above, below, picture, sight, topology, two_nodes
from placekit import claim, node, pod, space, using, volume

from tensile.diagnostics.cluster_snapshot import KINDS, ClusterSnapshot, kept, picture_of
from tensile.errors import TensileError
from tensile.names import UPPER_UID
from tensile.objects import CLAIM, NAMESPACE, NODE, POD, VOLUME
from tensile.policy.placement.placement import examine
from tensile.policy.placement.snapshot import pod_of, snapshot_of

SECRET = "hunter2"


def talkative() -> dict[str, Any]:
    """Make a pod that holds a secret wherever a pod can hold one that placement does not look at."""
    container = {
        "name": "main",
        "image": f"registry/{SECRET}",
        "args": [SECRET],
        "command": [SECRET],
        "env": [{"name": "PASSWORD", "value": SECRET}],
        "livenessProbe": {"exec": {"command": [SECRET]}},
        "resources": {"requests": {"cpu": "1"}},
        "ports": [{"hostPort": 80}],
    }
    spec = {
        "containers": [container],
        "initContainers": [container | {"name": "init"}],
        "volumes": [{"name": "s", "secret": {"secretName": SECRET}}, *using("data")["volumes"]],
        "nodeSelector": {"a": "b"},
        "hostAliases": [{"ip": "1.1.1.1", "hostnames": [SECRET]}],
    }
    made = pod(spec=spec, on="n", annotations={"note": SECRET, UPPER_UID: "u"}, managedFields=[{"manager": SECRET}])
    ended = {"name": "main", "state": {"terminated": {"message": SECRET}}, "resources": {"requests": {"cpu": "2"}}}
    told = {"type": "PodResizePending", "status": "True", "reason": "Deferred", "message": SECRET}
    status = {"phase": "Running", "message": SECRET, "containerStatuses": [ended], "conditions": [told]}
    return made | {"status": status}


def test_nothing_that_a_pod_holds_in_confidence_is_kept() -> None:
    """Neither in its spec nor in its status, nor what somebody wrote on it."""
    assert SECRET not in orjson.dumps(kept(POD, talkative())).decode()


def test_everything_that_placement_looks_at_is_kept() -> None:
    """What was seen says the same of a pod as the cluster itself would."""
    whole = talkative()
    lean = kept(POD, whole)
    assert pod_of(lean).requests == pod_of(whole).requests
    assert pod_of(lean).ports == pod_of(whole).ports
    assert pod_of(lean).claims == pod_of(whole).claims == ("data",)
    assert lean["metadata"]["annotations"] == {UPPER_UID: "u"}
    for one in (whole, lean):
        seen = snapshot_of([node("n", cpu="4")], [one])
        assert seen.nodes["n"].used == {"cpu": 2000}


def test_a_node_and_a_volume_as_kept() -> None:
    """What they offer and where they are; no addresses, images or managers of fields."""
    made = node("n", labels={"a": "b"}, spec={"unschedulable": True})
    made["status"]["images"] = [{"names": ["x"]}]
    assert kept(NODE, made)["status"].keys() == {"allocatable", "conditions"}
    assert kept(NODE, made)["spec"] == {"unschedulable": True}
    bound = claim(volumeName="pv")
    assert kept(CLAIM, bound)["metadata"]["annotations"] == {"pv.kubernetes.io/bind-completed": "yes"}
    assert kept(VOLUME, volume())["status"] == {"phase": "Available"}


def test_a_sight_asked_without_a_pod() -> None:
    """Where it is judged why a pod is where it is, it is not in its own way."""
    there = pod(spec={"containers": [{"name": "m", "resources": {"requests": {"cpu": "4"}}}]}, on="n", uid="me")
    found = sight("lower-a", (NODE, node("n")), (POD, there), (NAMESPACE, space("default")))
    wanted = pod_of(there)
    assert not examine(wanted, found.snapshot()).fits
    assert examine(wanted, found.snapshot("me")).fits


def test_a_picture_comes_back_from_a_file() -> None:
    """It says the same as before."""
    web = above(spec={"nodeName": "lower-a"})
    before = picture(
        [(POD, web)], two_nodes("lower-a", (POD, below(web, "lower-a-1"))), sight("lower-b", trouble="away")
    )
    after = picture_of(before.to_bytes(), topology(), NOW, "file")
    assert after.to_bytes() == before.to_bytes()
    assert after.lowers["lower-b"].trouble == "away"
    assert after.owner == before.owner
    assert after.below(web, "lower-a") == before.below(web, "lower-a")


def test_a_lower_of_the_topology_that_was_not_seen() -> None:
    """Nothing is known of it, which is said; one that left the topology is passed over by nobody's decision."""
    found = picture([], two_nodes("lower-a"))
    assert found.lowers["lower-b"].trouble == "the snapshot does not have this cluster"


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "not a snapshot"),
        (b"[]", "not a snapshot"),
        (b'{"formatVersion":1}', "not a snapshot"),
        (
            orjson.dumps(
                {"formatVersion": 2, "topology": "demo", "upperUID": "u", "upper": {"name": ""}, "lowers": []}
            ),
            "format 2",
        ),
        (
            orjson.dumps({"formatVersion": 1, "topology": "x", "upperUID": "u", "upper": {"name": ""}, "lowers": []}),
            "a snapshot of topology x, not demo",
        ),
    ],
)
def test_a_file_that_is_no_snapshot(data: bytes, why: str) -> None:
    """It is named, with what is wrong."""
    with pytest.raises(TensileError, match=r"^file: ") as error:
        picture_of(data, topology(), NOW, "file")
    assert why in str(error.value)


def test_unknown_fields_are_refused() -> None:
    """A snapshot of a later release is not read in part."""
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(b'{"name":"a","more":1}', type=ClusterSnapshot)


def test_the_kinds_are_listed_once() -> None:
    """Each is asked for under a name of its own."""
    assert len({kind.plural for kind in KINDS}) == len(KINDS)
