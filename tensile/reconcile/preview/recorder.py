"""Keeps what the loop did in a rehearsal, for as long as the rehearsal lasts.

A step that was refused is not kept: what stands in its way is a problem, and those are the world's to tell.
"""

from collections.abc import Iterable
from typing import NamedTuple

from tensile.errors import ClusterError
from tensile.reconcile.plan import Step
from tensile.world import Key, Problem


class Recorded(NamedTuple):
    """A step that came through, and the key that it was for."""

    key: Key
    step: Step


class Recorder:
    """Listens to a loop: `recorded` are the shown steps in their order, `broken` the rules' defects."""

    def __init__(self) -> None:
        self.recorded: list[Recorded] = []
        self.broken: list[tuple[Key, Exception]] = []

    def stepped(self, key: Key, step: Step, error: ClusterError | None) -> None:
        """Keep a step that came through and that a person decides about."""
        if error is None and step.shown:
            self.recorded.append(Recorded(key, step))

    def stuck(self, key: Key, problem: Problem) -> None:
        """Keep nothing: whether the key got rid of it is known at the end only, to the world."""

    def broke(self, key: Key, error: Exception) -> None:
        """Keep a defect: a plan that was made with it is not to be trusted."""
        self.broken.append((key, error))


def subject(key: Key) -> str:
    """Say what a key is about: "pod shop/web-1", "ConfigMap shop/settings", "orphans"."""
    kind, _, name = key.name.rpartition("/")
    where = f"{key.namespace}/{name}" if key.namespace else name
    return f"{kind or key.rule} {where}".rstrip()


def defects(broken: Iterable[tuple[Key, Exception]]) -> str:
    """Say in one line for each key why there is no plan; "" when nothing broke."""
    last = dict(broken)
    return "\n".join(
        f"{subject(key)} on {key.lower}: no plan can be made: {type(error).__name__}: {error}; "
        "this is a defect of tensile: please report it with this line"
        for key, error in sorted(last.items(), key=lambda one: one[0])
    )
