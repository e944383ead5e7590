"""Queries to a rule: what it plans for a key, and which keys a change in a cache concerns."""

from typing import NamedTuple

from worldkit import A, decision_and_plan, sorted_names

from tensile.kube.store import Delta, Entry
from tensile.reconcile.desired import Decision, Rule
from tensile.reconcile.plan import Plan, Step
from tensile.reconcile.world import Key, World


class RuleUnderTest(NamedTuple):
    """A rule, and the key that most queries of a test are about."""

    rule: Rule
    key: Key

    def decision(self, world: World, key: Key | None = None) -> Decision:
        """Return the rule's decision."""
        return decision_and_plan(self.rule, key or self.key, world)[0]

    def plan(self, world: World, key: Key | None = None) -> Plan:
        """Return the steps, and the problem."""
        return decision_and_plan(self.rule, key or self.key, world)[1]

    def step(self, world: World, key: Key | None = None) -> Step:
        """Return the one step of a plan that has no problem."""
        found = self.plan(world, key)
        assert found.problem is None
        (step,) = found.steps
        return step

    def reason(self, world: World, key: Key | None = None) -> str:
        """Return the reason of the problem of a plan without steps."""
        found = self.plan(world, key)
        assert found.steps == ()
        assert found.problem is not None
        return found.problem.reason

    def affected_keys(
        self,
        world: World,
        cache: str,
        before: Entry | None,
        after: Entry | None,
        lower: str = A,
        *,
        delay: float | None = None,
    ) -> list[str]:
        """Return the names of the keys that a change in a cache concerns: of all watches, or those with a delay."""
        routes = [one for one in self.rule.watches() if one.cache == cache and delay in (None, one.delay)]
        found = [key for route in routes for key in route.keys(world, lower, Delta(before, after))]
        assert all((key.rule, key.lower) == (self.rule.name, lower) for key in found)
        return list(sorted_names(found))

    def keys_in_lower(self, world: World, lower: str = A) -> list[str]:
        """Return the names of all keys that the rule has in a lower."""
        return list(sorted_names(self.rule.keys(world, lower)))
