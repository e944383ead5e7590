"""Warnings about a valid file: what is unlikely to be meant is told with its place, and refuses nothing."""

import pytest

from tensile.kubelet.node.rule import own_labels
from tensile.topology import cautions, parse

HEAD = "apiVersion: tensile-kube.io/v1alpha1\nkind: Topology\nname: warned\n"
LOWERS = "lowers:\n- name: a\n  kubeconfig: same\n- name: b\n  kubeconfig: same\n"


def told(text: str) -> list[str]:
    """Return the warnings about a file, as they are printed."""
    return [one.line("f") for one in cautions(text, parse(text, name="f"))]


def test_a_webhook_that_nobody_can_call_is_warned_of() -> None:
    """It is served and never registered."""
    words = "the upper cluster cannot call the webhook without an address; set webhook.service or webhook.url"
    assert told(f"{HEAD}lowers: []\nwebhook:\n  enabled: true\n") == [f"f:6:12: webhook.enabled: {words}"]


@pytest.mark.parametrize(
    "webhook",
    [
        "webhook: {enabled: true, url: https://webhook.example:8443}",
        "webhook: {enabled: true, service: {namespace: n, name: s}}",
        "webhook: {enabled: false}",
    ],
)
def test_a_webhook_with_an_address_or_none_at_all_is_not_warned_of(webhook: str) -> None:
    """Either way is a way."""
    assert told(f"{HEAD}lowers: []\n{webhook}\n") == []


def test_two_lowers_that_are_reached_in_one_way_are_warned_of() -> None:
    """They are one cluster; with contexts of their own they may be two."""
    words = "lowers[0] is the same cluster, and can only be one lower; use another kubeconfig, or remove one"
    assert told(HEAD + LOWERS) == [f"f:7:3: lowers[1]: {words}"]
    assert told(HEAD + LOWERS + "  context: other\n") == []


def test_a_lower_that_is_reached_as_the_upper_cluster_is_warned_of() -> None:
    """A cluster is not a node of itself; with a context of its own it may be another one."""
    text = f"{HEAD}upper: {{kubeconfig: up}}\nlowers:\n- name: a\n  kubeconfig: up\n"
    assert told(text) == ["f:6:3: lowers[0]: is the upper cluster; use another kubeconfig, or remove the lower"]
    assert told(text + "  context: other\n") == []


@pytest.mark.parametrize(("key", "value"), [("kubernetes.io/hostname", "a"), ("type", "virtual-kubelet")])
def test_a_label_that_the_engine_gives_to_each_node_is_warned_of(key: str, value: str) -> None:
    """Another value of it would be ignored; the same value is only superfluous."""
    text = f"{HEAD}lowers:\n- name: a\n  kubeconfig: k\n  node:\n    labels:\n      {key}: %s\n"
    words = f"has no effect: the engine gives this label the value {value!r}; remove it, or use another label"
    assert [one.partition(": ")[2].partition(": ")[2] for one in told(text % "mine")] == [words]
    assert told(text % value) == []
    (lower,) = parse(text % "mine", name="f").lowers
    assert own_labels(lower)[key] == value
