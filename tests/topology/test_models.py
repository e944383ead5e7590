"""What a lower inherits, and from where."""

import pytest
from corpus_form import EMPTY, HEAD, ONE

from tensile.topology import Lower, SecretRef, parse
from tensile.topology.models import PROVIDER_TAINT

TWO = ONE + "- name: b\n  kubeconfig: kubeconfigs/b\n"


def lowers(defaults: str, *entries: str) -> tuple[Lower, ...]:
    """Read a file of lowerDefaults and of lowers, each given in flow style."""
    items = "".join(f"- {entry}\n" for entry in entries)
    return parse(f"{HEAD}lowerDefaults: {defaults}\nlowers:\n{items}").lowers


def lower(defaults: str, fields: str) -> Lower:
    """Read a file of lowerDefaults and one lower with some more fields."""
    return lowers(defaults, f"{{name: a, kubeconfig: k, {fields}}}")[0]


def test_a_lower_without_anything_has_the_defaults() -> None:
    """Nothing that it inherits is None."""
    found = parse(ONE).lowers[0]
    assert found.node.name == "a"
    assert found.node.labels == {"clusterID": "a"}
    assert found.node.taints == (PROVIDER_TAINT,)
    assert found.node.kubelet_port is None
    assert (found.qps, found.burst, found.maintenance) == (500, 1000, "none")
    assert found.controllers == ("PV", "Service", "ServiceAccount")
    assert found.ignore_labels == ("pod-group.scheduling.sigs.k8s.io",)
    assert (found.on_conflict, found.service_accounts.identity) == ("fail", "lower")
    assert (found.capacity.basis, dict(found.capacity.reserve)) == ("free", {})
    assert found.unreachable.evict_after is None


def test_what_a_lower_says_goes_before_lower_defaults() -> None:
    """And lowerDefaults before the built-in default."""
    found = lower("{qps: 5, burst: 6, maintenance: cordon}", "qps: 7")
    assert (found.qps, found.burst, found.maintenance) == (7, 6, "cordon")


def test_a_value_equal_to_the_built_in_default_still_goes_before_lower_defaults() -> None:
    """What is written counts, whatever it is."""
    assert lower("{qps: 5, maintenance: drain}", "qps: 500, maintenance: none").qps == 500
    assert lower("{maintenance: drain}", "maintenance: none").maintenance == "none"


def test_null_goes_before_lower_defaults() -> None:
    """A lower can go back to the kubeconfig's own context."""
    assert lower("{context: eu}", "qps: 1").context == "eu"
    assert lower("{context: eu}", "context: null").context is None


def test_mappings_merge() -> None:
    """At every level: sections, labels, quantities, storage classes."""
    found = lower(
        "{node: {labels: {a: '1', b: '1'}, annotations: {x: y}}, capacity: {reserve: {cpu: '1'},"
        " basis: allocatable}, storageClasses: {fast: ssd}}",
        "node: {labels: {b: '2', c: '2'}}, capacity: {reserve: {memory: 1Gi}}, storageClasses: {slow: hdd}",
    )
    assert found.node.labels == {"clusterID": "a", "a": "1", "b": "2", "c": "2"}
    assert found.node.annotations == {"x": "y"}
    assert found.capacity.reserve == {"cpu": "1", "memory": "1Gi"}
    assert found.capacity.basis == "allocatable"
    assert found.storage_classes == {"fast": "ssd", "slow": "hdd"}


def test_lists_replace() -> None:
    """A lower's list is the whole list, and an empty one is none."""
    defaults = "{node: {taints: [{key: a, effect: NoExecute}]}, controllers: [PV, RBAC]}"
    assert [taint.key for taint in lower(defaults, "qps: 1").node.taints] == ["a"]
    assert lower(defaults, "node: {taints: []}").node.taints == ()
    assert lower(defaults, "controllers: [Service]").controllers == ("Service",)


def test_one_field_of_a_section_leaves_the_others_of_lower_defaults() -> None:
    """A node's name of its own does not lose the taints that all have."""
    found = lower("{node: {taints: []}}", "node: {name: n}")
    assert (found.node.name, found.node.taints) == ("n", ())


def test_cluster_id_is_the_lowers_name_unless_given() -> None:
    """In the lower itself or in lowerDefaults."""
    assert lower("{}", "node: {name: n}").node.labels == {"clusterID": "a"}
    assert lower("{}", "node: {labels: {clusterID: eu}}").node.labels == {"clusterID": "eu"}
    assert lower("{node: {labels: {clusterID: eu}}}", "qps: 1").node.labels["clusterID"] == "eu"


def test_a_node_may_have_the_usual_port_of_another() -> None:
    """That one then gets the next free one."""
    found = lowers("{}", "{name: a, kubeconfig: k, node: {kubeletPort: 10351}}", "{name: b, kubeconfig: k}")
    assert [one.node.kubelet_port for one in found] == [10351, None]


def test_ports_of_nodes_start_at_the_kubelets() -> None:
    """With room for lowers that are added later, as far as there are ports."""
    assert parse(TWO + "kubelet: {port: 20000}\n").kubelet_ports == range(20000, 20100)
    assert parse(TWO + "kubelet: {port: 65530}\n").kubelet_ports == range(65530, 65536)
    many = "".join(f"- {{name: l{number}, kubeconfig: k}}\n" for number in range(150))
    assert len(parse(f"{HEAD}lowers:\n{many}").kubelet_ports) == 150


def test_the_topologys_fields_hold_for_lowers_without_their_own() -> None:
    """controllers, ignoreLabels, onConflict, serviceAccounts: the lower's, lowerDefaults', the topology's."""
    text = (
        HEAD
        + "lowerDefaults: {onConflict: fail, ignoreLabels: [b]}\n"
        + "lowers: [{name: a, kubeconfig: k, ignoreLabels: null, serviceAccounts: {identity: none}}]\n"
        + "controllers: [ServiceAccount, RBAC]\nignoreLabels: [c]\nonConflict: adopt\n"
    )
    found = parse(text).lowers[0]
    assert found.controllers == ("RBAC", "ServiceAccount")
    assert found.ignore_labels == ("c",)
    assert found.on_conflict == "fail"
    assert found.service_accounts.identity == "none"


@pytest.mark.parametrize(("controllers", "identity"), [("[ServiceAccount]", "upper"), ("[PV]", "none"), ("[]", "none")])
def test_identity_is_none_without_the_service_account_controller(controllers: str, identity: str) -> None:
    """Nobody would make the account or the token."""
    found = lower("{}", f"controllers: {controllers}, serviceAccounts: {{identity: upper}}")
    assert found.service_accounts.identity == identity


def test_a_secret_merges_with_that_of_lower_defaults() -> None:
    """One Secret for all, a key for each."""
    first, second = lowers(
        "{kubeconfigSecret: {namespace: n, name: all}}",
        "{name: a, kubeconfigSecret: {key: a}}",
        "{name: b}",
    )
    assert first.kubeconfig_secret == SecretRef.model_construct(namespace="n", name="all", key="a")
    assert second.kubeconfig_secret is not None
    assert second.kubeconfig_secret.key == "kubeconfig"


def test_a_path_of_its_own_stands_against_the_secret_of_lower_defaults() -> None:
    """The two ways never hold together."""
    found = lower("{kubeconfigSecret: {namespace: n, name: s}}", "qps: 1")
    assert (found.kubeconfig, found.kubeconfig_secret) == ("k", None)


def test_lower_defaults_are_checked_without_lowers() -> None:
    """And accepted when right."""
    assert parse(EMPTY + "lowerDefaults: {node: {kubeletPort: 5}}\n").lowers == ()


def test_aliases_are_as_if_written_out() -> None:
    """A section may be shared by an anchor."""
    text = ONE + "  capacity: &c {limit: {cpu: '1'}}\n- {name: b, kubeconfig: k, capacity: *c}\n"
    first, second = parse(text).lowers
    assert first.capacity == second.capacity
    assert second.capacity.limit == {"cpu": "1"}


def test_the_order_of_lowers_is_that_of_the_file() -> None:
    """Since the ports of new nodes follow from it."""
    assert [one.name for one in parse(TWO).lowers] == ["a", "b"]


def test_a_port_of_null_goes_before_that_of_lower_defaults() -> None:
    """So one lower can have the fixed port of lowerDefaults, and another's is chosen."""
    found = lowers(
        "{node: {kubeletPort: 5}}",
        "{name: a, kubeconfig: k}",
        "{name: b, kubeconfig: k, node: {kubeletPort: null}}",
    )
    assert [one.node.kubelet_port for one in found] == [5, None]


@pytest.mark.parametrize(
    ("fields", "more", "places"),
    [
        ("maintenance: none", "", False),
        ("maintenance: cordon", "", False),
        ("maintenance: drain", "", False),
        ("maintenance: drain", "descheduler: {recreateBarePods: true}\n", True),
        ("maintenance: none", "descheduler: {recreateBarePods: true}\n", False),
        ("maintenance: none", "descheduler: {enabled: true}\n", True),
        ("maintenance: none", "extender: {enabled: true}\n", True),
        ("maintenance: none", "webhook: {enabled: true, url: 'https://a'}\n", False),
    ],
)
def test_real_nodes_are_known_one_by_one_where_pods_have_to_be_placed(fields: str, more: str, *, places: bool) -> None:
    """That costs memory: nobody pays for it who places nothing."""
    assert parse(f"{HEAD}lowers:\n- {{name: a, kubeconfig: k, {fields}}}\n{more}").places == places
