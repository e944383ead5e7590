"""Queries to a rule: what it plans for a key, and which keys a change in a cache concerns."""

from typing import NamedTuple

from worldkit import A, decided, names

from tensile.kube.store import Delta, Entry
from tensile.reconcile.desired import Decision, Rule
from tensile.reconcile.plan import Plan, Step
from tensile.reconcile.world import Key, World


class Asked(NamedTuple):
    """A rule, and the key that most queries of a test are about."""

    rule: Rule
    key: Key

    def decision(self, here: World, key: Key | None = None) -> Decision:
        """Return the rule's decision."""
        return decided(self.rule, key or self.key, here)[0]

    def plan(self, here: World, key: Key | None = None) -> Plan:
        """Return the steps, and the problem."""
        return decided(self.rule, key or self.key, here)[1]

    def step(self, here: World, key: Key | None = None) -> Step:
        """Return the one step of a plan that has no problem."""
        found = self.plan(here, key)
        assert found.problem is None
        (step,) = found.steps
        return step

    def reason(self, here: World, key: Key | None = None) -> str:
        """Return the reason of the problem of a plan without steps."""
        found = self.plan(here, key)
        assert found.steps == ()
        assert found.problem is not None
        return found.problem.reason

    def heard(
        self,
        here: World,
        cache: str,
        before: Entry | None,
        after: Entry | None,
        lower: str = A,
        *,
        delay: float | None = None,
    ) -> list[str]:
        """Return the names of the keys that a change in a cache concerns: of all watches, or those with a delay."""
        routes = [one for one in self.rule.watches() if one.cache == cache and delay in (None, one.delay)]
        found = [key for route in routes for key in route.keys(here, lower, Delta(before, after))]
        assert all((key.rule, key.lower) == (self.rule.name, lower) for key in found)
        return list(names(found))

    def known(self, here: World, lower: str = A) -> list[str]:
        """Return the names of all keys that the rule has in a lower."""
        return list(names(self.rule.keys(here, lower)))
