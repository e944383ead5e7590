"""Tests of the number of volumes that a driver attaches to a node, and of disks and claims that cannot be shared."""

from typing import Any

import pytest
from placekit import (
    checks,
    claim,
    examine_placement,
    make_storage,
    make_storage_class,
    node,
    pod,
    reasons,
    spec_with_claims,
    volume,
)

from tensile.policy.placement.snapshot import Storage
from tensile.policy.placement.volume_checks import CLAIM_TAKEN, DISK_TAKEN, TOO_MANY

DRIVER = "csi.example.com"


def csi(name: str) -> dict[str, Any]:
    """Create a volume that CSI attaches."""
    return volume(name, csi={"driver": DRIVER, "volumeHandle": f"h-{name}"})


def shelf(limit: int | None = 2, attached: tuple[str, ...] = (), **more: Any) -> Storage:
    """Return storage with three bound claims, and a node "a" with a limit of attached volumes."""
    driver: dict[str, Any] = {"name": DRIVER} | ({"allocatable": {"count": limit}} if limit is not None else {})
    names = ("one", "two", "three")
    lists = {
        "claims": [claim(name, volumeName=name) for name in names],
        "volumes": [csi(name) for name in names],
        "csi_nodes": [{"metadata": {"name": "a"}, "spec": {"drivers": [driver]}}],
        "attachments": [
            {"spec": {"attacher": DRIVER, "nodeName": "a", "source": {"persistentVolumeName": name}}}
            for name in attached
        ],
    }
    return make_storage(**lists | more)


def test_a_node_at_its_attach_limit_does_not_fit() -> None:
    """Nodes without a published limit have none."""
    there = [pod("r", spec_with_claims("one", "two"), on="a")]
    found = examine_placement(pod(spec=spec_with_claims("three")), [node("a"), node("b")], there, storage=shelf())
    assert found.fitting == ("b",)
    assert reasons(found) == {"a": (TOO_MANY,)}
    assert checks(found) == {"a": "attach limits"}
    assert examine_placement(pod(spec=spec_with_claims("three")), [node("a")], there, storage=shelf(3)).fits
    assert examine_placement(pod(spec=spec_with_claims("three")), [node("a")], there, storage=shelf(None)).fits


def test_all_volumes_of_a_pod_count_towards_the_attach_limit() -> None:
    """Three volumes do not fit with a limit of two."""
    assert examine_placement(pod(spec=spec_with_claims("one", "two")), [node("a")], storage=shelf()).fits
    assert not examine_placement(pod(spec=spec_with_claims("one", "two", "three")), [node("a")], storage=shelf()).fits


def test_a_volume_of_two_pods_on_a_node_counts_once() -> None:
    """The pods share its attachment."""
    there = [pod("r", spec_with_claims("one", "two"), on="a"), pod("s", spec_with_claims("one"), on="a")]
    assert examine_placement(pod(spec=spec_with_claims("two")), [node("a")], there, storage=shelf()).fits


def test_attachments_without_a_pod_count() -> None:
    """They are not detached yet; an attachment whose volume a pod uses counts once."""
    assert not examine_placement(
        pod(spec=spec_with_claims("three")), [node("a")], storage=shelf(attached=("one", "two"))
    ).fits
    there = [pod("r", spec_with_claims("one"), on="a")]
    assert examine_placement(
        pod(spec=spec_with_claims("three")), [node("a")], there, storage=shelf(attached=("one",))
    ).fits


def test_volumes_that_are_not_attached_do_not_count() -> None:
    """These are local volumes, missing claims, and attachments of missing volumes."""
    local = {"volumes": [volume("one"), csi("two"), csi("three")]}
    there = [pod("r", spec_with_claims("one", "gone"), on="a"), pod("s", spec_with_claims("two"), on="a")]
    assert examine_placement(pod(spec=spec_with_claims("three")), [node("a")], there, storage=shelf(**local)).fits
    assert examine_placement(
        pod(spec=spec_with_claims("three")), [node("a")], storage=shelf(1, attached=("gone",))
    ).fits


def test_volumes_to_be_created_count_for_their_provisioner() -> None:
    """The driver that creates them will attach them."""
    made = {"claims": [claim("one", storageClassName="later"), claim("two", storageClassName="later")]}
    storage = shelf(1, classes=[make_storage_class(provisioner=DRIVER)], **made)
    assert examine_placement(pod(spec=spec_with_claims("one")), [node("a")], storage=storage).fits
    assert not examine_placement(pod(spec=spec_with_claims("one", "two")), [node("a")], storage=storage).fits


def test_the_limit_of_one_driver_does_not_apply_to_another() -> None:
    """A driver without a published limit has none."""
    storage = shelf(
        0,
        classes=[make_storage_class(provisioner="other.example.com")],
        claims=[claim("one", storageClassName="later")],
    )
    assert examine_placement(pod(spec=spec_with_claims("one")), [node("a")], storage=storage).fits


def test_a_read_write_once_pod_claim_in_use_excludes_all_nodes() -> None:
    """A claim of the same name in another namespace does not matter."""
    alone = claim("one", volumeName="one", accessModes=["ReadWriteOncePod"])
    storage = make_storage(claims=[alone], volumes=[csi("one")])
    nodes = [node("a"), node("b")]
    found = examine_placement(
        pod(spec=spec_with_claims("one")), nodes, [pod("r", spec_with_claims("one"), on="a")], storage=storage
    )
    assert reasons(found) == {"a": (CLAIM_TAKEN,), "b": (CLAIM_TAKEN,)}
    assert examine_placement(pod(spec=spec_with_claims("one")), nodes, storage=storage).fits
    elsewhere = pod("r", spec_with_claims("one"), on="a", namespace="side")
    assert examine_placement(pod(spec=spec_with_claims("one")), nodes, [elsewhere], storage=storage).fits


def disk(kind_of_disk: str, **source: Any) -> dict[str, Any]:
    """Return the spec of a pod with a disk."""
    return {"volumes": [{"name": "d", kind_of_disk: source}]}


@pytest.mark.parametrize(
    ("there", "wanted", "fits"),
    [
        (disk("iscsi", iqn="1"), disk("iscsi", iqn="1"), False),
        (disk("iscsi", iqn="1"), disk("iscsi", iqn="2"), True),
        (disk("iscsi", iqn="1", readOnly=True), disk("iscsi", iqn="1", readOnly=True), True),
        (disk("iscsi", iqn="1", readOnly=True), disk("iscsi", iqn="1"), False),
        (disk("gcePersistentDisk", pdName="1"), disk("gcePersistentDisk", pdName="1"), False),
        (
            disk("gcePersistentDisk", pdName="1", readOnly=True),
            disk("gcePersistentDisk", pdName="1", readOnly=True),
            True,
        ),
        (disk("awsElasticBlockStore", volumeID="1"), disk("awsElasticBlockStore", volumeID="1", readOnly=True), False),
        (disk("awsElasticBlockStore", volumeID="1"), disk("awsElasticBlockStore", volumeID="2"), True),
        (disk("rbd", monitors=["m", "n"], image="i"), disk("rbd", monitors=["n"], image="i", pool="rbd"), False),
        (disk("rbd", monitors=["m"], image="i"), disk("rbd", monitors=["n"], image="i"), True),
        (disk("rbd", monitors=["m"], image="i"), disk("rbd", monitors=["m"], image="j"), True),
        (
            disk("rbd", monitors=["m"], image="i", readOnly=True),
            disk("rbd", monitors=["m"], image="i", readOnly=True),
            True,
        ),
        (disk("iscsi", iqn="1"), disk("awsElasticBlockStore", volumeID="1"), True),
        (disk("iscsi", iqn="1"), {}, True),
    ],
)
def test_a_disk_with_a_writer_is_not_shared_on_a_node(
    there: dict[str, Any], wanted: dict[str, Any], *, fits: bool
) -> None:
    """Disk types with read-only sharing allow several read-only pods."""
    found = examine_placement(pod(spec=wanted), [node("a")], [pod("r", there, on="a")])
    assert found.fits == fits
    assert reasons(found) == ({} if fits else {"a": (DISK_TAKEN,)})


def test_a_disk_on_another_node_is_no_conflict() -> None:
    """The scheduler compares only pods of the same node."""
    there = [pod("r", disk("iscsi", iqn="1"), on="a")]
    assert examine_placement(pod(spec=disk("iscsi", iqn="1")), [node("a"), node("b")], there).fitting == ("b",)
