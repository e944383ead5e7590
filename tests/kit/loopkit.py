"""A loop to test with: scripted rules, clusters that answer on demand, and an observer."""

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from answering import FakeCluster
from virtualtime import clock
from worldkit import NOW, A, B, config_map, make_object, make_world, with_owner_marks

from tensile.errors import ClusterError
from tensile.objects import CONFIG_MAP, EVENT, LEASE, UPPER, Manifest, Ref
from tensile.reconcile.desired import Decision, Present, Watch
from tensile.reconcile.loop import Loop, Timing
from tensile.reconcile.plan import Step
from tensile.reconcile.world import Key, Problem, World

NAME = "rule"
ONE, TWO = Key(NAME, A, "default", "one"), Key(NAME, A, "default", "two")
ONE_OF_B = Key(NAME, B, "default", "one")
MakeDecision = Callable[[World], Decision]


@dataclass
class ScriptedRule:
    """A rule with scripted decisions; `decided_keys` are the keys for which `decide` was called."""

    name: str = NAME
    decisions: dict[Key, MakeDecision] = field(default_factory=dict)
    configured_watches: tuple[Watch, ...] = ()
    decided_keys: list[Key] = field(default_factory=list)

    def watches(self) -> tuple[Watch, ...]:
        """Return the configured watches."""
        return self.configured_watches

    def keys(self, _world: World, lower: str) -> Iterator[Key]:
        """Yield every key that has a decision."""
        yield from (key for key in self.decisions if key.lower == lower)

    def decide(self, key: Key, of: World) -> Decision:
        """Return the decision about a key, an empty one by default."""
        self.decided_keys.append(key)
        return self.decisions[key](of) if key in self.decisions else Decision()

    def set_decisions(self, key: Key, *decisions: Decision) -> None:
        """Set decisions that are returned one after the other, the last one repeatedly."""
        left = list(decisions)
        self.decisions[key] = lambda _: left.pop(0) if len(left) > 1 else left[0]


@dataclass
class RecordingLoopObserver:
    """An observer that records what the loop reports; `errors` match `steps`, None for a successful step."""

    steps: list[Step] = field(default_factory=list)
    errors: list[ClusterError | None] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    defects: list[Exception] = field(default_factory=list)

    def on_step(self, _key: Key, step: Step, error: ClusterError | None) -> None:
        """Record a step."""
        self.steps.append(step)
        self.errors.append(error)

    def on_blocked(self, _key: Key, problem: Problem) -> None:
        """Record a problem."""
        self.problems.append(problem)

    def on_unexpected_error(self, _key: Key, error: Exception) -> None:
        """Record a defect."""
        self.defects.append(error)

    def verbs(self) -> list[str]:
        """Return the steps in order, each as "create one"."""
        return [f"{step.verb} {step.ref.name}" for step in self.steps]


class LoopUnderTest:
    """A loop over lower-a and lower-b with one rule or more, opened by the test."""

    def __init__(self, *rules: ScriptedRule, forced: bool = False) -> None:
        self.world = make_world()
        self.rules = rules or (ScriptedRule(),)
        self.rule = self.rules[0]
        self.observer = RecordingLoopObserver()
        self.clusters = {name: FakeCluster(name) for name in (UPPER, A, B)}
        self.lower = self.clusters[A]
        timing = Timing(lambda: NOW, lambda: 0.5)
        self.loop = Loop(self.world, self.rules, self.clusters, self.observer, timing, forced=forced)

    async def run(self, *decisions: Decision, key: Key = ONE) -> None:
        """Set the rule's decisions about a key, and return when the loop is idle."""
        self.rule.set_decisions(key, *decisions)
        if key.lower not in self.loop.depth:
            self.loop.open(key.lower)
        else:
            self.loop.add(key)
        await self.loop.wait_idle()

    async def close(self) -> None:
        """Close every open lower."""
        for lower in tuple(self.loop.depth):
            await self.loop.close(lower)


def copy(name: str = "one", data: dict[str, str] | None = None) -> Manifest:
    """Make a ConfigMap that this topology owns."""
    return with_owner_marks(config_map(name, data), "above")


def present(name: str = "one", data: dict[str, str] | None = None, cluster: str = A) -> Present:
    """Make the desired state of a ConfigMap that this topology owns."""
    ref = Ref(cluster, CONFIG_MAP, "default", name)
    return Present(ref, copy(name, data), "because", sections=("metadata.labels", "data"))


def present_uncached(name: str = "kept") -> Present:
    """Make the desired state of an upper object that no cache follows and that is no Event.

    It is written as often as it is decided.
    """
    return Present(Ref(UPPER, LEASE, "default", name), make_object("Lease", name), "because")


def event(name: str = "told") -> Present:
    """Make the desired state of an Event."""
    return Present(Ref(UPPER, EVENT, "default", name), make_object("Event", name), "because")


async def sleep_until(seconds: float) -> None:
    """Sleep until so many seconds after the beginning of the test."""
    await asyncio.sleep(max(seconds - clock(), 0))
