"""What is accepted and not in effect yet is said where it is set, and nothing else is."""

from datetime import timedelta

import pytest
from corpus_form import EMPTY, HEAD, ONE

from tensile.topology import Topology, not_yet, parse
from tensile.topology.messages import _fields, _section_at
from tensile.topology.notices import NOT_YET, Row
from tensile.yamltree import show_path

ROWS = (
    Row(("extender", "enabled"), (False,), "it comes in a later release"),
    Row(("extender", "strategy"), ("spread",), "it comes in a later release"),
    Row(("descheduler", "interval"), (timedelta(minutes=1),), "it comes in a later release"),
)
"""A table such as there is while a feature is missing."""


def told(text: str, rows: tuple[Row, ...] = ROWS) -> list[str]:
    """Give the paths that notices speak of."""
    return [show_path(notice.path) for notice in not_yet(parse(text), rows)]


@pytest.mark.parametrize("text", [EMPTY, ONE], ids=["no lowers", "one lower"])
def test_defaults_that_nobody_wrote_are_not_told(text: str) -> None:
    """A plain file is quiet."""
    assert told(text) == []


def test_a_notice_says_where_and_what_is_in_force() -> None:
    """In the form of an error, with the file's name."""
    topology = parse(EMPTY + "extender: {strategy: binpack}\n", name="t.yaml")
    (notice,) = not_yet(topology, ROWS)
    assert str(notice) == "t.yaml:5:12: extender.strategy: accepted, not in effect yet: it comes in a later release"


@pytest.mark.parametrize(
    ("text", "path"),
    [
        (EMPTY + "extender: {strategy: binpack}\n", "extender.strategy"),
        (EMPTY + "extender: {enabled: true}\n", "extender.enabled"),
        (EMPTY + "descheduler: {interval: 61s}\n", "descheduler.interval"),
    ],
)
def test_a_feature_that_is_not_there_yet_is_told_where_it_is_asked_for(text: str, path: str) -> None:
    """Once, by its own key."""
    assert told(text) == [path]


@pytest.mark.parametrize(
    "text",
    [
        EMPTY + "upper: {advertiseURL: null, qps: 5}\n",
        EMPTY + "upper: {advertiseURL: 'https://a:1'}\n",
        EMPTY + "controllers: [Service]\nservices: {kubeSystem: true, upperAlias: top}\n",
        EMPTY + "controllers: [RBAC, ServiceAccount, PV]\nserviceAccounts: {identity: upper}\n",
        ONE + "  controllers: [ServiceAccount]\n  serviceAccounts: {identity: lower}\n",
        EMPTY + "controllers: []\nonConflict: adopt\nserviceAccounts: {identity: none}\n",
        EMPTY + "webhook: {enabled: true, url: 'https://a', ignoreSelectorKeys: []}\n",
        EMPTY + "extender: {enabled: true, port: 7, strategy: binpack}\n",
        EMPTY + "descheduler: {enabled: true, interval: 61s, cooldown: 3s, dryRun: true}\n",
        EMPTY + "descheduler: {maxEvictionsPerNode: 3, pendingLongerThan: 2s}\n",
        EMPTY + "kubelet: {port: 5}\ntelemetry: {port: 6}\nguard: {maxDeletes: 1}\n",
        EMPTY + "ignoreLabels: [a]\nexcludeNamespaces: [b]\n",
        HEAD + "lowers: [{name: a, kubeconfigSecret: {namespace: a, name: b}}]\n",
        EMPTY + "lowerDefaults: {maintenance: drain}\n",
        ONE + "  maintenance: cordon\n  qps: 3\n  context: c\n",
        ONE + "  controllers: null\n  onConflict: adopt\n  storageClasses: {}\n",
        ONE + "  controllers: [PV]\n  storageClasses: {a: b}\n",
        ONE + "  node: {name: n, taints: []}\n  capacity: {basis: allocatable}\n",
        ONE + "  namespaces: {mapping: prefix}\n  unreachable: {evictAfter: 5m}\n",
    ],
)
def test_what_is_in_effect_or_asks_for_nothing_is_not_told(text: str) -> None:
    """Every field works."""
    assert told(text, NOT_YET) == []


@pytest.mark.parametrize(
    "text",
    [EMPTY + "extender: {enabled: false, strategy: spread}\n", EMPTY + "descheduler: {interval: 60s, cooldown: 3s}\n"],
)
def test_defaults_that_are_written_are_not_told(text: str) -> None:
    """They ask for nothing; a duration may be spelled otherwise."""
    assert told(text) == []


def test_notices_come_in_the_order_of_the_file() -> None:
    """However the table is ordered."""
    text = HEAD + "extender: {strategy: binpack, enabled: true}\nlowers: []\n"
    assert told(text) == ["extender.strategy", "extender.enabled"]


def test_a_topology_that_was_not_read_from_a_text_has_no_notices() -> None:
    """There is no place to speak of."""
    read = parse(EMPTY + "controllers: [PV]\n")
    made = Topology.model_construct(**{name: getattr(read, name) for name in Topology.model_fields})
    assert not_yet(made, ROWS) == []


@pytest.mark.parametrize("row", [*NOT_YET, *ROWS], ids=lambda row: show_path(row.path))
def test_every_row_of_the_table_is_a_field(row: Row) -> None:
    """A row for a key that is not in the format would never be told."""
    assert row.path[-1] in _fields(_section_at(row.path[:-1]))
