"""Tests of which keys are reconciled and when: changes, dependencies, delays, the guard, opening and closing lowers."""

import asyncio
from typing import Any

import orjson
import pytest
from answering import HeldResponse
from loopkit import NAME, ONE, ONE_OF_B, TWO, LoopUnderTest, ScriptedRule, copy, event, present, present_uncached
from virtualtime import clock, in_virtual_time
from worldkit import (
    NOW,
    A,
    B,
    config_map,
    delete_observed,
    make_lower_pod,
    make_namespace,
    make_upper_pod,
    put,
    with_managed_fields,
)

from tensile.errors import Denied, Unreachable
from tensile.kube.cluster import Patch
from tensile.names import OWNER
from tensile.objects import NODE, POD, UPPER, Ref
from tensile.reconcile.desired import Absent, Decision, Patched, Watch
from tensile.reconcile.world import Key, Problem

WANTED = Decision((present(),))
DENIED = Problem("Denied", "no room")
THREE = ONE._replace(name="three")


def looks(bench: LoopUnderTest, key: Key = ONE) -> int:
    """Return how often a key was decided."""
    return bench.rule.decided_keys.count(key)


def hearing(cache: str, *, delay: float = 0.0, facts: tuple[str, ...] | None = None) -> ScriptedRule:
    """Return a rule that enqueues a key with the name of the object when a cache changes."""

    def keys(_world: object, lower: str, delta: Any) -> list[Key]:
        """Return the key with the name of the object."""
        return [Key(NAME, lower, "default", (delta.after or delta.before).name)]

    return ScriptedRule(configured_watches=(Watch(cache, keys, delay, facts),))


# Changes.


@in_virtual_time
async def test_opening_a_lower_reconciles_each_of_its_keys_once() -> None:
    """The state before is unknown, so all keys of the lower are enqueued."""
    bench = LoopUnderTest()
    for key in (ONE, TWO, ONE_OF_B):
        bench.rule.set_decisions(key, Decision())
    bench.loop.open(A)
    await bench.loop.wait_idle()
    assert bench.rule.decided_keys == [ONE, TWO]


@in_virtual_time
async def test_a_change_in_a_lower_cluster_enqueues_keys_of_that_lower_only() -> None:
    """Each lower has its own caches."""
    bench = LoopUnderTest(hearing("config_maps"))
    bench.loop.open(A)
    bench.loop.open(B)
    put(bench.world.lowers[A].config_maps, copy("one"))
    await bench.loop.wait_idle()
    assert bench.rule.decided_keys == [ONE]


@in_virtual_time
@pytest.mark.parametrize(
    ("facts", "times"),
    [((), 3), (("terminal",), 4), (("ran", "terminal"), 5), (None, 6)],
    ids=["existence", "one fact", "two facts", "everything"],
)
async def test_a_watch_may_be_limited_to_certain_facts(facts: tuple[str, ...] | None, times: int) -> None:
    """A pod is created, gets a label, runs, ends, is replaced by another pod, and is deleted."""
    bench = LoopUnderTest(hearing("upper_pods", facts=facts))
    bench.loop.open(A)
    pods = bench.world.lowers[A].upper_pods
    for status, more in (
        ({"phase": "Pending"}, {}),
        ({"phase": "Pending"}, {"labels": {"a": "b"}}),
        ({"phase": "Running"}, {}),
        ({"phase": "Succeeded"}, {}),
        ({"phase": "Pending"}, {"uid": "another"}),
    ):
        put(pods, make_upper_pod("one", status=status, **more))
        await bench.loop.wait_idle()
    delete_observed(pods, "one")
    await bench.loop.wait_idle()
    assert looks(bench) == times


@in_virtual_time
async def test_a_change_in_the_upper_cluster_enqueues_keys_of_every_open_lower() -> None:
    """Each lower decides for itself."""
    bench = LoopUnderTest(hearing("upper.config_maps"))
    bench.loop.open(A)
    put(bench.world.upper.config_maps, config_map("one"))
    await bench.loop.wait_idle()
    assert bench.rule.decided_keys == [ONE]
    bench.loop.open(B)
    put(bench.world.upper.config_maps, config_map("one", {"key": "another"}))
    await bench.loop.wait_idle()
    assert bench.rule.decided_keys == [ONE, ONE, ONE_OF_B]


@in_virtual_time
async def test_objects_of_a_first_list_are_reconciled_in_the_order_of_the_rules() -> None:
    """Each key is decided once, and urgent ones first.

    Later changes are reconciled in their own order.
    """
    bench = LoopUnderTest(hearing("config_maps"))
    config_maps = bench.world.lowers[A].config_maps
    config_maps.mark_stale()
    bench.loop.open(A)
    for key in (TWO, ONE):
        bench.rule.set_decisions(key, Decision())
    config_maps.replace([orjson.dumps(with_managed_fields(copy(name))) for name in ("one", "two")], 2_000)
    await bench.loop.wait_idle()
    assert bench.rule.decided_keys == [TWO, ONE]
    put(config_maps, copy("one"))
    await bench.loop.wait_idle()
    assert bench.rule.decided_keys == [TWO, ONE, ONE]


@in_virtual_time
async def test_a_watch_with_a_delay_combines_several_changes() -> None:
    """Changes within the delay, which starts at the first one, cause one decision."""
    bench = LoopUnderTest(hearing("nodes", delay=0.5))
    bench.loop.open(A)
    for _ in range(5):
        put(bench.world.lowers[A].nodes, {**make_namespace("one"), "kind": "Node"})
        await asyncio.sleep(0.05)
    assert looks(bench) == 0
    await asyncio.sleep(10)
    assert looks(bench) == 1


@in_virtual_time
async def test_a_cache_that_becomes_synced_enqueues_all_keys() -> None:
    """Decisions that waited for the cache can be made now, even if no object changed."""
    bench = LoopUnderTest()
    bench.rule.set_decisions(ONE, Decision())
    bench.rule.set_decisions(ONE_OF_B, Decision())
    bench.loop.open(A)
    bench.loop.open(B)
    for cache, expected in (
        (bench.world.lowers[A].accounts, [ONE]),
        (bench.world.upper.secrets, [ONE, ONE_OF_B]),
    ):
        await bench.loop.wait_idle()
        bench.rule.decided_keys.clear()
        cache.mark_stale()
        cache.replace((), 5)
        await bench.loop.wait_idle()
        assert bench.rule.decided_keys == expected


@in_virtual_time
async def test_the_keys_of_some_rules_can_be_enqueued() -> None:
    """An unreachable cluster affects its node, but not the configuration of every pod."""
    bench = LoopUnderTest(ScriptedRule(), ScriptedRule("other"), ScriptedRule("third"))
    for rule in bench.rules:
        rule.set_decisions(ONE._replace(rule=rule.name), Decision())
    bench.loop.open(A)
    await bench.loop.wait_idle()
    bench.loop.enqueue_all(A, "other", "third")
    await bench.loop.wait_idle()
    assert [len(rule.decided_keys) for rule in bench.rules] == [1, 2, 2]


@in_virtual_time
async def test_a_key_that_changes_while_in_progress_is_reconciled_again_afterwards() -> None:
    """A key is never processed twice at the same time."""
    bench, held = LoopUnderTest(hearing("config_maps")), HeldResponse()
    bench.lower.queue_responses("create", held)
    bench.rule.set_decisions(ONE, WANTED, Decision())
    bench.loop.open(A)
    await held.started.wait()
    put(bench.world.lowers[A].config_maps, copy("one"))
    await asyncio.sleep(1)
    assert looks(bench) == 1
    held.release.set()
    await bench.loop.wait_idle()
    assert looks(bench) == 2


@in_virtual_time
async def test_every_decision_has_the_current_time() -> None:
    """The loop sets the time of the world before each decision."""
    bench = LoopUnderTest()
    bench.world.now = NOW.replace(year=2000)
    seen: list[Any] = []
    bench.rule.decisions[ONE] = lambda of: seen.append(of.now) or Decision()  # type: ignore[func-returns-value]
    bench.loop.open(A)
    await bench.loop.wait_idle()
    assert seen == [NOW]


# Delays.


@in_virtual_time
async def test_a_decision_can_requeue_its_key_after_a_delay() -> None:
    """A heartbeat recurs as long as the decision requests it."""
    bench = LoopUnderTest()
    await bench.run(*[Decision(requeue_after=300.0)] * 3, Decision())
    assert (looks(bench), bench.loop.delayed) == (1, 1)
    await asyncio.sleep(10_000)
    assert (looks(bench), bench.loop.delayed) == (4, 0)


@in_virtual_time
async def test_expediting_reconciles_keys_that_are_due_soon() -> None:
    """A command that runs once does not wait for them, and a heartbeat in minutes is not due soon."""
    bench = LoopUnderTest()
    await bench.run(Decision(requeue_after=0.5), Decision(), key=ONE)
    await bench.run(Decision(requeue_after=300.0), Decision(), key=TWO)
    assert bench.loop.delayed == 2
    assert bench.loop.expedite(1.0)
    await bench.loop.wait_idle()
    assert (looks(bench, ONE), looks(bench, TWO), bench.loop.delayed) == (2, 1, 1)
    assert not bench.loop.expedite(1.0)
    assert clock() == 0
    await bench.close()


@in_virtual_time
async def test_expediting_retries_a_refused_step() -> None:
    """Otherwise the key would be decided while its step is in back-off, and would not be enqueued again."""
    bench = LoopUnderTest()
    bench.lower.queue_responses("create", Unreachable("no answer"))
    await bench.run(WANTED)
    assert bench.loop.expedite(1.0)
    await bench.loop.wait_idle()
    assert [type(one) for one in bench.observer.errors] == [Unreachable, type(None)]
    assert bench.loop.delayed == 0


# Dependencies.


@in_virtual_time
async def test_a_key_is_reconciled_after_its_dependency() -> None:
    """The dependency is enqueued first, even if nothing else enqueued it."""
    bench = LoopUnderTest()
    bench.rule.set_decisions(TWO, Decision((present("two"),)))
    await bench.run(Decision(depends_on=(TWO,)), WANTED, key=ONE)
    assert bench.observer.verbs() == ["create two", "create one"]


@in_virtual_time
async def test_a_key_is_reconciled_when_its_dependency_gets_a_problem() -> None:
    """The pod reports the problem of its dependency, and then both keys wait."""
    bench = LoopUnderTest()
    bench.lower.queue_responses("create", *[Denied("no room")] * 1000)
    seen: list[Problem | None] = []
    bench.rule.decisions[ONE] = lambda of: seen.append(of.problems.get(TWO)) or Decision(depends_on=(TWO,))  # type: ignore[func-returns-value]
    bench.rule.set_decisions(TWO, Decision((present("two"),)))
    bench.loop.open(A)
    await bench.loop.wait_idle()
    assert seen[0] is None
    assert seen[-1] == DENIED
    assert len(bench.rule.decided_keys) < 10
    await bench.close()


@in_virtual_time
async def test_a_dependent_key_sees_a_refusal_at_once() -> None:
    """It does not wait for the refused key's other steps, which may hang."""
    bench, held = LoopUnderTest(), HeldResponse()
    bench.lower.queue_responses("create", Denied("no room"))
    bench.clusters[UPPER].queue_responses("create", {"metadata": {"name": "kept"}}, held)
    seen: list[Problem | None] = []
    bench.rule.decisions[ONE] = lambda of: seen.append(of.problems.get(TWO)) or Decision(depends_on=(TWO,))  # type: ignore[func-returns-value]
    bench.rule.set_decisions(TWO, Decision((present_uncached(), present("two"))))
    bench.loop.open(A)
    await held.started.wait()
    await asyncio.sleep(0.01)
    assert seen[-1] == DENIED
    await bench.close()


@in_virtual_time
async def test_a_dependency_ends_when_the_decision_does_not_name_it_any_more() -> None:
    """A former dependency does not enqueue the key again."""
    bench = LoopUnderTest()
    await bench.run(Decision(depends_on=(TWO,)), Decision())
    before = looks(bench)
    bench.loop.add(TWO)
    await bench.loop.wait_idle()
    assert looks(bench) == before


@in_virtual_time
async def test_a_key_can_depend_on_a_key_of_another_lower() -> None:
    """Two pods of one name never run at the same time."""
    bench = LoopUnderTest()
    bench.rule.set_decisions(ONE, Decision(depends_on=(ONE_OF_B,)), WANTED)
    bench.rule.set_decisions(ONE_OF_B, Decision((present(cluster=B),)))
    bench.loop.open(A)
    bench.loop.open(B)
    await bench.loop.wait_idle()
    assert bench.observer.verbs() == ["create one", "create one"]
    assert [step.ref.cluster for step in bench.observer.steps] == [B, A]


@pytest.mark.parametrize("others", [(ONE,), (TWO,), (TWO, THREE)])
@in_virtual_time
async def test_keys_that_depend_on_each_other_are_not_reconciled_indefinitely(others: tuple[Key, ...]) -> None:
    """Neither is a key that depends on itself: a user can make two claims the data source of each other."""
    bench = LoopUnderTest()
    for key, other in zip(others, (*others[1:], ONE), strict=True):
        bench.rule.set_decisions(key, Decision(depends_on=(other,), problem=DENIED))
    await bench.run(Decision(depends_on=others[:1], problem=DENIED), key=ONE)
    assert looks(bench) < 5
    await bench.close()


@in_virtual_time
async def test_a_key_with_a_problem_of_its_own_does_not_count_as_waiting() -> None:
    """Otherwise a command that runs once would never end."""
    bench = LoopUnderTest()
    await bench.run(Decision(depends_on=(TWO,), problem=DENIED), key=ONE)
    assert bench.loop.waiting == 0
    await bench.close()


@in_virtual_time
async def test_keys_with_an_unblocked_dependency_are_counted_as_waiting() -> None:
    """A command that runs once need not wait for keys whose dependency has a problem."""
    bench = LoopUnderTest()
    bench.lower.queue_responses("create", *[Denied("no room")] * 1000)
    await bench.run(Decision(depends_on=(TWO,)), key=ONE)
    assert bench.loop.waiting == 1
    await bench.run(Decision((present("two"),)), key=TWO)
    assert bench.loop.waiting == 0
    await bench.close()


@in_virtual_time
async def test_a_key_that_reports_on_another_is_reconciled_when_its_problem_changes() -> None:
    """It does not wait for the other key."""
    bench = LoopUnderTest()
    seen: list[Problem | None] = []
    bench.rule.decisions[ONE] = lambda of: seen.append(of.problems.get(TWO)) or Decision(reports_on=(TWO,))  # type: ignore[func-returns-value]
    bench.loop.open(A)
    for decision in (Decision(problem=DENIED), Decision(problem=DENIED), Decision()):
        await bench.run(decision, key=TWO)
    assert seen == [None, DENIED, None]
    assert bench.loop.waiting == 0


# Problems.


@in_virtual_time
async def test_a_problem_is_reported_when_it_is_new() -> None:
    """The same problem is not reported at each decision, but another one is."""
    bench = LoopUnderTest()
    other = Problem("Other", "so")
    for problem in (DENIED, DENIED, other, None, DENIED):
        await bench.run(Decision(problem=problem))
    assert bench.observer.problems == [DENIED, other, DENIED]
    assert bench.world.problems == {ONE: DENIED}


@in_virtual_time
async def test_a_problem_found_while_planning_is_reported() -> None:
    """The cache contains an object of another owner with the desired name."""
    bench = LoopUnderTest()
    cache = bench.world.lowers[A].config_maps
    put(cache, config_map("one", labels={OWNER: "forged"}))
    await bench.run(WANTED)
    assert bench.world.problems[ONE].reason == "NameConflict"
    assert bench.observer.steps == []


# The guard.


def orphans(bench: LoopUnderTest, count: int, *, is_requested: bool = False) -> Decision:
    """Create lower pods of this owner, and return the decision to delete them."""
    cache = bench.world.lowers[A].pods
    entries = [put(cache, make_lower_pod(make_upper_pod(f"web-{place}"))) for place in range(count)]
    refs = [(Ref(A, POD, entry.namespace, entry.name), entry.uid) for entry in entries]
    return Decision(tuple(Absent(ref, uid, "because", requested=is_requested) for ref, uid in refs))


@in_virtual_time
async def test_many_unrequested_deletions_are_blocked() -> None:
    """All of them are blocked, and other steps of the key pass."""
    bench = LoopUnderTest()
    await bench.run(orphans(bench, 21)._replace(wanted=(*orphans(bench, 21).wanted, event())))
    assert bench.observer.verbs() == ["create told"]
    assert bench.world.problems[ONE].reason == "DeletionLimitExceeded"
    assert "21 deletions" in bench.world.problems[ONE].message
    assert {step.ref.name for step in bench.loop.held[ONE]} == {f"web-{place}" for place in range(21)}
    bench.loop.enqueue_all(A)
    await bench.loop.wait_idle()
    assert len(bench.loop.held[ONE]) == 21
    await bench.close()
    assert bench.loop.held == {}


@in_virtual_time
async def test_few_unrequested_deletions_pass() -> None:
    """Blocked deletions also pass once they are few."""
    bench = LoopUnderTest()
    await bench.run(orphans(bench, 21))
    assert bench.observer.steps == []
    await bench.run(orphans(bench, 20))
    assert len(bench.observer.steps) == 20
    assert (bench.world.problems, bench.loop.held) == ({}, {})


@pytest.mark.parametrize("forced", [False, True])
@in_virtual_time
async def test_requested_or_forced_deletions_pass(forced: bool) -> None:  # noqa: FBT001 - a parameter
    """The guard only blocks deletions that no user requested."""
    bench = LoopUnderTest(forced=forced)
    await bench.run(orphans(bench, 50, is_requested=not forced))
    assert len(bench.observer.steps) == 50


@in_virtual_time
async def test_a_single_unrequested_deletion_is_blocked_until_caches_are_synced() -> None:
    """It passes without a further event when they are."""
    bench = LoopUnderTest()
    bench.world.lowers[A].foreign_pods.mark_stale()
    await bench.run(orphans(bench, 1))
    assert bench.observer.steps == []
    assert bench.world.problems[ONE].reason == "CachesNotSynced"
    bench.world.lowers[A].foreign_pods.replace((), 9)
    await bench.loop.wait_idle()
    assert bench.observer.verbs() == ["delete web-0"]
    assert bench.world.problems == {}


@in_virtual_time
async def test_an_unrequested_status_patch_counts_for_the_guard() -> None:
    """Setting a pod to Failed is as severe as deleting it."""
    bench = LoopUnderTest()
    lost = [
        Patched(Ref(UPPER, POD, "default", f"web-{n}"), Patch("merge-patch", {}), "lost", "status", requested=False)
        for n in range(21)
    ]
    await bench.run(Decision(tuple(lost)))
    assert bench.observer.steps == []


# Opening and closing lowers.


@in_virtual_time
async def test_a_lower_that_hangs_does_not_delay_another() -> None:
    """Each lower has its own queue."""
    bench, held = LoopUnderTest(), HeldResponse()
    bench.lower.queue_responses("create", held)
    bench.rule.set_decisions(ONE, WANTED)
    bench.rule.set_decisions(ONE_OF_B, Decision((present(cluster=B),)))
    bench.loop.open(A)
    bench.loop.open(B)
    await held.started.wait()
    await asyncio.sleep(1)
    assert [step.ref.cluster for step in bench.observer.steps] == [B]
    assert bench.loop.depth == {A: 1, B: 0}
    await bench.close()


@in_virtual_time
async def test_a_closed_lower_is_not_reconciled_any_more() -> None:
    """Steps in progress are canceled, its problems are removed, and changes of its caches are ignored."""
    bench, held = LoopUnderTest(hearing("config_maps")), HeldResponse()
    bench.lower.queue_responses("create", Denied("no room"), held)
    await bench.run(Decision((present(),)), key=ONE)
    await bench.run(Decision(problem=DENIED), key=ONE_OF_B)
    bench.rule.set_decisions(TWO, Decision((present("two"),)))
    bench.loop.add(TWO)
    await held.started.wait()
    await bench.loop.close(A)
    assert bench.world.problems == {ONE_OF_B: DENIED}
    assert bench.loop.depth == {B: 0}
    bench.rule.decided_keys.clear()
    put(bench.world.lowers[A].config_maps, copy("one"))
    bench.world.lowers[A].config_maps.mark_stale()
    bench.world.lowers[A].config_maps.replace((), 5)
    bench.loop.add(ONE)
    await asyncio.sleep(100)
    assert bench.rule.decided_keys == []
    assert (bench.loop.delayed, bench.loop.waiting) == (0, 0)


@in_virtual_time
async def test_closing_a_lower_removes_its_dependencies_and_back_off() -> None:
    """This includes the keys that it reports on, and the remaining back-off of refused steps."""
    bench = LoopUnderTest()
    bench.lower.queue_responses("create", *[Unreachable("no answer")] * 20)
    await bench.run(Decision(problem=DENIED), key=ONE_OF_B)
    await bench.run(Decision((present(),), depends_on=(TWO,), reports_on=(ONE_OF_B,)))
    await asyncio.sleep(20)
    assert bench.loop.waiting == 1
    assert list(bench.loop._reporters.dependents(ONE_OF_B)) == [ONE]
    await bench.loop.close(A)
    assert bench.loop.waiting == 0
    assert list(bench.loop._reporters.dependents(ONE_OF_B)) == []
    before = len(bench.observer.steps)
    await bench.run(WANTED)
    assert len(bench.observer.steps) == before + 1
    await bench.close()


@in_virtual_time
async def test_changes_of_a_removed_lower_are_ignored() -> None:
    """Its caches may change while they are being removed."""
    bench = LoopUnderTest(hearing("config_maps"))
    bench.rule.configured_watches = (
        *bench.rule.configured_watches,
        Watch("config_maps", lambda world, lower, _: world.lowers[lower].caches()),
    )
    bench.loop.open(A)
    await bench.loop.close(A)
    cache = bench.world.lowers.pop(A).config_maps
    put(cache, copy("one"))
    assert bench.rule.decided_keys == []


@in_virtual_time
async def test_a_lower_records_the_time_since_which_it_is_reconciled() -> None:
    """A lower that is not open yet has no time."""
    bench = LoopUnderTest()
    bench.loop.open(A)
    assert (bench.world.lowers[A].since, bench.world.lowers[B].since) == (NOW, None)
    await bench.close()


@in_virtual_time
async def test_a_lower_can_be_opened_again() -> None:
    """After a change of its connection all keys are reconciled again, and each change enqueues a key once."""
    bench = LoopUnderTest(hearing("config_maps"))
    bench.rule.set_decisions(ONE, Decision())
    bench.loop.open(A)
    await bench.loop.close(A)
    bench.loop.open(A)
    await bench.loop.wait_idle()
    assert looks(bench) == 1
    put(bench.world.lowers[A].config_maps, copy("one"))
    await bench.loop.wait_idle()
    assert looks(bench) == 2


@in_virtual_time
async def test_a_key_of_a_lower_that_is_not_open_is_ignored() -> None:
    """It is reconciled when that lower is opened."""
    bench = LoopUnderTest()
    bench.rule.set_decisions(ONE_OF_B, Decision())
    bench.loop.add(ONE_OF_B)
    bench.loop.add(ONE_OF_B, 5.0)
    await bench.run(Decision(depends_on=(ONE_OF_B,)), Decision())
    assert bench.rule.decided_keys == [ONE]
    bench.loop.open(B)
    await bench.loop.wait_idle()
    assert ONE_OF_B in bench.rule.decided_keys


@in_virtual_time
async def test_the_response_to_an_upper_patch_goes_into_the_upper_clusters_cache() -> None:
    """The next decision of any lower sees it."""
    bench = LoopUnderTest()
    node = Ref(UPPER, NODE, "", "lower-a")
    bench.clusters[UPPER].queue_responses(
        "patch", {"metadata": {"name": "lower-a", "uid": "node", "resourceVersion": "90"}, "spec": {"x": 1}}
    )
    await bench.run(Decision((Patched(node, Patch("merge-patch", {"spec": {"x": 1}}), "because"),)), Decision())
    entry = bench.world.upper.nodes.get("", "lower-a")
    assert entry is not None
    assert entry.version == 90
