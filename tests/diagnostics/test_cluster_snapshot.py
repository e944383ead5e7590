"""Tests of which data a snapshot of a cluster keeps and drops, because users pass snapshots on."""

from typing import Any

import msgspec
import orjson
import pytest
from placekit import claim, make_namespace, node, pod, spec_with_claims, volume
from snapshotkit import NOW, cluster_snapshot, fleet_snapshot, make_lower_pod, make_upper_pod, topology, two_nodes

from tensile.diagnostics.cluster_snapshot import KINDS, ClusterSnapshot, parse_snapshot, pruned
from tensile.errors import TensileError
from tensile.names import UPPER_UID
from tensile.objects import CLAIM, NAMESPACE, NODE, POD, VOLUME
from tensile.policy.placement.placement import examine
from tensile.policy.placement.snapshot import pod_of, snapshot_of

SECRET = "hunter2"


def talkative() -> dict[str, Any]:
    """Make a pod with a secret in every field that placement does not need."""
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
        "volumes": [{"name": "s", "secret": {"secretName": SECRET}}, *spec_with_claims("data")["volumes"]],
        "nodeSelector": {"a": "b"},
        "hostAliases": [{"ip": "1.1.1.1", "hostnames": [SECRET]}],
    }
    made = pod(spec=spec, on="n", annotations={"note": SECRET, UPPER_UID: "u"}, managedFields=[{"manager": SECRET}])
    ended = {"name": "main", "state": {"terminated": {"message": SECRET}}, "resources": {"requests": {"cpu": "2"}}}
    condition = {"type": "PodResizePending", "status": "True", "reason": "Deferred", "message": SECRET}
    status = {"phase": "Running", "message": SECRET, "containerStatuses": [ended], "conditions": [condition]}
    return made | {"status": status}


def test_a_snapshot_keeps_no_secret_of_a_pod() -> None:
    """No secret of the pod's spec, status or annotations is kept."""
    assert SECRET not in orjson.dumps(pruned(POD, talkative())).decode()


def test_a_snapshot_keeps_every_field_that_placement_uses() -> None:
    """The kept pod has the same requests, ports, claims and node usage as the whole pod."""
    whole = talkative()
    lean = pruned(POD, whole)
    assert pod_of(lean).requests == pod_of(whole).requests
    assert pod_of(lean).ports == pod_of(whole).ports
    assert pod_of(lean).claims == pod_of(whole).claims == ("data",)
    assert lean["metadata"]["annotations"] == {UPPER_UID: "u"}
    for one in (whole, lean):
        seen = snapshot_of([node("n", cpu="4")], [one])
        assert seen.nodes["n"].used == {"cpu": 2000}


def test_a_snapshot_keeps_the_fields_of_nodes_claims_and_volumes_that_placement_uses() -> None:
    """Addresses, images and managed fields are dropped."""
    made = node("n", labels={"a": "b"}, spec={"unschedulable": True})
    made["status"]["images"] = [{"names": ["x"]}]
    assert pruned(NODE, made)["status"].keys() == {"allocatable", "conditions"}
    assert pruned(NODE, made)["spec"] == {"unschedulable": True}
    bound = claim(volumeName="pv")
    assert pruned(CLAIM, bound)["metadata"]["annotations"] == {"pv.kubernetes.io/bind-completed": "yes"}
    assert pruned(VOLUME, volume())["status"] == {"phase": "Available"}


def test_a_snapshot_without_a_pod_does_not_count_its_requests() -> None:
    """A pod that is already on a node must not reduce the capacity that it is checked against."""
    there = pod(spec={"containers": [{"name": "m", "resources": {"requests": {"cpu": "4"}}}]}, on="n", uid="me")
    found = cluster_snapshot("lower-a", (NODE, node("n")), (POD, there), (NAMESPACE, make_namespace("default")))
    wanted = pod_of(there)
    assert not examine(wanted, found.snapshot()).fits
    assert examine(wanted, found.snapshot("me")).fits


def test_a_snapshot_is_the_same_after_it_is_saved_and_read() -> None:
    """The clusters, their errors, the owner and the lower pods are the same."""
    web = make_upper_pod(spec={"nodeName": "lower-a"})
    before = fleet_snapshot(
        [(POD, web)],
        two_nodes("lower-a", (POD, make_lower_pod(web, "lower-a-1"))),
        cluster_snapshot("lower-b", error="away"),
    )
    after = parse_snapshot(before.to_bytes(), topology(), NOW, "file")
    assert after.to_bytes() == before.to_bytes()
    assert after.lowers["lower-b"].trouble == "away"
    assert after.owner == before.owner
    assert after.projected_pod(web, "lower-a") == before.projected_pod(web, "lower-a")


def test_a_lower_that_is_absent_from_the_snapshot_has_an_error() -> None:
    """The state of a lower of the topology that the snapshot does not contain is not known."""
    found = fleet_snapshot([], two_nodes("lower-a"))
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
def test_an_invalid_snapshot_file_is_refused_with_its_name_and_the_reason(data: bytes, why: str) -> None:
    """The error begins with the name of the file and contains the reason."""
    with pytest.raises(TensileError, match=r"^file: ") as error:
        parse_snapshot(data, topology(), NOW, "file")
    assert why in str(error.value)


def test_a_snapshot_with_unknown_fields_is_refused() -> None:
    """A snapshot of a later release is not read in part."""
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(b'{"name":"a","more":1}', type=ClusterSnapshot)


def test_the_kinds_of_a_snapshot_have_unique_plural_names() -> None:
    """The objects of each kind are stored under the plural name of the kind."""
    assert len({kind.plural for kind in KINDS}) == len(KINDS)
