"""Tests of the syntax of names, addresses, URLs and durations: which values are accepted and which are rejected."""

from collections.abc import Callable
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from properties import examples

from tensile.topology import fields

Check = Callable[[str], str]

TAKEN: tuple[tuple[Check, str], ...] = (
    (fields.label_name, "a"),
    (fields.label_name, "0"),
    (fields.label_name, "a-0--b"),
    (fields.label_name, "a" * 63),
    (fields.alias_name, "a-0"),
    (fields.object_name, "a.b-c.0"),
    (fields.object_name, "a" * 253),
    (fields.node_name, "ip-10-0-0-1.eu.internal"),
    (fields.label_value, ""),
    (fields.label_value, "A_b-c.0"),
    (fields.label_value, "v" * 63),
    (fields.label_key, "a"),
    (fields.label_key, "A_b.c"),
    (fields.label_key, "example.com/" + "k" * 63),
    (fields.own_label_key, "kubernetes.io/role"),
    (fields.own_label_key, "tensile-kube.io.example.com/a"),
    (fields.data_key, "kubeconfig"),
    (fields.data_key, "..data_1"),
    (fields.resource_name, "cpu"),
    (fields.resource_name, "pods"),
    (fields.resource_name, "ephemeral-storage"),
    (fields.resource_name, "hugepages-2Mi"),
    (fields.resource_name, "attachable-volumes-aws-ebs"),
    (fields.resource_name, "nvidia.com/gpu"),
    (fields.quantity, "0"),
    (fields.quantity, "1.5Gi"),
    (fields.quantity, "12E"),
    (fields.path, "/etc/tensile/kube config.yaml"),
    (fields.path, "../\u00fc"),
    (fields.word, "admin@cluster/one two"),
    (fields.schedule, "0 2 * * *"),
    (fields.schedule, "*/15 0-6,22 1,15 JAN-JUN mon#1"),
    (fields.schedule, "0 0 29 2 *"),
    (fields.time_zone, "UTC"),
    (fields.time_zone, "Etc/GMT+3"),
    (fields.time_zone, "America/Argentina/Buenos_Aires"),
    (fields.address, "0.0.0.0"),
    (fields.address, "::1"),
    (fields.reachable_address, "10.0.0.1"),
    (fields.reachable_address, "fd00::1"),
    (fields.url, "https://a"),
    (fields.url, "https://a.b.c:8443/mutate/x"),
    (fields.url, "https://10.0.0.1/"),
    (fields.url, "https://[::1]:1/x"),
    (fields.url, "https://Example.COM"),
    (fields.server_url, "https://a:1"),
    (fields.server_url, "https://10.0.0.1:65535"),
    (fields.server_url, "https://[fd00::1]:6443/"),
)

REFUSED: tuple[tuple[Check, str], ...] = (
    (fields.schedule, ""),
    (fields.schedule, "@daily"),
    (fields.schedule, "2 * * *"),
    (fields.schedule, "0 0 2 * * *"),
    (fields.schedule, "60 2 * * *"),
    (fields.schedule, "0 2 * * */0"),
    (fields.schedule, "0 2 1? * *"),
    (fields.schedule, "0 2 * * ?#2"),
    (fields.schedule, "0 2 31 2 ?"),
    (fields.schedule, "0 0 31 2 *"),
    (fields.schedule, "0 2 * * *" + ",1" * 200),
    (fields.time_zone, ""),
    (fields.time_zone, "Europe"),
    (fields.time_zone, "Europe/Bonn"),
    (fields.time_zone, "../etc/passwd"),
    (fields.time_zone, "/usr/share/zoneinfo/UTC"),
    (fields.time_zone, "UTC\n"),
    (fields.label_name, ""),
    (fields.label_name, "-a"),
    (fields.label_name, "a-"),
    (fields.label_name, "a\n"),
    (fields.label_name, "a" * 64),
    (fields.alias_name, "0a"),
    (fields.object_name, ".a"),
    (fields.object_name, "a."),
    (fields.object_name, "a.-b"),
    (fields.object_name, "a" * 254),
    (fields.node_name, "a" * 64),
    (fields.label_value, "-"),
    (fields.label_value, "a b"),
    (fields.label_key, ""),
    (fields.label_key, "/"),
    (fields.label_key, "/a"),
    (fields.label_key, "a/"),
    (fields.label_key, "a_b/c"),
    (fields.label_key, "a/" + "k" * 64),
    (fields.own_label_key, "tensile-kube.io/owner"),
    (fields.data_key, ""),
    (fields.data_key, "a/b"),
    (fields.resource_name, "gpu"),
    (fields.resource_name, "CPU"),
    (fields.resource_name, "hugepages-"),
    (fields.resource_name, "nvidia.com/"),
    (fields.quantity, "-1"),
    (fields.quantity, "1 Gi"),
    (fields.path, ""),
    (fields.path, "a\nb"),
    (fields.path, "a\x7f"),
    (fields.path, "a" * 4097),
    (fields.word, ""),
    (fields.word, "a" * 254),
    (fields.address, ""),
    (fields.address, "010.0.0.1"),
    (fields.address, "1.2.3.4 "),
    (fields.address, "fe80::1%eth0"),
    (fields.reachable_address, "0.0.0.0"),
    (fields.reachable_address, "::"),
    (fields.url, "HTTP://a"),
    (fields.url, "https://"),
    (fields.url, "https://a:0"),
    (fields.url, "https://a:99999"),
    (fields.url, "https://a b"),
    (fields.url, "https://a#b"),
    (fields.url, "https://-a"),
    (fields.url, "https://:p@a"),
    (fields.url, "https://@a"),
    (fields.server_url, "https://a:1?x"),
    (fields.server_url, "https://a:1#x"),
    (fields.server_url, "https://a:1//"),
    (fields.server_url, "https://a:x"),
    (fields.server_url, "//a:1"),
)


@pytest.mark.parametrize(("check", "text"), TAKEN)
def test_a_value_that_kubernetes_accepts_is_returned_unchanged(check: Check, text: str) -> None:
    """The value is not normalized."""
    assert check(text) == text


@pytest.mark.parametrize(
    ("text", "expected"),
    [("0 2 ? * 1-5", "0 2 * * 1-5"), ("0 2 13 * ?", "0 2 13 * *"), ("0 2 ? * ?", "0 2 * * *"),
     ("0 2 ?/2 * ?", "0 2 */2 * *")],
)  # fmt: skip
def test_a_question_mark_for_the_days_of_a_schedule_means_any(text: str, expected: str) -> None:
    """Kubernetes reads the schedule of a CronJob in this way."""
    assert fields.schedule(text) == expected


@pytest.mark.parametrize("text", ["? 2 * * *", "0 ? * * *", "0 2 * ? *"])
def test_a_question_mark_for_minute_hour_or_month_is_rejected(text: str) -> None:
    """It is documented for the days only, and in another field it is more likely a mistake."""
    with pytest.raises(ValueError, match="must be a cron schedule"):
        fields.schedule(text)


@pytest.mark.parametrize(("check", "text"), REFUSED)
def test_a_value_that_kubernetes_rejects_raises_an_error_with_a_message(check: Check, text: str) -> None:
    """The message is one sentence without a line break."""
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
    """The parts may have any order and fractions."""
    assert fields.duration(text) == timedelta(seconds=seconds)


@pytest.mark.parametrize(
    "value",
    ["", "0s", "0h0m", "5", "s", "-1s", "+1s", "1d", "1 s", "1s ", "1S", "1us", "5,5s", ".5s", "1.s"],
)
def test_a_text_that_is_no_duration_is_rejected(value: str) -> None:
    """It has no unit, an unknown unit, no number, or is zero or empty."""
    with pytest.raises(ValueError, match="must be"):
        fields.duration(value)


@pytest.mark.parametrize("value", [5, 0.5, None, True, [], {}])
def test_a_duration_that_is_no_text_is_rejected(value: object) -> None:
    """A number, for example, has no unit."""
    with pytest.raises(ValueError, match="must be a duration with its unit"):
        fields.duration(value)


@pytest.mark.parametrize("value", ["876001h", "9" * 39 + "h"])
def test_a_duration_of_more_than_100_years_is_rejected(value: str) -> None:
    """The error is a message and not an overflow."""
    with pytest.raises(ValueError, match="must be at most 100 years"):
        fields.duration(value)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (30, "30s"),
        (60, "1m"),
        (90, "90s"),
        (3600, "1h"),
        (5400, "90m"),
        (0.25, "0.25s"),
        (1_000_001, "1000001s"),
        (1e-4, "0.0001s"),
    ],
)
def test_a_duration_is_formatted_in_its_largest_whole_unit(seconds: float, text: str) -> None:
    """90 seconds are "90s" and not "1.5m"."""
    assert fields.write_duration(timedelta(seconds=seconds)) == text


@examples(200, derandomize=True)
@given(st.integers(min_value=1, max_value=10**8))
def test_a_formatted_duration_parses_to_the_same_duration(milliseconds: int) -> None:
    """The difference is less than 100 ms for any duration below a day, and the text has no exponent."""
    length = timedelta(milliseconds=milliseconds % 86_400_000 or 1)
    written = fields.write_duration(length)
    assert abs(fields.duration(written) - length) < timedelta(milliseconds=100)
    assert "e" not in written


@pytest.mark.parametrize(
    ("resource", "whole"),
    [("cpu", False), ("memory", False), ("pods", True), ("nvidia.com/gpu", True), ("hugepages-1Gi", True)],
)
def test_is_whole_is_true_for_devices_pods_and_huge_pages(resource: str, *, whole: bool) -> None:
    """Kubernetes counts these resources in whole numbers."""
    assert fields.is_whole(resource) is whole


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
def test_a_value_in_a_message_is_short_and_escaped(value: object, shown: str) -> None:
    """A long text may be a secret, and control characters may be commands to a terminal."""
    assert fields.show(value) == shown
