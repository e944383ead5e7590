"""What a recorder keeps of all that a loop tells it."""

from msgspec.structs import replace
from previewkit import KEY, A, config, create, delete, pod

from tensile.errors import Denied
from tensile.reconcile.report import RecordedStep, Recorder, defects
from tensile.reconcile.world import Key, Problem


def test_steps_that_came_through_are_kept_in_their_order() -> None:
    """Each with the key that it was for."""
    recorder = Recorder()
    steps = [create(config()), delete(pod())]
    for step in steps:
        recorder.on_step(KEY, step, None)
    assert recorder.recorded == [RecordedStep(KEY, step) for step in steps]


def test_a_refused_step_is_not_kept() -> None:
    """It did not happen; what stands in its way is a problem."""
    recorder = Recorder()
    recorder.on_step(KEY, create(config()), Denied("no"))
    recorder.on_blocked(KEY, Problem("Denied", "no"))
    assert recorder.recorded == []
    assert recorder.broken == []


def test_a_step_that_nobody_decides_about_is_not_kept() -> None:
    """Status and events are no part of a plan."""
    recorder = Recorder()
    recorder.on_step(KEY, replace(create(config()), in_plan=False), None)
    assert recorder.recorded == []


def test_a_defect_is_told_with_what_it_was_about() -> None:
    """One line for each key, the last word of each, so that a report of it helps."""
    recorder = Recorder()
    recorder.on_rule_error(Key("pod", A, "shop", "web"), KeyError("earlier"))
    recorder.on_rule_error(Key("pod", A, "shop", "web"), KeyError("uid"))
    recorder.on_rule_error(Key("dependency", A, "shop", "ConfigMap/settings"), ValueError("odd"))
    report = "this is a bug in tensile: please report this line"
    assert defects(recorder.broken).split("\n") == [
        f"ConfigMap shop/settings on lower-a: planning failed: ValueError: odd; {report}",
        f"pod shop/web on lower-a: planning failed: KeyError: 'uid'; {report}",
    ]


def test_without_defects_there_is_nothing_to_tell() -> None:
    """The words can be asked for without asking first."""
    assert defects([]) == ""
