"""`tensile apply` shows the plan and asks before it changes anything, on clusters in memory."""

import io
import os
import pty

import pytest
from openkit import MemoryClusters, busy_world
from worldkit import A

from tensile.cli.apply import QUESTION, ApplyOptions, apply, is_yes, question, shown_on
from tensile.engine.plan_and_apply import Planned
from tensile.errors import TensileError
from tensile.reconcile.report import summary_line

CHANGES = {"create Pod new", "delete Pod orphan"}


class Person:
    """Somebody at a terminal: `seen` are the plans that were shown before the answer."""

    def __init__(self, answer: str) -> None:
        self.answer = answer
        self.seen: list[str] = []
        self.asked = 0

    def ask(self) -> bool:
        """Answer."""
        self.asked += 1
        assert self.seen, "asked before the plan was shown"
        return is_yes(self.answer)

    def show(self, plan: Planned) -> None:
        """Look at a plan."""
        self.seen.append(summary_line(plan.preview))


def test_yes_makes_what_was_shown() -> None:
    """The plan is shown once; the closing line has its counts."""
    clusters, person = MemoryClusters(busy_world()), Person("yes\n")
    done = apply(clusters.opening, ApplyOptions(ask=person.ask), person.show)
    assert person.asked == 1
    assert [one.replace("Plan", "Applied") for one in person.seen] == [done]
    assert clusters.writes_below == CHANGES


@pytest.mark.parametrize("answer", ["no\n", "\n", "", "Yes\n", "yes please\n"])
def test_any_other_answer_changes_nothing(answer: str) -> None:
    """Not a single write, and an error that says so."""
    clusters, person = MemoryClusters(busy_world()), Person(answer)
    with pytest.raises(TensileError, match=r"^Nothing was changed\.$"):
        apply(clusters.opening, ApplyOptions(ask=person.ask), person.show)
    assert clusters.writes == []


def test_what_moves_during_the_question_is_not_made() -> None:
    """The error says what to do; there is no plan file to speak of."""
    clusters, person = MemoryClusters(busy_world()), Person("yes\n")

    def ask() -> bool:
        """Answer after another client deleted a pod."""
        pods = clusters.world.lowers[A].pods
        pods.replace([one.raw for one in pods if one.name != "orphan"], 99)
        return person.ask()

    with pytest.raises(TensileError) as told:
        apply(clusters.opening, ApplyOptions(ask=ask), person.show)
    assert "orphan: from delete to nothing" in str(told.value)
    assert str(told.value).endswith("\nNothing was changed. Run `tensile apply` again.")
    assert clusters.writes == []


def test_without_a_person_the_plan_is_shown_and_applied() -> None:
    """As scripts expect it, with one connection."""
    clusters, person = MemoryClusters(busy_world()), Person("")
    done = apply(clusters.opening, ApplyOptions(), person.show)
    assert [one.replace("Plan", "Applied") for one in person.seen] == [done]
    assert clusters.writes_below == CHANGES
    assert clusters.opened_times == 1


def test_a_plan_without_changes_needs_no_answer() -> None:
    """There is nothing to decide about."""
    clusters, person = MemoryClusters(busy_world()), Person("no")
    apply(clusters.opening, ApplyOptions(), person.show)
    done = apply(clusters.opening, ApplyOptions(ask=person.ask), person.show)
    assert done == "Applied: 0 to add, 0 to change, 0 to delete (no changes)"
    assert person.asked == 0


def test_a_plan_is_written_in_full_and_one_without_content_is_not() -> None:
    """With an empty line between it and what follows."""
    clusters, stream = MemoryClusters(busy_world()), io.StringIO()
    apply(clusters.opening, ApplyOptions(), shown_on(stream))
    text = stream.getvalue()
    assert "\n+ Pod default/new: bound to node lower-a\n" in text
    assert text.splitlines()[-2].startswith("Plan: 1 to add, ")
    assert text.endswith(")\n\n")
    apply(clusters.opening, ApplyOptions(), shown_on(stream))
    assert stream.getvalue() == text


@pytest.mark.parametrize(("typed", "agreed"), [(b"yes\n", True), (b"n\n", False), (b"\x04", False)])
def test_the_question_is_on_the_terminal(typed: bytes, agreed: bool) -> None:  # noqa: FBT001 - a parameter of the test
    """One line is read; Ctrl-D is no answer."""
    master, slave = pty.openpty()
    with os.fdopen(slave, "r") as reading, os.fdopen(os.dup(slave), "w") as writing:
        ask = question(reading, io.StringIO(), writing)
        assert ask is not None
        os.write(master, typed)
        assert ask() is agreed
        shown = ""
        while QUESTION not in shown:  # the echo of what was typed can come alone
            shown += os.read(master, 1000).decode()
    os.close(master)


def test_nobody_is_asked_without_a_terminal_to_read_from_and_one_to_write_to() -> None:
    """A script that redirects either is not stopped."""
    master, slave = pty.openpty()
    with os.fdopen(slave, "r+b", buffering=0) as raw, io.TextIOWrapper(raw) as terminal:  # type: ignore[arg-type]
        assert question(terminal, terminal) is not None
        assert question(io.StringIO("yes\n"), terminal) is None
        assert question(terminal, io.StringIO(), io.StringIO()) is None
    os.close(master)
