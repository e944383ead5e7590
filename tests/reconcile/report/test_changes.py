"""Tests of which observations of a loop a recorder keeps."""

from msgspec.structs import replace
from previewkit import KEY, A, config, create, delete, pod

from tensile.errors import Denied
from tensile.reconcile.report import RecordedStep, Recorder, defects
from tensile.reconcile.world import Key, Problem


def test_successful_steps_are_recorded_in_order() -> None:
    """Each is recorded with its key."""
    recorder = Recorder()
    steps = [create(config()), delete(pod())]
    for step in steps:
        recorder.on_step(KEY, step, None)
    assert recorder.recorded == [RecordedStep(KEY, step) for step in steps]


def test_a_refused_step_is_not_recorded() -> None:
    """It had no effect, and its cause is a problem of the key."""
    recorder = Recorder()
    recorder.on_step(KEY, create(config()), Denied("no"))
    recorder.on_blocked(KEY, Problem("Denied", "no"))
    assert recorder.recorded == []
    assert recorder.broken == []


def test_a_step_that_is_not_part_of_the_plan_is_not_recorded() -> None:
    """Status patches and Events are no part of a plan."""
    recorder = Recorder()
    recorder.on_step(KEY, replace(create(config()), in_plan=False), None)
    assert recorder.recorded == []


def test_a_rule_error_is_reported_with_its_key() -> None:
    """Each key has one line with its last error, so that a bug report is useful."""
    recorder = Recorder()
    recorder.on_unexpected_error(Key("pod", A, "shop", "web"), KeyError("earlier"))
    recorder.on_unexpected_error(Key("pod", A, "shop", "web"), KeyError("uid"))
    recorder.on_unexpected_error(Key("dependency", A, "shop", "ConfigMap/settings"), ValueError("odd"))
    report = "this is a bug in tensile: please report this line"
    assert defects(recorder.broken).split("\n") == [
        f"ConfigMap shop/settings on lower-a: planning failed: ValueError: odd; {report}",
        f"pod shop/web on lower-a: planning failed: KeyError: 'uid'; {report}",
    ]


def test_without_rule_errors_the_report_is_empty() -> None:
    """A caller need not check first whether there are any."""
    assert defects([]) == ""
