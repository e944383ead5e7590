"""Tests of the values that a lower inherits, and from where."""

import pytest
from corpus_form import EMPTY, HEAD, ONE

from tensile.topology import Lower, SecretRef, parse
from tensile.topology.models import PROVIDER_TAINT

TWO = ONE + "- name: b\n  kubeconfig: kubeconfigs/b\n"


def lowers(defaults: str, *entries: str) -> tuple[Lower, ...]:
    """Parse a topology with lowerDefaults and lowers, each given in flow style."""
    items = "".join(f"- {entry}\n" for entry in entries)
    return parse(f"{HEAD}lowerDefaults: {defaults}\nlowers:\n{items}").lowers


def lower(defaults: str, fields: str) -> Lower:
    """Parse a topology with lowerDefaults and one lower with some more fields."""
    return lowers(defaults, f"{{name: a, kubeconfig: k, {fields}}}")[0]


def test_a_lower_with_only_the_required_fields_has_the_built_in_defaults() -> None:
    """No inherited value is None in the parsed lower."""
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


def test_a_field_of_a_lower_overrides_lower_defaults() -> None:
    """Values in lowerDefaults override the built-in default."""
    found = lower("{qps: 5, burst: 6, maintenance: cordon}", "qps: 7")
    assert (found.qps, found.burst, found.maintenance) == (7, 6, "cordon")


def test_a_field_that_equals_the_built_in_default_overrides_lower_defaults() -> None:
    """Every value that is written in the lower counts."""
    assert lower("{qps: 5, maintenance: drain}", "qps: 500, maintenance: none").qps == 500
    assert lower("{maintenance: drain}", "maintenance: none").maintenance == "none"


def test_null_in_a_lower_overrides_lower_defaults() -> None:
    """A lower can use the current context of its kubeconfig although lowerDefaults names another one."""
    assert lower("{context: eu}", "qps: 1").context == "eu"
    assert lower("{context: eu}", "context: null").context is None


def test_mappings_of_a_lower_are_merged_with_lower_defaults() -> None:
    """This applies at every level: sections, labels, quantities and storage classes."""
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


def test_a_list_of_a_lower_replaces_that_of_lower_defaults() -> None:
    """An empty list removes all items."""
    defaults = "{node: {taints: [{key: a, effect: NoExecute}]}, controllers: [PV, RBAC]}"
    assert [taint.key for taint in lower(defaults, "qps: 1").node.taints] == ["a"]
    assert lower(defaults, "node: {taints: []}").node.taints == ()
    assert lower(defaults, "controllers: [Service]").controllers == ("Service",)


def test_a_field_in_a_section_of_a_lower_keeps_the_other_fields_of_lower_defaults() -> None:
    """A lower that only sets the name of its node has the taints of lowerDefaults."""
    found = lower("{node: {taints: []}}", "node: {name: n}")
    assert (found.node.name, found.node.taints) == ("n", ())


def test_the_label_cluster_id_is_the_name_of_the_lower_unless_it_is_set() -> None:
    """It can be set in the lower or in lowerDefaults."""
    assert lower("{}", "node: {name: n}").node.labels == {"clusterID": "a"}
    assert lower("{}", "node: {labels: {clusterID: eu}}").node.labels == {"clusterID": "eu"}
    assert lower("{node: {labels: {clusterID: eu}}}", "qps: 1").node.labels["clusterID"] == "eu"


def test_a_node_may_have_a_port_that_another_node_would_get_by_default() -> None:
    """The other node then gets the next free port."""
    found = lowers("{}", "{name: a, kubeconfig: k, node: {kubeletPort: 10351}}", "{name: b, kubeconfig: k}")
    assert [one.node.kubelet_port for one in found] == [10351, None]


def test_ports_of_nodes_start_at_the_kubelet_port() -> None:
    """The range has room for lowers that are added later, as far as there are valid ports."""
    assert parse(TWO + "kubelet: {port: 20000}\n").kubelet_ports == range(20000, 20100)
    assert parse(TWO + "kubelet: {port: 65530}\n").kubelet_ports == range(65530, 65536)
    many = "".join(f"- {{name: l{number}, kubeconfig: k}}\n" for number in range(150))
    assert len(parse(f"{HEAD}lowers:\n{many}").kubelet_ports) == 150


def test_lowers_inherit_controllers_labels_conflicts_and_identity_from_the_topology() -> None:
    """A value of the lower has precedence, then that of lowerDefaults, then that of the topology."""
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
    """Without that controller, neither the ServiceAccount nor its token would be created."""
    found = lower("{}", f"controllers: {controllers}, serviceAccounts: {{identity: upper}}")
    assert found.service_accounts.identity == identity


def test_the_kubeconfig_secret_of_a_lower_is_merged_with_lower_defaults() -> None:
    """All lowers can share one Secret with a key for each."""
    first, second = lowers(
        "{kubeconfigSecret: {namespace: n, name: all}}",
        "{name: a, kubeconfigSecret: {key: a}}",
        "{name: b}",
    )
    assert first.kubeconfig_secret == SecretRef.model_construct(namespace="n", name="all", key="a")
    assert second.kubeconfig_secret is not None
    assert second.kubeconfig_secret.key == "kubeconfig"


def test_a_kubeconfig_path_of_a_lower_replaces_the_secret_of_lower_defaults() -> None:
    """A lower never has both."""
    found = lower("{kubeconfigSecret: {namespace: n, name: s}}", "qps: 1")
    assert (found.kubeconfig, found.kubeconfig_secret) == ("k", None)


def test_valid_lower_defaults_are_accepted_without_lowers() -> None:
    """They are validated although no lower inherits them."""
    assert parse(EMPTY + "lowerDefaults: {node: {kubeletPort: 5}}\n").lowers == ()


def test_a_yaml_alias_is_the_same_as_its_value() -> None:
    """Lowers can share a section with an anchor."""
    text = ONE + "  capacity: &c {limit: {cpu: '1'}}\n- {name: b, kubeconfig: k, capacity: *c}\n"
    first, second = parse(text).lowers
    assert first.capacity == second.capacity
    assert second.capacity.limit == {"cpu": "1"}


def test_the_order_of_lowers_is_that_of_the_file() -> None:
    """The ports of new nodes depend on it."""
    assert [one.name for one in parse(TWO).lowers] == ["a", "b"]


def test_a_null_port_of_a_lower_overrides_lower_defaults() -> None:
    """One lower can have the fixed port of lowerDefaults while another one's port is chosen."""
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
def test_places_is_true_only_if_the_engine_places_pods_on_real_nodes(fields: str, more: str, *, places: bool) -> None:
    """Only the extender, the descheduler and drains of bare pods need the real nodes, whose watch costs memory."""
    assert parse(f"{HEAD}lowers:\n- {{name: a, kubeconfig: k, {fields}}}\n{more}").places == places
