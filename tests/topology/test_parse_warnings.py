"""Tests of warnings about a valid file: they report probable mistakes with their position, and reject nothing."""

import pytest

from tensile.kubelet.node.rule import own_labels
from tensile.topology import cautions, parse

HEAD = "apiVersion: tensile-kube.io/v1alpha1\nkind: Topology\nname: warned\n"
LOWERS = "lowers:\n- name: a\n  kubeconfig: same\n- name: b\n  kubeconfig: same\n"


def warning_lines(text: str) -> list[str]:
    """Return the warnings about a file as they are printed."""
    return [one.line("f") for one in cautions(text, parse(text, name="f"))]


def test_an_enabled_webhook_without_an_address_is_warned_about() -> None:
    """Without a service or a URL it is served but never registered."""
    message = "the upper cluster cannot call the webhook without an address; set webhook.service or webhook.url"
    assert warning_lines(f"{HEAD}lowers: []\nwebhook:\n  enabled: true\n") == [f"f:6:12: webhook.enabled: {message}"]


@pytest.mark.parametrize(
    "webhook",
    [
        "webhook: {enabled: true, url: https://webhook.example:8443}",
        "webhook: {enabled: true, service: {namespace: n, name: s}}",
        "webhook: {enabled: false}",
    ],
)
def test_a_webhook_with_an_address_or_a_disabled_one_causes_no_warning(webhook: str) -> None:
    """A service and a URL are both addresses."""
    assert warning_lines(f"{HEAD}lowers: []\n{webhook}\n") == []


def test_two_lowers_with_the_same_kubeconfig_and_context_are_warned_about() -> None:
    """They are the same cluster; with different contexts they may be two."""
    message = "lowers[0] is the same cluster, and can only be one lower; use another kubeconfig, or remove one"
    assert warning_lines(HEAD + LOWERS) == [f"f:7:3: lowers[1]: {message}"]
    assert warning_lines(HEAD + LOWERS + "  context: other\n") == []


def test_a_lower_with_the_kubeconfig_of_the_upper_cluster_is_warned_about() -> None:
    """A cluster cannot be its own node; with another context it may be another cluster."""
    text = f"{HEAD}upper: {{kubeconfig: up}}\nlowers:\n- name: a\n  kubeconfig: up\n"
    assert warning_lines(text) == [
        "f:6:3: lowers[0]: is the upper cluster; use another kubeconfig, or remove the lower"
    ]
    assert warning_lines(text + "  context: other\n") == []


@pytest.mark.parametrize(("key", "value"), [("kubernetes.io/hostname", "a"), ("type", "virtual-kubelet")])
def test_a_node_label_that_the_engine_sets_itself_is_warned_about(key: str, value: str) -> None:
    """Another value would be ignored; the value that the engine sets causes no warning."""
    text = f"{HEAD}lowers:\n- name: a\n  kubeconfig: k\n  node:\n    labels:\n      {key}: %s\n"
    message = f"has no effect: the engine gives this label the value {value!r}; remove it, or use another label"
    assert [one.partition(": ")[2].partition(": ")[2] for one in warning_lines(text % "mine")] == [message]
    assert warning_lines(text % value) == []
    (lower,) = parse(text % "mine", name="f").lowers
    assert own_labels(lower)[key] == value
