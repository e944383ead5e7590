"""Spellings of names, addresses, URLs and durations: what is taken and what is refused."""

from collections.abc import Callable
from datetime import timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tensile.topology import syntax

Check = Callable[[str], str]

TAKEN: tuple[tuple[Check, str], ...] = (
    (syntax.label_name, "a"),
    (syntax.label_name, "0"),
    (syntax.label_name, "a-0--b"),
    (syntax.label_name, "a" * 63),
    (syntax.alias_name, "a-0"),
    (syntax.object_name, "a.b-c.0"),
    (syntax.object_name, "a" * 253),
    (syntax.node_name, "ip-10-0-0-1.eu.internal"),
    (syntax.label_value, ""),
    (syntax.label_value, "A_b-c.0"),
    (syntax.label_value, "v" * 63),
    (syntax.label_key, "a"),
    (syntax.label_key, "A_b.c"),
    (syntax.label_key, "example.com/" + "k" * 63),
    (syntax.own_label_key, "kubernetes.io/role"),
    (syntax.own_label_key, "tensile-kube.io.example.com/a"),
    (syntax.data_key, "kubeconfig"),
    (syntax.data_key, "..data_1"),
    (syntax.resource_name, "cpu"),
    (syntax.resource_name, "pods"),
    (syntax.resource_name, "ephemeral-storage"),
    (syntax.resource_name, "hugepages-2Mi"),
    (syntax.resource_name, "attachable-volumes-aws-ebs"),
    (syntax.resource_name, "nvidia.com/gpu"),
    (syntax.quantity, "0"),
    (syntax.quantity, "1.5Gi"),
    (syntax.quantity, "12E"),
    (syntax.path, "/etc/tensile/kube config.yaml"),
    (syntax.path, "../\u00fc"),
    (syntax.word, "admin@cluster/one two"),
    (syntax.address, "0.0.0.0"),
    (syntax.address, "::1"),
    (syntax.reachable_address, "10.0.0.1"),
    (syntax.reachable_address, "fd00::1"),
    (syntax.url, "https://a"),
    (syntax.url, "https://a.b.c:8443/mutate/x"),
    (syntax.url, "https://10.0.0.1/"),
    (syntax.url, "https://[::1]:1/x"),
    (syntax.url, "https://Example.COM"),
    (syntax.server_url, "https://a:1"),
    (syntax.server_url, "https://10.0.0.1:65535"),
    (syntax.server_url, "https://[fd00::1]:6443/"),
)

REFUSED: tuple[tuple[Check, str], ...] = (
    (syntax.label_name, ""),
    (syntax.label_name, "-a"),
    (syntax.label_name, "a-"),
    (syntax.label_name, "a\n"),
    (syntax.label_name, "a" * 64),
    (syntax.alias_name, "0a"),
    (syntax.object_name, ".a"),
    (syntax.object_name, "a."),
    (syntax.object_name, "a.-b"),
    (syntax.object_name, "a" * 254),
    (syntax.node_name, "a" * 64),
    (syntax.label_value, "-"),
    (syntax.label_value, "a b"),
    (syntax.label_key, ""),
    (syntax.label_key, "/"),
    (syntax.label_key, "/a"),
    (syntax.label_key, "a/"),
    (syntax.label_key, "a_b/c"),
    (syntax.label_key, "a/" + "k" * 64),
    (syntax.own_label_key, "tensile-kube.io/owner"),
    (syntax.data_key, ""),
    (syntax.data_key, "a/b"),
    (syntax.resource_name, "gpu"),
    (syntax.resource_name, "CPU"),
    (syntax.resource_name, "hugepages-"),
    (syntax.resource_name, "nvidia.com/"),
    (syntax.quantity, "-1"),
    (syntax.quantity, "1 Gi"),
    (syntax.path, ""),
    (syntax.path, "a\nb"),
    (syntax.path, "a\x7f"),
    (syntax.path, "a" * 4097),
    (syntax.word, ""),
    (syntax.word, "a" * 254),
    (syntax.address, ""),
    (syntax.address, "010.0.0.1"),
    (syntax.address, "1.2.3.4 "),
    (syntax.address, "fe80::1%eth0"),
    (syntax.reachable_address, "0.0.0.0"),
    (syntax.reachable_address, "::"),
    (syntax.url, "HTTP://a"),
    (syntax.url, "https://"),
    (syntax.url, "https://a:0"),
    (syntax.url, "https://a:99999"),
    (syntax.url, "https://a b"),
    (syntax.url, "https://a#b"),
    (syntax.url, "https://-a"),
    (syntax.url, "https://:p@a"),
    (syntax.url, "https://@a"),
    (syntax.server_url, "https://a:1?x"),
    (syntax.server_url, "https://a:1#x"),
    (syntax.server_url, "https://a:1//"),
    (syntax.server_url, "https://a:x"),
    (syntax.server_url, "//a:1"),
)


@pytest.mark.parametrize(("check", "text"), TAKEN)
def test_what_kubernetes_takes_is_taken_as_it_is(check: Check, text: str) -> None:
    """A check gives the value back unchanged."""
    assert check(text) == text


@pytest.mark.parametrize(("check", "text"), REFUSED)
def test_what_kubernetes_refuses_is_refused_with_words(check: Check, text: str) -> None:
    """The words are a sentence of their own, without a line break."""
    with pytest.raises(ValueError, match=r"^[^\n]{10,}$"):
        check(text)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("30s", 30),
        ("5m", 300),
        ("1h", 3600),
        ("1h30m", 5400),
        ("1.5h", 5400),
        ("30m1h", 5400),
        ("250ms", 0.25),
        ("1m0.5s", 60.5),
        ("0h1s", 1),
        ("876000h", 3153600000),
    ],
)
def test_a_duration_is_the_sum_of_its_parts(text: str, seconds: float) -> None:
    """In any order, with fractions."""
    assert syntax.duration(text) == timedelta(seconds=seconds)


@pytest.mark.parametrize(
    "value",
    ["", "0s", "0h0m", "5", "s", "-1s", "+1s", "1d", "1 s", "1s ", "1S", "1us", "5,5s", ".5s", "1.s"],
)
def test_what_is_no_length_of_time_is_no_duration(value: str) -> None:
    """No unit, another unit, no number, or nothing at all."""
    with pytest.raises(ValueError, match="must be"):
        syntax.duration(value)


@pytest.mark.parametrize("value", [5, 0.5, None, True, [], {}])
def test_what_is_no_text_is_no_duration(value: object) -> None:
    """A number has no unit."""
    with pytest.raises(ValueError, match="must be a duration with its unit"):
        syntax.duration(value)


@pytest.mark.parametrize("value", ["876001h", "9" * 39 + "h"])
def test_a_duration_beyond_a_century_is_a_mistake(value: str) -> None:
    """And not an overflow."""
    with pytest.raises(ValueError, match="longer than a hundred years"):
        syntax.duration(value)


@pytest.mark.parametrize(
    ("seconds", "text"), [(30, "30s"), (60, "1m"), (90, "90s"), (3600, "1h"), (5400, "90m"), (0.25, "0.25s")]
)
def test_a_duration_is_written_in_its_largest_whole_unit(seconds: float, text: str) -> None:
    """As a person would."""
    assert syntax.write_duration(timedelta(seconds=seconds)) == text


@settings(deadline=None, max_examples=200, derandomize=True)
@given(st.integers(min_value=1, max_value=10**8))
def test_a_duration_written_and_read_is_the_same(milliseconds: int) -> None:
    """Down to the millisecond, below a second and a day."""
    length = timedelta(milliseconds=milliseconds % 86_400_000 or 1)
    written = syntax.write_duration(length)
    assert abs(syntax.duration(written) - length) < timedelta(milliseconds=100)
    assert "e" not in written


@pytest.mark.parametrize(
    ("resource", "whole"),
    [("cpu", False), ("memory", False), ("pods", True), ("nvidia.com/gpu", True), ("hugepages-1Gi", True)],
)
def test_kubernetes_counts_some_resources_in_whole_numbers(resource: str, *, whole: bool) -> None:
    """Devices, pods and huge pages."""
    assert syntax.is_whole(resource) is whole


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, "null"),
        (True, "true"),
        (False, "false"),
        (5, "the number 5"),
        (0.5, "the number 0.5"),
        (10**60, "the number 1" + "0" * 39),
        ("a", '"a"'),
        ("\x1b[2J", '"\\u001b[2J"'),
        ("x" * 41, "a long text"),
        ({}, "a mapping"),
        ((), "a list"),
        ([], "a list"),
    ],
)
def test_a_value_in_a_message_is_short_and_harmless(value: object, shown: str) -> None:
    """Long texts may be secrets, control characters may be commands to a terminal."""
    assert syntax.show(value) == shown
