"""Tests of the checks of metrics, storage and networks of the clusters."""

from time import process_time
from typing import Any

import orjson
import pytest
import yaml
from doctorkit import LOWER, cluster_facts, contact, facts, findings_at, only_finding, topology
from doctorkit import node as node_of

from tensile.deploy.upper import STORAGE_CLASS
from tensile.diagnostics.doctor.facts import (
    ADVERTISED,
    CLASSES,
    METRICS,
    NODES,
    RANGES,
    WAITING,
    ClusterFacts,
    Finding,
    Level,
    QueryAnswer,
    Stage,
)
from tensile.diagnostics.doctor.lowers import check_metrics, check_storage
from tensile.diagnostics.doctor.networks import check_networks
from tensile.names import PROVISIONER
from tensile.objects import UPPER, Manifest

# Metrics.


@pytest.mark.parametrize(
    ("answer", "level", "message"),
    [
        (QueryAnswer(), Level.OK, "the metrics API answers"),
        (QueryAnswer(error="not found", status=404), Level.WARN, "it has no metrics API"),
        (
            QueryAnswer(error="service unavailable", status=503),
            Level.WARN,
            "the metrics API fails (service unavailable)",
        ),
        (QueryAnswer(error="forbidden", status=403), Level.SKIP, "not checked"),
    ],
)
def test_a_missing_metrics_api_is_at_most_a_warning(answer: QueryAnswer, level: Level, message: str) -> None:
    """A lower cluster can run pods without metrics, so the check never fails."""
    one = cluster_facts(answers={METRICS: answer})
    finding = only_finding(check_metrics(one, facts(None, one)))
    assert (finding.level, message in finding.what) == (level, True)


def test_the_upper_cluster_is_not_checked_for_metrics() -> None:
    """The virtual nodes provide its metrics."""
    known = facts()
    assert not list(check_metrics(known.upper, known))


# Storage.


def storage_class(
    name: str, provisioner: str = PROVISIONER, mode: str = "WaitForFirstConsumer", **meta: Any
) -> Manifest:
    """Create a storage class."""
    return {"metadata": {"name": name, **meta}, "provisioner": provisioner, "volumeBindingMode": mode}


def classes(name: str, *found: Manifest) -> ClusterFacts:
    """Return a cluster with these storage classes."""
    return cluster_facts(name, answers={CLASSES: QueryAnswer(list(found))})


def upper_storage_findings(*found: Manifest) -> list[Finding]:
    """Return the findings on the upper cluster's storage classes."""
    known = facts(classes(UPPER, *found))
    return list(check_storage(known.upper, known))


def test_an_upper_class_of_the_tensile_provisioner_is_ok() -> None:
    """The finding names the class, whose volumes are created in lower clusters."""
    assert (
        only_finding(upper_storage_findings(storage_class("tensile"))).what
        == "these classes create volumes in lower clusters: tensile"
    )


def test_an_upper_class_with_immediate_binding_fails() -> None:
    """The scheduler would never bind a pod with such a claim."""
    failing, _ = upper_storage_findings(storage_class("tensile", mode="Immediate"))
    assert (failing.level, "WaitForFirstConsumer" in failing.advice) == (Level.FAIL, True)


def test_an_upper_without_a_tensile_class_is_skipped_with_a_command() -> None:
    """Not every topology needs claims; the command creates the StorageClass that `tensile manifests` renders."""
    finding = only_finding(upper_storage_findings(storage_class("disks", "example.com/disks")))
    assert (finding.level, finding.advice.endswith("' | kubectl apply -f -")) == (Level.SKIP, True)
    made = orjson.loads(finding.advice.split("'")[1])
    shipped = yaml.safe_load(STORAGE_CLASS)
    assert made.items() <= shipped.items()


def test_pods_that_wait_for_unbound_claims_are_a_warning() -> None:
    """The warning names the first three; pods that wait for other reasons are not counted."""
    message = "0/2 nodes are available: pod has unbound immediate PersistentVolumeClaims. not found"
    pods = [{"name": f"shop/db-{number}", "message": message} for number in range(5)]
    pods.append({"name": "shop/web", "message": "0/2 nodes are available: 2 Insufficient cpu."})
    upper = classes(UPPER, storage_class("tensile"), storage_class("early", mode="Immediate"))
    upper.answers[WAITING] = QueryAnswer(pods)
    finding = only_finding(findings_at(list(check_storage(upper, facts(upper))), Level.WARN))
    assert finding.what.endswith("of shop/db-0, shop/db-1, shop/db-2 and 2 more")
    assert finding.advice.endswith("\nfor virtual nodes, use StorageClass tensile")
    without = classes(UPPER)
    without.answers[WAITING] = QueryAnswer(pods)
    assert only_finding(findings_at(list(check_storage(without, facts(without))), Level.WARN)).advice.endswith(
        "' | kubectl apply -f -"
    )
    upper.answers[WAITING] = QueryAnswer(pods[-1:])
    assert not findings_at(list(check_storage(upper, facts(upper))), Level.WARN)


def test_a_default_class_of_another_provisioner_is_a_warning() -> None:
    """Claims without a class name do not work on virtual nodes in that case."""
    default = {"annotations": {"storageclass.kubernetes.io/is-default-class": "true"}}
    finding = only_finding(
        findings_at(upper_storage_findings(storage_class("disks", "example.com/disks", **default)), Level.WARN)
    )
    assert "the default StorageClass disks is not tensile's" in finding.what
    assert not findings_at(upper_storage_findings(storage_class("tensile", **default)), Level.WARN)


def test_a_default_class_that_every_lower_maps_is_no_warning() -> None:
    """Claims of a class in `storageClasses` are mirrored regardless of its provisioner."""
    default = {"annotations": {"storageclass.kubernetes.io/is-default-class": "true"}}
    upper = classes(UPPER, storage_class("disks", "example.com/disks", **default))
    mapped = topology(lower={"storageClasses": {"disks": "nvme"}})
    assert not findings_at(list(check_storage(upper, facts(upper, topology=mapped))), Level.WARN)


@pytest.mark.parametrize(("born", "is_first"), [("2021", True), ("2020", False), ("2019", False)])
def test_the_newest_of_several_default_classes_counts(born: str, *, is_first: bool) -> None:
    """Kubernetes uses the newest one; among equally old classes the first name counts."""
    default = {"annotations": {"storageclass.kubernetes.io/is-default-class": "true"}}
    old = storage_class("disks", "example.com/disks", creationTimestamp="2020-01-01T00:00:00Z", **default)
    ours = storage_class("tensile", creationTimestamp=f"{born}-01-01T00:00:00Z", **default)
    for found in ((old, ours), (ours, old)):
        assert bool(findings_at(upper_storage_findings(*found), Level.WARN)) is not is_first


def test_classes_that_a_lower_does_not_have_are_warnings() -> None:
    """Mapped classes and unmapped tensile classes have to exist in the lower cluster."""
    lower = classes(LOWER, storage_class("nvme", "example.com/disks"))
    mapped = topology(lower={"storageClasses": {"fast": "nvme", "slow": "tape"}})
    known = facts(classes(UPPER, storage_class("tensile"), storage_class("fast")), lower, topology=mapped)
    warnings = findings_at(list(check_storage(lower, known)), Level.WARN)
    assert [one.what.partition(",")[0] for one in warnings] == [
        "upper StorageClass tensile is tensile here",
        "upper StorageClass slow is tape here",
    ]
    instead = "set storageClasses: {tensile: NAME} for lower-a (there are: nvme)"
    assert warnings[0].advice == f"create it, or {instead}, and create its claims again"


def test_a_lower_with_all_needed_classes_is_ok() -> None:
    """One finding covers all classes; without needed classes there is no finding."""
    lower = classes(LOWER, storage_class("tensile", "example.com/disks"))
    assert only_finding(check_storage(lower, facts(classes(UPPER, storage_class("tensile")), lower))).level == Level.OK
    assert not list(check_storage(lower, facts(classes(UPPER), lower)))


def test_storage_is_not_checked_without_the_claim_controller() -> None:
    """Storage classes are irrelevant if the topology does not mirror claims."""
    known = facts(classes(UPPER), topology=topology(controllers=["Service"]))
    assert not list(check_storage(known.upper, known))


def test_lower_classes_that_may_not_be_listed_are_skipped() -> None:
    """The engine itself needs no right to read storage classes in a lower cluster."""
    lower = cluster_facts(answers={CLASSES: QueryAnswer(error="forbidden", status=403)})
    assert only_finding(check_storage(lower, facts(None, lower))).level == Level.SKIP


# Networks.


def network(name: str, *pods: str, services: str = "192.168.0.0/16", identity: str = "") -> ClusterFacts:
    """Return a cluster with these address ranges for pods and for Services; "" for a node that publishes none."""
    ranges = [{"spec": {"cidrs": [services]}}] if services else []
    nodes = [node_of(f"n{number}", ours=False, podCIDRs=[cidr] if cidr else []) for number, cidr in enumerate(pods)]
    answers = {NODES: QueryAnswer(nodes), RANGES: QueryAnswer(ranges)}
    return cluster_facts(name, answers=answers, identity=identity or f"uid-of-{name}")


def clash(first: ClusterFacts, second: ClusterFacts) -> list[Finding]:
    """Return the findings on the second of two clusters."""
    above = first if first.name == UPPER else network(UPPER, "10.222.0.0/24")
    known = facts(above, *(one for one in (first, second) if one.name != UPPER))
    lowers = [{"name": one, "kubeconfig": one} for one in known.lowers]
    whole = facts(known.upper, *known.lowers.values(), topology=topology(lowers=lowers))
    return [one for one in check_networks(whole) if one.cluster == second.name]


@pytest.mark.parametrize(
    ("first", "second", "message"),
    [
        (network("a", "10.0.0.0/24"), network("b", "10.0.0.0/16"), "addresses of pods here (10.0.0.0/16)"),
        (network(UPPER, services="10.96.0.0/12"), network("b", "10.100.0.0/24"), "those of Services of upper (10.96."),
        (
            network("a", "10.100.0.0/24"),
            network("b", "10.7.0.0/24", services="10.96.0.0/12"),
            "addresses of Services here",
        ),
        (network("a", "fd00::/64"), network("b", "fd00::/80"), "addresses of pods here (fd00::/80)"),
    ],
)
def test_overlapping_address_ranges_of_two_clusters_are_a_warning(
    first: ClusterFacts, second: ClusterFacts, message: str
) -> None:
    """Pods of one cluster cannot reach the other's addresses, which not every topology needs."""
    finding = only_finding(clash(first, second))
    assert (finding.level, message in finding.what) == (Level.WARN, True)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (network("a", "10.0.0.0/24"), network("b", "10.0.1.0/24")),
        (network("a", "10.1.0.0/24", services="10.96.0.0/12"), network("b", "10.2.0.0/24", services="10.96.0.0/12")),
        (network("a", "10.0.0.0/24"), network("b", "fd00::/64")),
        (network("a", "10.0.0.0/24", identity="same"), network("b", "10.0.0.0/24", identity="same")),
    ],
)
def test_address_ranges_without_conflict_are_ok(first: ClusterFacts, second: ClusterFacts) -> None:
    """Service ranges may be equal because they are local, and the identity check reports one cluster with two names."""
    assert only_finding(clash(first, second)).level == Level.OK


def test_many_overlapping_node_ranges_are_one_finding() -> None:
    """Adjacent ranges are merged and a long list is cut, because a cluster may have a thousand nodes."""
    many = [f"10.0.{number}.0/24" for number in range(50)]
    assert len(clash(network("a", *many), network("b", *many))) == 1
    message = only_finding(clash(network("a"), network("b", *many))).what
    assert message.startswith(
        "pods 10.0.0.0/19, pods 10.0.32.0/20, pods 10.0.48.0/23, Services 192.168.0.0/16: no overlap"
    )
    apart = only_finding(clash(network("a"), network("b", *many[::2]))).what
    assert (apart.count("10.0."), " and more" in apart) == (4, True)


def test_large_clusters_are_compared_within_three_seconds() -> None:
    """Twelve clusters have 500 nodes each and one common range; a comparison of all pairs would take too long."""
    ranges = [[f"10.{lower}.{low // 8}.{low % 8 * 32}/28" for low in range(500)] for lower in range(12)]
    ranges[11][77] = ranges[4][77]
    lowers = [network(f"c{number}", *found) for number, found in enumerate(ranges)]
    spec = topology(lowers=[{"name": one.name, "kubeconfig": one.name} for one in lowers])
    begun = process_time()
    warning = only_finding(findings_at(list(check_networks(facts(None, *lowers, topology=spec))), Level.WARN))
    assert process_time() - begun < 3.0
    assert (warning.cluster, "those of pods of c4" in warning.what) == ("c11", True)


def test_each_overlapping_pair_is_reported_at_the_later_cluster() -> None:
    """Of three clusters with the same ranges, the second has one warning and the third has two, in cluster order."""
    spec = topology(lowers=[{"name": name, "kubeconfig": name} for name in "abc"])
    known = facts(None, *(network(name, "10.0.0.0/24", "fd00::/64") for name in "abc"), topology=spec)
    found = findings_at(list(check_networks(known)), Level.WARN)
    assert [one.cluster for one in found] == ["b", "c", "c"]
    assert [" of b " in one.what for one in found] == [False, False, True]


def test_pod_ranges_are_compared_with_pods_and_services_of_all_clusters() -> None:
    """The same range overlaps the Services of the upper cluster and the pods of another lower cluster."""
    upper = network(UPPER, services="10.0.0.0/8")
    found = clash(upper, network("b", "10.1.0.0/24"))
    assert "those of Services of upper (10.0.0.0/8)" in only_finding(found).what
    spec = topology(lowers=[{"name": name, "kubeconfig": name} for name in "ab"])
    both = facts(upper, network("a", "10.1.0.0/16"), network("b", "10.1.0.0/24"), topology=spec)
    messages = [one.what for one in check_networks(both) if one.cluster == "b"]
    assert ["of upper" in messages[0], "of a " in messages[1], len(messages)] == [True, True, 2]


def test_pod_ranges_of_virtual_nodes_are_ignored() -> None:
    """A podCIDR that a virtual node was assigned is not used."""
    virtual = node_of("lower-a", podCIDR="10.0.0.0/24")
    upper = network(UPPER)
    upper.answers[NODES] = QueryAnswer([virtual])
    assert only_finding(clash(upper, network("b", "10.0.0.0/24"))).level == Level.OK


@pytest.mark.parametrize(
    ("second", "message"),
    [
        (network("b", "", services=""), "not checked: the addresses of pods and Services, which"),
        (network("b", services=""), "not checked: the addresses of pods and Services, which"),
        (
            network("b", "10.2.0.0/24", services=""),
            "pods 10.2.0.0/24: no overlap with other clusters; not checked: the",
        ),
        (
            network("b", ""),
            "Services 192.168.0.0/16: no overlap with other clusters; not checked: the addresses of pods,",
        ),
        (network("b", "10.2.0.0/24", ""), "not checked: the addresses of pods, which"),
    ],
)
def test_clusters_that_do_not_publish_all_ranges_are_skipped_with_advice(second: ClusterFacts, message: str) -> None:
    """Some network plugins do not publish them, so the finding names the unknown ranges and how to compare them."""
    whole = facts(network(UPPER, "10.1.0.0/24"), second)
    finding = only_finding(one for one in check_networks(whole) if one.cluster == "b")
    assert (finding.level, message in finding.what) == (Level.SKIP, True), finding
    assert finding.advice.startswith("compare them by hand with those of the other clusters: of ")
    assert ("pools" in finding.advice) == ("of pods" in message)
    assert ("servicecidrs" in finding.advice) == ("Services, which" in finding.what)


def test_clusters_that_publish_only_service_ranges_are_not_compared() -> None:
    """Service ranges of two clusters may be equal, so nothing is known without pod ranges."""
    same, other = network("b", ""), network("b", "", services="10.99.0.0/16")
    first, second = (only_finding(clash(network(UPPER, ""), one)) for one in (same, other))
    assert (first.level, "not compared" in first.what) == (Level.SKIP, True)
    assert second.level == Level.SKIP


def test_an_ok_finding_is_limited_to_the_published_ranges() -> None:
    """A cluster that publishes all its ranges is compared only with those that other clusters publish."""
    first, second = network(UPPER, "10.1.0.0/24"), network("b", "")
    upper = only_finding(one for one in check_networks(facts(first, second)) if one.cluster == UPPER)
    assert (upper.level, upper.what.endswith("no overlap with the ranges that other clusters publish")) == (
        Level.OK,
        True,
    )
    alone = only_finding(
        one for one in check_networks(facts(first, network("b", "", services=""))) if one.cluster == UPPER
    )
    assert (alone.level, "not compared" in alone.what) == (Level.SKIP, True)


def test_an_overlap_and_unknown_ranges_are_separate_findings() -> None:
    """The warning about the overlap does not replace the skipped finding."""
    warning, skipped = clash(network("a", "10.0.0.0/24"), network("b", "10.0.0.0/16", services=""))
    assert (warning.level, skipped.level) == (Level.WARN, Level.SKIP)
    assert "the addresses of Services, which" in skipped.what


def test_an_upper_with_only_virtual_nodes_has_no_unknown_pod_ranges() -> None:
    """If its nodes cannot be listed, it is skipped; virtual nodes in a lower cluster are ignored too."""
    virtual = node_of("lower-a")
    ranges = QueryAnswer([{"spec": {"cidrs": ["192.168.0.0/16"]}}])
    below = network("b", "10.0.0.0/24")
    below.answers[NODES].value.append(virtual)
    for nodes, level in ((QueryAnswer([virtual]), Level.OK), (QueryAnswer(error="forbidden", status=403), Level.SKIP)):
        upper = cluster_facts(UPPER, answers={NODES: nodes, RANGES: ranges})
        found = {one.cluster: one.level for one in check_networks(facts(upper, below))}
        assert found == {UPPER: level, "b": Level.OK}


def test_an_advertised_address_without_a_matching_certificate_is_a_warning() -> None:
    """Clients in lower clusters refuse the upper apiserver if its certificate does not name the advertised host."""
    for stage, warns in ((Stage.DONE, False), (Stage.TLS, True)):
        upper = cluster_facts(UPPER, answers={ADVERTISED: QueryAnswer(contact(stage, "Hostname mismatch"))})
        found = findings_at(list(check_networks(facts(upper))), Level.WARN)
        assert bool(found) == warns
        assert not warns or "--apiserver-cert-extra-sans" in only_finding(found).advice


# The webhook.
