"""A loop to test with: rules that say what they are told, clusters that answer on demand, an observer."""

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from answering import Answering
from virtualtime import clock
from worldkit import NOW, A, B, config_map, marked, thing, world

from tensile.errors import ClusterError
from tensile.objects import CONFIG_MAP, EVENT, LEASE, UPPER, Manifest, Ref
from tensile.reconcile.desired import Decision, Present, Watch
from tensile.reconcile.loop import Loop, Timing
from tensile.reconcile.plan import Step
from tensile.reconcile.world import Key, Problem, World

NAME = "rule"
ONE, TWO = Key(NAME, A, "default", "one"), Key(NAME, A, "default", "two")
ELSEWHERE = Key(NAME, B, "default", "one")
Says = Callable[[World], Decision]


@dataclass
class ScriptedRule:
    """A rule that says what it is told to; `looks` are the keys that it was asked about."""

    name: str = NAME
    says: dict[Key, Says] = field(default_factory=dict)
    hears: tuple[Watch, ...] = ()
    looks: list[Key] = field(default_factory=list)

    def watches(self) -> tuple[Watch, ...]:
        """Return the routes laid out."""
        return self.hears

    def keys(self, _world: World, lower: str) -> Iterator[Key]:
        """Yield every key that there is something to say about."""
        yield from (key for key in self.says if key.lower == lower)

    def decide(self, key: Key, of: World) -> Decision:
        """Describe it."""
        self.looks.append(key)
        return self.says[key](of) if key in self.says else Decision()

    def say(self, key: Key, *decisions: Decision) -> None:
        """Return these decisions one after the other, and the last one from then on."""
        left = list(decisions)
        self.says[key] = lambda _: left.pop(0) if len(left) > 1 else left[0]


@dataclass
class Noted:
    """An observer that keeps what it hears; `errors` are in the order of the steps, None for one that came through."""

    steps: list[Step] = field(default_factory=list)
    errors: list[ClusterError | None] = field(default_factory=list)
    troubles: list[Problem] = field(default_factory=list)
    defects: list[Exception] = field(default_factory=list)

    def on_step(self, _key: Key, step: Step, error: ClusterError | None) -> None:
        """Keep a step."""
        self.steps.append(step)
        self.errors.append(error)

    def on_blocked(self, _key: Key, problem: Problem) -> None:
        """Keep a problem."""
        self.troubles.append(problem)

    def on_rule_error(self, _key: Key, error: Exception) -> None:
        """Keep a defect."""
        self.defects.append(error)

    def verbs(self) -> list[str]:
        """Describe the steps in order: "create one"."""
        return [f"{step.verb} {step.ref.name}" for step in self.steps]


class LoopUnderTest:
    """A loop over lower-a and lower-b with one rule or more, opened by the test."""

    def __init__(self, *rules: ScriptedRule, forced: bool = False) -> None:
        self.world = world()
        self.rules = rules or (ScriptedRule(),)
        self.rule = self.rules[0]
        self.noted = Noted()
        self.clusters = {name: Answering(name) for name in (UPPER, A, B)}
        self.lower = self.clusters[A]
        timing = Timing(lambda: NOW, lambda: 0.5)
        self.loop = Loop(self.world, self.rules, self.clusters, self.noted, timing, forced=forced)

    async def run(self, *decisions: Decision, key: Key = ONE) -> None:
        """Let the rule decide so about a key, and return when the loop is idle."""
        self.rule.say(key, *decisions)
        if key.lower not in self.loop.depth:
            self.loop.open(key.lower)
        else:
            self.loop.add(key)
        await self.loop.wait_idle()

    async def close(self) -> None:
        """Close what is open."""
        for lower in tuple(self.loop.depth):
            await self.loop.close(lower)


def copy(name: str = "one", data: dict[str, str] | None = None) -> Manifest:
    """Make a ConfigMap of ours."""
    return marked(config_map(name, data), "above")


def present(name: str = "one", data: dict[str, str] | None = None, cluster: str = A) -> Present:
    """Want a ConfigMap of ours."""
    ref = Ref(cluster, CONFIG_MAP, "default", name)
    return Present(ref, copy(name, data), "because", sections=("metadata.labels", "data"))


def unfollowed(name: str = "kept") -> Present:
    """Want something above that nobody follows, and that is no Event: it is written however often it is said."""
    return Present(Ref(UPPER, LEASE, "default", name), thing("Lease", name), "because")


def event(name: str = "told") -> Present:
    """Want something told."""
    return Present(Ref(UPPER, EVENT, "default", name), thing("Event", name), "because")


async def until(seconds: float) -> None:
    """Let time pass up to a moment after the test's beginning."""
    await asyncio.sleep(max(seconds - clock(), 0))
