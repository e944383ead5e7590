"""Tests of `tensile apply` with clusters in memory: it shows the plan and asks before any change."""

import io
import os
import pty

import pytest
from openkit import MemoryClusters, mixed_world
from worldkit import A

from tensile.cli.apply import QUESTION, ApplyOptions, apply, is_yes, question, shown_on
from tensile.engine.plan_and_apply import Planned
from tensile.errors import TensileError
from tensile.reconcile.report import summary_line

CHANGES = {"create Pod new", "delete Pod orphan"}


class UserAtTerminal:
    """A user at a terminal; `shown_plans` are the plans that were shown before the answer."""

    def __init__(self, answer: str) -> None:
        self.answer = answer
        self.shown_plans: list[str] = []
        self.asked = 0

    def ask(self) -> bool:
        """Return the answer."""
        self.asked += 1
        assert self.shown_plans, "asked before the plan was shown"
        return is_yes(self.answer)

    def show(self, plan: Planned) -> None:
        """Record the summary of a plan."""
        self.shown_plans.append(summary_line(plan.preview))


def test_the_answer_yes_applies_the_shown_plan() -> None:
    """The plan is shown once, and the last line has its counts."""
    clusters, person = MemoryClusters(mixed_world()), UserAtTerminal("yes\n")
    done = apply(clusters.opening, ApplyOptions(ask=person.ask), person.show)
    assert person.asked == 1
    assert [one.replace("Plan", "Applied") for one in person.shown_plans] == [done]
    assert clusters.lower_writes == CHANGES


@pytest.mark.parametrize("answer", ["no\n", "\n", "", "Yes\n", "yes please\n"])
def test_any_other_answer_changes_nothing(answer: str) -> None:
    """No write is made, and the error reports that nothing was changed."""
    clusters, person = MemoryClusters(mixed_world()), UserAtTerminal(answer)
    with pytest.raises(TensileError, match=r"^Nothing was changed\.$"):
        apply(clusters.opening, ApplyOptions(ask=person.ask), person.show)
    assert clusters.writes == []


def test_a_plan_that_becomes_stale_during_the_question_is_not_applied() -> None:
    """The error asks for another `tensile apply`, because there is no plan file."""
    clusters, person = MemoryClusters(mixed_world()), UserAtTerminal("yes\n")

    def ask() -> bool:
        """Return the answer after another client has deleted a pod."""
        pods = clusters.world.lowers[A].pods
        pods.replace([one.raw for one in pods if one.name != "orphan"], 99)
        return person.ask()

    with pytest.raises(TensileError) as raised:
        apply(clusters.opening, ApplyOptions(ask=ask), person.show)
    assert "orphan: from delete to nothing" in str(raised.value)
    assert str(raised.value).endswith("\nNothing was changed. Run `tensile apply` again.")
    assert clusters.writes == []


def test_without_a_question_the_plan_is_shown_and_applied() -> None:
    """Scripts expect this; the clusters are opened once."""
    clusters, person = MemoryClusters(mixed_world()), UserAtTerminal("")
    done = apply(clusters.opening, ApplyOptions(), person.show)
    assert [one.replace("Plan", "Applied") for one in person.shown_plans] == [done]
    assert clusters.lower_writes == CHANGES
    assert clusters.opened_times == 1


def test_a_plan_without_changes_needs_no_answer() -> None:
    """The user has no decision to make."""
    clusters, person = MemoryClusters(mixed_world()), UserAtTerminal("no")
    apply(clusters.opening, ApplyOptions(), person.show)
    done = apply(clusters.opening, ApplyOptions(ask=person.ask), person.show)
    assert done == "Applied: 0 to add, 0 to change, 0 to delete (no changes)"
    assert person.asked == 0


def test_only_a_plan_with_content_is_written() -> None:
    """It is written in full, with an empty line after it."""
    clusters, stream = MemoryClusters(mixed_world()), io.StringIO()
    apply(clusters.opening, ApplyOptions(), shown_on(stream))
    text = stream.getvalue()
    assert "\n+ Pod default/new: bound to node lower-a\n" in text
    assert text.splitlines()[-2].startswith("Plan: 1 to add, ")
    assert text.endswith(")\n\n")
    apply(clusters.opening, ApplyOptions(), shown_on(stream))
    assert stream.getvalue() == text


@pytest.mark.parametrize(("typed", "agreed"), [(b"yes\n", True), (b"n\n", False), (b"\x04", False)])
def test_the_question_is_on_the_terminal(typed: bytes, agreed: bool) -> None:  # noqa: FBT001 - a parameter of the test
    """One line is read, and Ctrl-D does not agree."""
    master, slave = pty.openpty()
    with os.fdopen(slave, "r") as reading, os.fdopen(os.dup(slave), "w") as writing:
        ask = question(reading, io.StringIO(), writing)
        assert ask is not None
        os.write(master, typed)
        assert ask() is agreed
        shown = ""
        while QUESTION not in shown:  # the echo of the typed text may be read separately
            shown += os.read(master, 1000).decode()
    os.close(master)


def test_no_question_is_asked_unless_input_and_output_are_terminals() -> None:
    """A script that redirects either one is not stopped by a question."""
    master, slave = pty.openpty()
    with os.fdopen(slave, "r+b", buffering=0) as raw, io.TextIOWrapper(raw) as terminal:  # type: ignore[arg-type]
        assert question(terminal, terminal) is not None
        assert question(io.StringIO("yes\n"), terminal) is None
        assert question(terminal, io.StringIO(), io.StringIO()) is None
    os.close(master)
