"""Tests that values in the engine's own formats are harmless, even if another client has written them.

The engine writes annotations on objects, but anyone who may change the object can change them, in the upper or in a
lower cluster.
"""

from datetime import UTC, datetime
from typing import Any

import orjson
import pytest
from podkit import lower_context, make_lower_pod, pod
from podviewkit import reflected_conditions, upper_status

from tensile.kubelet.pods.conditions import DISRUPTION
from tensile.kubelet.pods.projection import mutable_metadata
from tensile.kubelet.pods.update import image_patch
from tensile.kubelet.stats.usage import milliseconds, node_samples, pod_samples
from tensile.names import DESCHEDULE_COUNT, KEPT_OFF, TOKEN_TERM, TRIED, WRITTEN_IMAGES, WRITTEN_KEYS
from tensile.objects import POD, deleted_at, later, timestamp
from tensile.policy.descheduler.limits import eviction_records
from tensile.policy.descheduler.replacement import successor_of, without_avoided_nodes
from tensile.reconcile.apply import term_of
from tensile.reconcile.dryrun.semantics import marked_for_deletion

TEXTS = (
    "",
    " ",
    "{",
    "null",
    "7",
    "1e400",
    '"text"',
    "[]",
    '["a"]',
    "[" * 2_000,
    "[" * 300 + "]" * 300,
    "{}",
    '{"labels":5}',
    '{"labels":true,"annotations":1.5}',
    '{"labels":"app"}',
    '{"labels":{"app":1}}',
    '{"labels":[5,null,["app"],{"app":1}]}',
    '{"labels":null,"annotations":null}',
    '{"main":{"a":[]}}',
    '{"main":5}',
    "\x00",
    "\u2028",
    "9" * 5_000,
)
"""Values for an annotation that contains JSON."""


def noted(**notes: str) -> dict[str, Any]:
    """Return an object with annotations."""
    return {"metadata": {"name": "web", "namespace": "default", "labels": {"app": "2"}, "annotations": notes}}


@pytest.mark.parametrize("text", TEXTS)
def test_an_invalid_record_of_keys_hides_no_desired_label(text: str) -> None:
    """It counts as absent, so the desired labels are written."""
    lower = noted(**{WRITTEN_KEYS: text, WRITTEN_IMAGES: text})
    written = mutable_metadata(pod(labels={"app": "1", "new": "x"}), lower_context(), lower)
    assert written["labels"]["new"] == "x"
    assert orjson.loads(written["annotations"][WRITTEN_KEYS])["labels"]


@pytest.mark.parametrize("text", ['{"labels":5}', '{"labels":"app"}', '{"labels":{"app":1}}', '{"labels":null}'])
def test_a_record_of_keys_in_another_form_counts_as_absent(text: str) -> None:
    """So a key that another client set in the lower pod is overwritten, as without a record."""
    assert (
        mutable_metadata(pod(labels={"app": "1"}), lower_context(), noted(**{WRITTEN_KEYS: text}))["labels"]["app"]
        == "1"
    )


@pytest.mark.parametrize("text", TEXTS)
def test_an_invalid_record_of_images_hides_no_changed_image(text: str) -> None:
    """An image that differs is sent."""
    lower = {**noted(**{WRITTEN_IMAGES: text}), "spec": {"containers": [{"name": "main", "image": "other:1"}]}}
    patch = image_patch(pod(), lower)
    assert patch is not None
    assert patch["spec"]["containers"] == [{"name": "main", "image": "app:1"}]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "/PT",
        "/PT5S",
        "2026-01-01T00:00:00Z",
        "2026-01-01T00:00:00Z/PT",
        "2026-01-01T00:00:00Z/PT-5S",
        "2026-01-01T00:00:00Z/PT" + "9" * 11 + "S",
        "2026-01-01T00:00:00Z/PT" + "9" * 400 + "S",
        "2026-01-01T00:00:00Z/PT" + "9" * 5_000 + "S",
        "2026-01-01T00:00:00+00:00/PT5S",
        "99999-01-01T00:00:00Z/PT5S",
        "now/PT5S",
        "\x00/PT5S",
    ],
)
def test_an_invalid_token_term_counts_as_absent(text: str) -> None:
    """Tokens without a term are issued again."""
    assert term_of(noted(**{TOKEN_TERM: text})) is None


@pytest.mark.parametrize("since", ["1000-01-01T00:00:00Z", "2026-01-01T00:00:00Z", "9999-12-31T23:59:59Z"])
@pytest.mark.parametrize("seconds", ["0", "5", "9" * 10])
def test_any_valid_token_term_has_an_end_that_is_a_date(since: str, seconds: str) -> None:
    """This holds however long the annotation claims that the tokens are valid."""
    term = term_of(noted(**{TOKEN_TERM: f"{since}/PT{seconds}S"}))
    assert term is not None
    assert isinstance(term.time_at(0.8), datetime)


NOTES = (
    "5",
    "{}",
    "[5]",
    "[null]",
    '[{"owner":"a"}]',
    '[{"owner":"a","pod":"b","at":"2026-01-01T00:00:00"}]',
    '[{"owner":"a","pod":"b","at":"now"}]',
    '[{"owner":"a","pod":"b","at":1e400}]',
    '[{"owner":"a","pod":"b","at":"2026-01-01T00:00:00Z","nodes":"abc"}]',
    '[{"owner":5,"pod":"b","at":"2026-01-01T00:00:00Z"}]',
    "[" * 2_000,
)


@pytest.mark.parametrize("text", [*TEXTS, *NOTES])
def test_an_invalid_record_of_evicted_pods_is_empty(text: str) -> None:
    """None of these values is a valid record of the descheduler."""
    assert eviction_records(noted(**{TRIED: text})) == []


@pytest.mark.parametrize("text", [*TEXTS, ",,", "vk-a,\x00", "²", "-5", "1" * 9, "1" * 10, "٣"])
def test_invalid_annotations_about_a_pods_moves_cause_no_error(text: str) -> None:
    """The replacement pod is valid, whatever the excluded nodes and the count of moves are."""
    upper = {**pod(), **noted(**{KEPT_OFF: text, DESCHEDULE_COUNT: text})}
    made = successor_of(upper, ["vk-b"])
    assert made["metadata"]["annotations"][DESCHEDULE_COUNT].isdecimal()
    assert without_avoided_nodes(made)["spec"]["containers"]
    assert orjson.dumps(made)


ENDS = ("1000-01-01T00:00:00Z", "1860-05-22T04:22:12Z", "2026-11-23T04:39:20Z", "2319-03-05T04:26:38Z")
GRACES = (0, 1, 9_223_372_036, 99_999_999_999, 2**62, 2**63 - 1)


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("grace", GRACES)
def test_any_stored_deletion_time_and_grace_period_yields_a_valid_time(end: str, grace: int) -> None:
    """An apiserver accepts any number of seconds, and its clock wraps around."""
    ending = {"deletionTimestamp": end, "deletionGracePeriodSeconds": grace}
    lower = make_lower_pod({"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}, **ending)
    since = reflected_conditions(pod(), lower, 1)[DISRUPTION]
    assert since is not None
    assert len(since["lastTransitionTime"]) == len("2026-11-23T04:39:20Z")
    assert since["lastTransitionTime"] == timestamp(deleted_at(lower)) <= end
    assert upper_status(pod(), lower, generation=1) is not None


@pytest.mark.parametrize("grace", [*GRACES, -1, -(2**63)])
@pytest.mark.parametrize("requested", [None, 0, 30, 2**63 - 1])
def test_the_planned_deletion_of_a_pod_with_any_grace_period_has_a_valid_time(
    grace: int, requested: int | None
) -> None:
    """It is valid also after a second deletion."""
    now = datetime(2026, 11, 23, tzinfo=UTC)
    upper = pod({"terminationGracePeriodSeconds": grace})
    once = marked_for_deletion(POD, upper, requested, now)
    again = marked_for_deletion(POD, once, 0, now)
    for ending in (once, again):
        assert len(ending["metadata"]["deletionTimestamp"]) == len("2026-11-23T04:39:20Z")


@pytest.mark.parametrize("seconds", [0, 1.5, -1, 1e300, -1e300, 2**63, -(2**63), float("inf"), 10**400])
def test_adding_any_seconds_to_a_time_yields_a_valid_time(seconds: float) -> None:
    """The result is between the first and the last time that can be written."""
    found = later(datetime(2026, 1, 1, tzinfo=UTC), seconds)
    assert 1000 <= found.year <= 9999
    assert len(timestamp(found)) == len("2026-11-23T04:39:20Z")


METRICS = {"timestamp": "2026-01-01T00:00:00Z", "window": "15s", "usage": {"cpu": "1n", "memory": "1Ki"}}


@pytest.mark.parametrize(
    "change",
    [
        {"timestamp": "2026-01-01T00:00:00"},
        {"timestamp": "now"},
        {"timestamp": 5},
        {"window": "9" * 400 + "h"},
        {"window": "1e400s"},
        {"window": "25h"},
        {"window": ""},
        {"window": None},
        {"usage": {"cpu": "1e400e", "memory": "1"}},
        {"usage": {"cpu": 5, "memory": "1"}},
        {"usage": []},
    ],
)
def test_an_invalid_answer_of_a_metrics_api_raises_a_value_error(change: dict[str, Any]) -> None:
    """The error is for nodes and for pods, and callers turn it into an answer."""
    node = {**METRICS, **change}
    container = {"name": "c", "usage": node["usage"]}
    one = {"metadata": {"name": "p"}, **{field: node[field] for field in ("timestamp", "window")}}
    with pytest.raises(ValueError, match=r"."):
        node_samples(orjson.dumps({"items": [node]}))
    with pytest.raises(ValueError, match=r"."):
        pod_samples(orjson.dumps({"items": [{**one, "containers": [container]}]}))


@pytest.mark.parametrize("body", [b"[" * 100_000, b'{"items":' + b"[" * 5_000, b'{"x":' + b"[" * 5_000, b"", b"\xff"])
def test_a_deeply_nested_answer_raises_a_value_error(body: bytes) -> None:
    """It does not count as a defect of the engine."""
    for read in (node_samples, pod_samples):
        with pytest.raises(ValueError, match=r"."):
            read(body)


@pytest.mark.parametrize(
    ("text", "found"),
    [("0001-01-01T00:00:00+00:00", 0), ("9999-12-31T23:59:59.999999+00:00", 253_402_300_799_000)],
)
def test_a_time_out_of_range_becomes_the_nearest_valid_time(text: str, found: int) -> None:
    """Clients of the statistics get a time that can be written."""
    assert milliseconds(datetime.fromisoformat(text)) == found
