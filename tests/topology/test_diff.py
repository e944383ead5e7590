"""Tests of the comparison of topologies: the messages about changes, and the lowers that they affect."""

import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest
from corpus_form import EMPTY, HEAD
from hypothesis import given
from hypothesis import strategies as st

from tensile.topology import Topology, decode, parse
from tensile.topology.diff import Lowers, concerns_all, edit

EXAMPLE = decode((Path(__file__).parents[2] / "topology.example.yaml").read_bytes())
NOTHING: frozenset[str] = frozenset()


def topology(*lowers: str, more: str = "", name: str = "demo") -> Topology:
    """Parse a topology with these lowers, each NAME or NAME and more fields in flow style, and other keys."""
    items = "".join(f"- {{kubeconfig: k, name: {lower}}}\n" for lower in lowers)
    return parse(f"{HEAD.replace('demo', name)}lowers:{' []' if not lowers else ''}\n{items}{more}\n")


def change_messages(old: Topology, new: Topology) -> tuple[str, ...]:
    """Return the messages about the changes that are applied."""
    return edit(old, new).changes


def test_equal_topologies_have_no_changes() -> None:
    """The form of the file does not matter: no change is listed or refused, and no lower is affected."""
    one = topology("a, node: {labels: {x: y}}", "b")
    other = parse(
        f"# a comment\n{HEAD}lowers:\n- name: a\n  kubeconfig: k\n  qps: 500\n"
        "  node: {labels: {clusterID: a, x: y}}\n"
        "- name: b\n  kubeconfig: k\n  node: {kubeletPort: null}\n"
    )
    found = edit(one, other)
    assert (found.changes, found.refused) == ((), ())
    assert found.lowers == Lowers(NOTHING, NOTHING, NOTHING)


@pytest.mark.process
def test_comparing_equal_topologies_does_not_import_deepdiff() -> None:
    """The first comparison after a start finds no change, and an import would delay the start."""
    text = f"{HEAD}lowers: []\n"
    program = (
        "import sys; from tensile.topology import parse; from tensile.topology.diff import edit; "
        f"assert edit(parse({text!r}), parse({text!r})).changes == (); assert 'deepdiff' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_a_changed_label_is_the_only_change_in_the_message() -> None:
    """Other fields of the lower and other lowers are not listed."""
    old = topology("lower-a, qps: 7, node: {labels: {zone: b, rack: r}}", "lower-b, node: {labels: {zone: b}}")
    new = topology("lower-a, qps: 7, node: {labels: {zone: c, rack: r}}", "lower-b, node: {labels: {zone: b}}")
    assert change_messages(old, new) == ("lowers[lower-a].node.labels.zone: b -> c",)
    assert edit(old, new).lowers == Lowers(NOTHING, NOTHING, frozenset(["lower-a"]))


def test_added_and_removed_lowers_have_one_message_each() -> None:
    """There is no message for each field, and the remaining lower is not affected."""
    found = edit(topology("a", "b"), topology("a", "c"))
    assert found.changes == ("lower c added", "lower b removed")
    assert found.lowers == Lowers(frozenset("c"), frozenset("b"), NOTHING)


def test_a_lower_at_another_position_is_unchanged() -> None:
    """Its node keeps its port."""
    found = edit(topology("a", "b"), topology("b", "a"))
    assert (found.changes, found.lowers) == ((), Lowers(NOTHING, NOTHING, NOTHING))


def test_a_changed_kubelet_port_of_a_node_is_applied() -> None:
    """It is a field of the lower and needs no restart."""
    found = edit(topology("a, node: {kubeletPort: 5}"), topology("a, node: {kubeletPort: 6}"))
    assert (found.changes, found.refused) == (("lowers[a].node.kubeletPort: 5 -> 6",), ())


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("qps: 1", "qps: 2", "qps: 1 -> 2"),
        ("context: null", "context: eu", "context: null -> eu"),
        ("context: 'null'", "context: eu", 'context: "null" -> eu'),
        ("context: a b", "context: '2'", 'context: "a b" -> "2"'),
        ('context: "\\u202e"', "context: eu", 'context: "\\u202e" -> eu'),
        ("qps: 1", "qps: 1, capacity: {limit: {nvidia.com/gpu: '4'}}", 'capacity.limit["nvidia.com/gpu"]: added, "4"'),
        ("storageClasses: {fast: ssd}", "qps: 500", "storageClasses.fast: removed, was ssd"),
        ("unreachable: {evictAfter: 300s}", "unreachable: {evictAfter: 1h}", "unreachable.evictAfter: 5m -> 1h"),
        ("controllers: [PV, RBAC]", "controllers: [PV]", "controllers: RBAC removed"),
        ("ignoreLabels: []", "ignoreLabels: [x/y]", "ignoreLabels: x/y added"),
        ("node: {annotations: {a: b}}", "node: {annotations: {a: c}}", "node.annotations.a: b -> c"),
    ],
)
def test_the_message_for_a_changed_lower_uses_keys_and_values_of_the_file(old: str, new: str, message: str) -> None:
    """A text is quoted if it could also be another value."""
    start, end = (topology(f"a, serviceAccounts: {{identity: none}}, {fields}") for fields in (old, new))
    assert change_messages(start, end) == (f"lowers[a].{message}",)


def test_a_window_is_formatted_as_schedule_time_zone_and_duration() -> None:
    """The order of windows in the file does not matter."""
    night = "{schedule: 0 2 * * *, duration: 4h}"
    weekend = "{schedule: 0 0 * * 6, duration: 48h, timeZone: Asia/Tokyo}"
    both = topology("a", more=f"windows: [{night}, {weekend}]")
    assert change_messages(both, topology("a", more=f"windows: [{weekend}, {night}]")) == ()
    fewer = topology("a", more=f"windows: [{night}]")
    assert change_messages(both, fewer) == ('windows: "0 0 * * 6 Asia/Tokyo for 48h" removed',)
    assert concerns_all(both, fewer)


def test_taints_are_formatted_as_in_kubectl() -> None:
    """They are a set: another order is no change, and another effect is another taint."""
    first, second = "{key: k, value: v, effect: NoSchedule}", "{key: k, effect: NoExecute}"
    both = topology(f"a, node: {{taints: [{first}, {second}]}}")
    assert change_messages(both, topology(f"a, node: {{taints: [{second}, {first}]}}")) == ()
    assert change_messages(both, topology(f"a, node: {{taints: [{second}]}}")) == (
        "lowers[a].node.taints: k=v:NoSchedule removed",
    )
    assert change_messages(topology("a, node: {taints: []}"), topology(f"a, node: {{taints: [{second}]}}")) == (
        "lowers[a].node.taints: k=:NoExecute added",
    )


def test_a_long_value_is_truncated_in_the_message() -> None:
    """An annotation may have 256 KiB, but a log line must be short."""
    (message,) = change_messages(
        topology("a, node: {annotations: {k: v}}"), topology(f"a, node: {{annotations: {{k: {'x' * 999}}}}}")
    )
    assert message.startswith("lowers[a].node.annotations.k: v -> xxxx")
    assert message.endswith("...")
    assert len(message) < 130


def test_equal_changes_of_several_lowers_have_one_message() -> None:
    """A changed default affects all lowers except those that set the field themselves."""
    old = topology("a", "b, qps: 7", "c")
    new = topology("a", "b, qps: 7", "c", more="lowerDefaults: {qps: 3}")
    assert change_messages(old, new) == ("lowers[a, c].qps: 500 -> 3",)
    assert edit(old, new).lowers.changed == frozenset("ac")


def test_a_changed_default_without_effect_is_not_listed() -> None:
    """Every lower sets the field itself, so nothing changes."""
    found = edit(topology("a, qps: 7"), topology("a, qps: 7", more="lowerDefaults: {qps: 3}"))
    assert (found.changes, found.lowers.changed) == ((), NOTHING)


def test_a_changed_field_of_the_topology_is_listed_for_it_and_for_the_lowers_that_inherit_it() -> None:
    """The first message is the change of the file, the second one its effect."""
    old, new = topology("a", more="onConflict: fail"), topology("a", more="onConflict: adopt")
    assert change_messages(old, new) == ("onConflict: fail -> adopt", "lowers[a].onConflict: fail -> adopt")


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ("guard: {maxDeletes: 5}", "guard.maxDeletes: 20 -> 5"),
        ("descheduler: {interval: 90s}", "descheduler.interval: 1m -> 90s"),
        ("excludeNamespaces: []", "excludeNamespaces: kube-system removed"),
        ("kubelet: {clientCAFile: ca}", "kubelet.clientCAFile: null -> ca"),
        ("webhook: {service: {namespace: n, name: m}}", 'webhook.service: null -> {"namespace": "n", "name": "m"}'),
    ],
)
def test_the_message_for_a_change_outside_the_lowers_uses_keys_and_values_of_the_file(more: str, message: str) -> None:
    """No lower is affected by it."""
    found = edit(topology("a"), topology("a", more=more))
    assert found.changes == (message,)
    assert found.lowers == Lowers(NOTHING, NOTHING, NOTHING)


def test_changes_of_name_and_upper_are_refused() -> None:
    """They need a restart, so the active values are kept, and the other changes are applied."""
    old = topology("a", more="upper: {kubeconfig: u}")
    new = topology("a, qps: 3", more="upper: {kubeconfig: v, qps: 9}", name="other")
    found = edit(old, new)
    assert found.changes == ("lowers[a].qps: 500 -> 3",)
    unowned = "which then owns only what was created under that name"
    assert found.refused == (
        f"name: demo -> other: this change requires a restart of the engine, {unowned}",
        "upper.kubeconfig: u -> v: this change requires a restart of the engine",
        "upper.qps: 500 -> 9: this change requires a restart of the engine",
    )
    assert (found.topology.name, found.topology.upper) == ("demo", old.upper)
    assert found.topology.lowers == new.lowers


SERVERS = {"kubelet": "", "webhook": "enabled: true, ", "extender": "enabled: true, ", "telemetry": ""}
"""The sections of servers, all enabled."""
REST = {"kubelet": "clientCAFile: ca, ", "extender": "strategy: binpack, ", "webhook": "ignoreSelectorKeys: [x], "}
"""A field of each section that can be reloaded."""


def serving(**fields: str) -> str:
    """Return the sections of all servers, with these fields."""
    return "".join(f"{name}: {{{given}{fields.get(name, '')}}}\n" for name, given in SERVERS.items())


@pytest.mark.parametrize("section", SERVERS)
@pytest.mark.parametrize(("field", "value"), [("bind", "127.0.0.9"), ("port", "9")])
def test_a_change_of_the_address_or_port_of_a_server_is_refused(section: str, field: str, value: str) -> None:
    """It needs a restart, so the active value is kept, and other changes, also of that section, are applied."""
    old = topology("a", more=serving())
    new = topology("a, qps: 3", more=serving(**{section: f"{REST.get(section, '')}{field}: {value}"}))
    found = edit(old, new)
    (refusal,) = found.refused
    assert refusal.startswith(f"{section}.{field}: ")
    assert refusal.endswith(f" -> {value}: this change requires a restart of the engine")
    assert "lowers[a].qps: 500 -> 3" in found.changes
    before, after, file = (getattr(one, section) for one in (old, found.topology, new))
    assert after == file.model_copy(update={field: getattr(before, field)})
    assert edit(found.topology, new).refused == found.refused


@pytest.mark.parametrize("section", ["webhook", "extender"])
def test_the_port_of_a_disabled_server_can_be_changed(section: str) -> None:
    """No server listens before it is enabled, while it is disabled, or when it is disabled by the same change."""
    texts = ("{}", "{port: 9}", "{enabled: true, port: 9}", "{enabled: false, port: 10}")
    row = [topology("a", more=f"{section}: {text}") for text in texts]
    for before, after in pairwise(row):
        assert edit(before, after).refused == ()
        assert edit(before, after).topology == after


def test_the_topology_to_activate_is_the_new_one_if_no_change_is_refused() -> None:
    """All its fields are as in the file."""
    new = topology("a", more="guard: {maxDeletes: 5}")
    found = edit(topology("a"), new)
    assert found.topology == new


def test_a_lower_with_the_name_of_a_section_is_treated_as_a_lower() -> None:
    """`upper` and `name` are valid names of lower clusters."""
    found = edit(topology("upper", "name"), topology("upper, qps: 3", "name, qps: 4"))
    assert found.refused == ()
    assert found.changes == ("lowers[name].qps: 500 -> 4", "lowers[upper].qps: 500 -> 3")


@given(st.data())
def test_each_lower_is_added_removed_changed_or_unaffected(data: st.DataObject) -> None:
    """This holds for any edit, and the reverse edit has the reverse result."""
    names = st.lists(st.sampled_from("abcde"), unique=True)
    fields = st.sampled_from(["", ", qps: 7", ", node: {name: other, kubeletPort: 7}", ", maintenance: drain"])
    old, new = (
        topology(*(name + (data.draw(fields) if place == 0 else "") for place, name in enumerate(data.draw(names))))
        for _ in range(2)
    )
    there, back = edit(old, new), edit(new, old)
    added, removed, changed = there.lowers
    before, after = ({lower.name for lower in one.lowers} for one in (old, new))
    assert (added, removed) == (after - before, before - after)
    assert changed <= before & after
    assert back.lowers == Lowers(removed, added, changed)
    assert bool(there.changes) == bool(added or removed or changed)


def test_the_example_topology_can_be_compared_with_an_empty_one_in_both_directions() -> None:
    """It has every field that a file can have."""
    example, empty = parse(EXAMPLE), parse(EMPTY)
    assert "lower lower-a added" in change_messages(empty, example)
    assert "kubelet.tlsKeyFile: pki/kubelet.key -> null" in change_messages(example, empty)
    assert change_messages(example, parse(EXAMPLE)) == ()


@pytest.mark.parametrize(
    "lower",
    [
        "a, maintenance: cordon",
        "a, qps: 7",
        "a, node: {labels: {x: y}}",
        "a, ignoreLabels: [x]",
        "a, storageClasses: {x: y}",
    ],
)
def test_a_change_of_most_fields_of_a_lower_concerns_no_other_lower(lower: str) -> None:
    """What its virtual node shows of them reaches the other lowers by the Node object."""
    assert not concerns_all(topology("a", "b"), topology(lower, "b"))


@pytest.mark.parametrize(
    ("lowers", "more"),
    [
        (("a", "b"), "excludeNamespaces: [x]"),
        (("a", "b"), "guard: {maxDeletes: 3}"),
        (("a", "b"), "descheduler: {enabled: true}"),
        (("a", "b", "c"), ""),
        (("b",), ""),
        (("b", "a"), ""),
        (("a, node: {name: other}", "b"), ""),
        (("a, node: {taints: [{key: k, effect: NoSchedule}]}", "b"), ""),
        (("a, maintenance: drain", "b"), ""),
        (("a, controllers: []", "b, controllers: []"), ""),
    ],
)
def test_changes_outside_lowers_and_of_names_taints_and_order_concern_every_lower(
    lowers: tuple[str, ...], more: str
) -> None:
    """Decisions about every lower use these fields."""
    assert concerns_all(topology("a", "b"), topology(*lowers, more=more))
