"""Which keys are looked at, and when: changes, waits, delays, what is held back, and lowers that come and go."""

import asyncio
from typing import Any

import orjson
import pytest
from answering import Held
from loopkit import ELSEWHERE, NAME, ONE, TWO, LoopUnderTest, ScriptedRule, copy, event, present, unfollowed
from virtualtime import clock, in_virtual_time
from worldkit import NOW, A, B, config_map, drop, put, space, twin, upper_pod, written

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
    """Count how often a key was looked at."""
    return bench.rule.looks.count(key)


def hearing(cache: str, *, delay: float = 0.0, facts: tuple[str, ...] | None = None) -> ScriptedRule:
    """Make a rule that has a key named like the object looked at when a cache changes."""

    def keys(_world: object, lower: str, delta: Any) -> list[Key]:
        """Name the key."""
        return [Key(NAME, lower, "default", (delta.after or delta.before).name)]

    return ScriptedRule(hears=(Watch(cache, keys, delay, facts),))


# Changes.


@in_virtual_time
async def test_opening_a_lower_looks_at_everything_once() -> None:
    """Nothing is known of what was before."""
    bench = LoopUnderTest()
    for key in (ONE, TWO, ELSEWHERE):
        bench.rule.say(key, Decision())
    bench.loop.open(A)
    await bench.loop.wait_idle()
    assert bench.rule.looks == [ONE, TWO]


@in_virtual_time
async def test_a_change_below_concerns_its_own_lower() -> None:
    """The other one has caches of its own."""
    bench = LoopUnderTest(hearing("config_maps"))
    bench.loop.open(A)
    bench.loop.open(B)
    put(bench.world.lowers[A].config_maps, copy("one"))
    await bench.loop.wait_idle()
    assert bench.rule.looks == [ONE]


@in_virtual_time
@pytest.mark.parametrize(
    ("facts", "times"),
    [((), 3), (("terminal",), 4), (("ran", "terminal"), 5), (None, 6)],
    ids=["existence", "one fact", "two facts", "everything"],
)
async def test_a_watch_may_name_the_facts_that_concern_it(facts: tuple[str, ...] | None, times: int) -> None:
    """A pod comes, gets a label, runs, ends, is replaced by another and goes."""
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
        put(pods, upper_pod("one", status=status, **more))
        await bench.loop.wait_idle()
    drop(pods, "one")
    await bench.loop.wait_idle()
    assert looks(bench) == times


@in_virtual_time
async def test_a_change_above_concerns_every_lower_that_is_open() -> None:
    """Each decides for itself."""
    bench = LoopUnderTest(hearing("upper.config_maps"))
    bench.loop.open(A)
    put(bench.world.upper.config_maps, config_map("one"))
    await bench.loop.wait_idle()
    assert bench.rule.looks == [ONE]
    bench.loop.open(B)
    put(bench.world.upper.config_maps, config_map("one", {"key": "another"}))
    await bench.loop.wait_idle()
    assert bench.rule.looks == [ONE, ONE, ELSEWHERE]


@in_virtual_time
async def test_what_a_first_list_brings_is_looked_at_in_the_rules_order() -> None:
    """Once for each key, what is urgent first; later changes are looked at as they come."""
    bench = LoopUnderTest(hearing("config_maps"))
    config_maps = bench.world.lowers[A].config_maps
    config_maps.mark_stale()
    bench.loop.open(A)
    for key in (TWO, ONE):
        bench.rule.say(key, Decision())
    config_maps.replace([orjson.dumps(written(copy(name))) for name in ("one", "two")], 2_000)
    await bench.loop.wait_idle()
    assert bench.rule.looks == [TWO, ONE]
    put(config_maps, copy("one"))
    await bench.loop.wait_idle()
    assert bench.rule.looks == [TWO, ONE, ONE]


@in_virtual_time
async def test_changes_can_be_gathered() -> None:
    """Several within the delay are one look, counted from the first."""
    bench = LoopUnderTest(hearing("nodes", delay=0.5))
    bench.loop.open(A)
    for _ in range(5):
        put(bench.world.lowers[A].nodes, {**space("one"), "kind": "Node"})
        await asyncio.sleep(0.05)
    assert looks(bench) == 0
    await asyncio.sleep(10)
    assert looks(bench) == 1


@in_virtual_time
async def test_a_cache_that_becomes_complete_has_everything_looked_at() -> None:
    """What was not decided for want of it is decided now, though no object changed."""
    bench = LoopUnderTest()
    bench.rule.say(ONE, Decision())
    bench.rule.say(ELSEWHERE, Decision())
    bench.loop.open(A)
    bench.loop.open(B)
    for cache, expected in (
        (bench.world.lowers[A].accounts, [ONE]),
        (bench.world.upper.secrets, [ONE, ELSEWHERE]),
    ):
        await bench.loop.wait_idle()
        bench.rule.looks.clear()
        cache.mark_stale()
        cache.replace((), 5)
        await bench.loop.wait_idle()
        assert bench.rule.looks == expected


@in_virtual_time
async def test_the_keys_of_some_rules_can_be_woken() -> None:
    """A cluster that fell silent concerns its node, not every pod's configuration."""
    bench = LoopUnderTest(ScriptedRule(), ScriptedRule("other"), ScriptedRule("third"))
    for rule in bench.rules:
        rule.say(ONE._replace(rule=rule.name), Decision())
    bench.loop.open(A)
    await bench.loop.wait_idle()
    bench.loop.enqueue_all(A, "other", "third")
    await bench.loop.wait_idle()
    assert [len(rule.looks) for rule in bench.rules] == [1, 2, 2]


@in_virtual_time
async def test_a_change_while_a_key_is_worked_on_is_looked_at_afterwards() -> None:
    """One key is never worked on twice at a time."""
    bench, held = LoopUnderTest(hearing("config_maps")), Held()
    bench.lower.answer("create", held)
    bench.rule.say(ONE, WANTED, Decision())
    bench.loop.open(A)
    await held.began.wait()
    put(bench.world.lowers[A].config_maps, copy("one"))
    await asyncio.sleep(1)
    assert looks(bench) == 1
    held.go.set()
    await bench.loop.wait_idle()
    assert looks(bench) == 2


@in_virtual_time
async def test_every_decision_knows_the_time() -> None:
    """The world's clock is set for each."""
    bench = LoopUnderTest()
    bench.world.now = NOW.replace(year=2000)
    seen: list[Any] = []
    bench.rule.says[ONE] = lambda of: seen.append(of.now) or Decision()  # type: ignore[func-returns-value]
    bench.loop.open(A)
    await bench.loop.wait_idle()
    assert seen == [NOW]


# Delays.


@in_virtual_time
async def test_a_key_can_ask_to_be_looked_at_again() -> None:
    """A heartbeat comes by itself, for as long as it is asked for."""
    bench = LoopUnderTest()
    await bench.run(*[Decision(requeue_after=300.0)] * 3, Decision())
    assert (looks(bench), bench.loop.delayed) == (1, 1)
    await asyncio.sleep(10_000)
    assert (looks(bench), bench.loop.delayed) == (4, 0)


@in_virtual_time
async def test_what_was_to_come_soon_can_come_now() -> None:
    """A command that runs once does not wait for what it can have at once; a heartbeat is not soon."""
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
async def test_a_refused_step_that_is_hastened_is_tried() -> None:
    """Else it would be looked at, found resting, and forgotten."""
    bench = LoopUnderTest()
    bench.lower.answer("create", Unreachable("no answer"))
    await bench.run(WANTED)
    assert bench.loop.expedite(1.0)
    await bench.loop.wait_idle()
    assert [type(one) for one in bench.noted.errors] == [Unreachable, type(None)]
    assert bench.loop.delayed == 0


# Waits.


@in_virtual_time
async def test_a_key_that_waits_is_looked_at_when_the_other_was_done() -> None:
    """And what it waits for is looked at first, whether or not anybody asked for it."""
    bench = LoopUnderTest()
    bench.rule.say(TWO, Decision((present("two"),)))
    await bench.run(Decision(depends_on=(TWO,)), WANTED, key=ONE)
    assert bench.noted.verbs() == ["create two", "create one"]


@in_virtual_time
async def test_a_key_that_waits_for_a_refused_one_learns_of_it() -> None:
    """The pod says what is wrong with what it waits for; then both rest."""
    bench = LoopUnderTest()
    bench.lower.answer("create", *[Denied("no room")] * 1000)
    seen: list[Problem | None] = []
    bench.rule.says[ONE] = lambda of: seen.append(of.problems.get(TWO)) or Decision(depends_on=(TWO,))  # type: ignore[func-returns-value]
    bench.rule.say(TWO, Decision((present("two"),)))
    bench.loop.open(A)
    await bench.loop.wait_idle()
    assert seen[0] is None
    assert seen[-1] == DENIED
    assert len(bench.rule.looks) < 10
    await bench.close()


@in_virtual_time
async def test_who_waits_learns_of_a_refusal_at_once() -> None:
    """Not only when the refused key's other steps are through, which may hang."""
    bench, held = LoopUnderTest(), Held()
    bench.lower.answer("create", Denied("no room"))
    bench.clusters[UPPER].answer("create", {"metadata": {"name": "kept"}}, held)
    seen: list[Problem | None] = []
    bench.rule.says[ONE] = lambda of: seen.append(of.problems.get(TWO)) or Decision(depends_on=(TWO,))  # type: ignore[func-returns-value]
    bench.rule.say(TWO, Decision((unfollowed(), present("two"))))
    bench.loop.open(A)
    await held.began.wait()
    await asyncio.sleep(0.01)
    assert seen[-1] == DENIED
    await bench.close()


@in_virtual_time
async def test_a_key_waits_only_while_it_says_so() -> None:
    """What it waited for once wakes it no more."""
    bench = LoopUnderTest()
    await bench.run(Decision(depends_on=(TWO,)), Decision())
    before = looks(bench)
    bench.loop.add(TWO)
    await bench.loop.wait_idle()
    assert looks(bench) == before


@in_virtual_time
async def test_a_key_can_wait_for_one_of_another_lower() -> None:
    """Two pods of one name never run at a time."""
    bench = LoopUnderTest()
    bench.rule.say(ONE, Decision(depends_on=(ELSEWHERE,)), WANTED)
    bench.rule.say(ELSEWHERE, Decision((present(cluster=B),)))
    bench.loop.open(A)
    bench.loop.open(B)
    await bench.loop.wait_idle()
    assert bench.noted.verbs() == ["create one", "create one"]
    assert [step.ref.cluster for step in bench.noted.steps] == [B, A]


@pytest.mark.parametrize("others", [(ONE,), (TWO,), (TWO, THREE)])
@in_virtual_time
async def test_keys_that_wait_for_each_other_are_not_looked_at_for_ever(others: tuple[Key, ...]) -> None:
    """Nor is one that waits for itself: a user can make two claims the data source of each other."""
    bench = LoopUnderTest()
    for key, other in zip(others, (*others[1:], ONE), strict=True):
        bench.rule.say(key, Decision(depends_on=(other,), problem=DENIED))
    await bench.run(Decision(depends_on=others[:1], problem=DENIED), key=ONE)
    assert looks(bench) < 5
    await bench.close()


@in_virtual_time
async def test_a_key_with_a_problem_of_its_own_does_not_wait_in_hope() -> None:
    """Whatever it waits for beside that: a command that runs once would never end."""
    bench = LoopUnderTest()
    await bench.run(Decision(depends_on=(TWO,), problem=DENIED), key=ONE)
    assert bench.loop.waiting == 0
    await bench.close()


@in_virtual_time
async def test_those_who_wait_in_hope_are_counted() -> None:
    """Not those that wait for something with a problem: a command that runs once need not wait for them."""
    bench = LoopUnderTest()
    bench.lower.answer("create", *[Denied("no room")] * 1000)
    await bench.run(Decision(depends_on=(TWO,)), key=ONE)
    assert bench.loop.waiting == 1
    await bench.run(Decision((present("two"),)), key=TWO)
    assert bench.loop.waiting == 0
    await bench.close()


@in_virtual_time
async def test_a_key_that_heeds_another_hears_when_its_problem_comes_and_goes() -> None:
    """Without waiting for it: it is done all the same."""
    bench = LoopUnderTest()
    seen: list[Problem | None] = []
    bench.rule.says[ONE] = lambda of: seen.append(of.problems.get(TWO)) or Decision(reports_on=(TWO,))  # type: ignore[func-returns-value]
    bench.loop.open(A)
    for decision in (Decision(problem=DENIED), Decision(problem=DENIED), Decision()):
        await bench.run(decision, key=TWO)
    assert seen == [None, DENIED, None]
    assert bench.loop.waiting == 0


# Problems.


@in_virtual_time
async def test_a_problem_is_told_when_it_is_new() -> None:
    """Not each time it is found again; another one is."""
    bench = LoopUnderTest()
    other = Problem("Other", "so")
    for problem in (DENIED, DENIED, other, None, DENIED):
        await bench.run(Decision(problem=problem))
    assert bench.noted.troubles == [DENIED, other, DENIED]
    assert bench.world.problems == {ONE: DENIED}


@in_virtual_time
async def test_a_problem_found_while_planning_is_told() -> None:
    """A name that is taken, by an object that the cache shows."""
    bench = LoopUnderTest()
    cache = bench.world.lowers[A].config_maps
    put(cache, config_map("one", labels={OWNER: "forged"}))
    await bench.run(WANTED)
    assert bench.world.problems[ONE].reason == "NameConflict"
    assert bench.noted.steps == []


# The guard.


def orphans(bench: LoopUnderTest, count: int, *, asked: bool = False) -> Decision:
    """Want pods of ours below gone, that are there."""
    cache = bench.world.lowers[A].pods
    entries = [put(cache, twin(upper_pod(f"web-{place}"))) for place in range(count)]
    refs = [(Ref(A, POD, entry.namespace, entry.name), entry.uid) for entry in entries]
    return Decision(tuple(Absent(ref, uid, "because", requested=asked) for ref, uid in refs))


@in_virtual_time
async def test_deletions_that_nobody_asked_for_are_held_back_when_they_are_many() -> None:
    """All of them; what was asked for passes."""
    bench = LoopUnderTest()
    await bench.run(orphans(bench, 21)._replace(wanted=(*orphans(bench, 21).wanted, event())))
    assert bench.noted.verbs() == ["create told"]
    assert bench.world.problems[ONE].reason == "DeletionLimitExceeded"
    assert "21 deletions" in bench.world.problems[ONE].message
    assert {step.ref.name for step in bench.loop.held[ONE]} == {f"web-{place}" for place in range(21)}
    bench.loop.enqueue_all(A)
    await bench.loop.wait_idle()
    assert len(bench.loop.held[ONE]) == 21
    await bench.close()
    assert bench.loop.held == {}


@in_virtual_time
async def test_deletions_that_are_few_pass() -> None:
    """And what is held back passes once it is few."""
    bench = LoopUnderTest()
    await bench.run(orphans(bench, 21))
    assert bench.noted.steps == []
    await bench.run(orphans(bench, 20))
    assert len(bench.noted.steps) == 20
    assert (bench.world.problems, bench.loop.held) == ({}, {})


@pytest.mark.parametrize("forced", [False, True])
@in_virtual_time
async def test_deletions_pass_when_somebody_asked_or_forces_them(forced: bool) -> None:  # noqa: FBT001 - a parameter
    """The guard is for what nobody meant."""
    bench = LoopUnderTest(forced=forced)
    await bench.run(orphans(bench, 50, asked=not forced))
    assert len(bench.noted.steps) == 50


@in_virtual_time
async def test_nothing_unasked_is_done_from_incomplete_caches() -> None:
    """However little it is; it passes when they are complete again, by itself."""
    bench = LoopUnderTest()
    bench.world.lowers[A].foreign_pods.mark_stale()
    await bench.run(orphans(bench, 1))
    assert bench.noted.steps == []
    assert bench.world.problems[ONE].reason == "CachesNotSynced"
    bench.world.lowers[A].foreign_pods.replace((), 9)
    await bench.loop.wait_idle()
    assert bench.noted.verbs() == ["delete web-0"]
    assert bench.world.problems == {}


@in_virtual_time
async def test_a_status_that_nobody_asked_for_counts_for_the_guard() -> None:
    """A pod called lost is as good as deleted."""
    bench = LoopUnderTest()
    lost = [
        Patched(Ref(UPPER, POD, "default", f"web-{n}"), Patch("merge-patch", {}), "lost", "status", requested=False)
        for n in range(21)
    ]
    await bench.run(Decision(tuple(lost)))
    assert bench.noted.steps == []


# Lowers that come and go.


@in_virtual_time
async def test_a_lower_that_hangs_keeps_no_other_waiting() -> None:
    """Each has a queue of its own."""
    bench, held = LoopUnderTest(), Held()
    bench.lower.answer("create", held)
    bench.rule.say(ONE, WANTED)
    bench.rule.say(ELSEWHERE, Decision((present(cluster=B),)))
    bench.loop.open(A)
    bench.loop.open(B)
    await held.began.wait()
    await asyncio.sleep(1)
    assert [step.ref.cluster for step in bench.noted.steps] == [B]
    assert bench.loop.depth == {A: 1, B: 0}
    await bench.close()


@in_virtual_time
async def test_a_closed_lower_is_left_alone() -> None:
    """Work in flight is given up, nothing is remembered of it, and nothing is heard any more."""
    bench, held = LoopUnderTest(hearing("config_maps")), Held()
    bench.lower.answer("create", Denied("no room"), held)
    await bench.run(Decision((present(),)), key=ONE)
    await bench.run(Decision(problem=DENIED), key=ELSEWHERE)
    bench.rule.say(TWO, Decision((present("two"),)))
    bench.loop.add(TWO)
    await held.began.wait()
    await bench.loop.close(A)
    assert bench.world.problems == {ELSEWHERE: DENIED}
    assert bench.loop.depth == {B: 0}
    bench.rule.looks.clear()
    put(bench.world.lowers[A].config_maps, copy("one"))
    bench.world.lowers[A].config_maps.mark_stale()
    bench.world.lowers[A].config_maps.replace((), 5)
    bench.loop.add(ONE)
    await asyncio.sleep(100)
    assert bench.rule.looks == []
    assert (bench.loop.delayed, bench.loop.waiting) == (0, 0)


@in_virtual_time
async def test_nothing_of_a_closed_lower_is_remembered() -> None:
    """What its keys waited for, which problems they heeded, and how long refused steps were to rest."""
    bench = LoopUnderTest()
    bench.lower.answer("create", *[Unreachable("no answer")] * 20)
    await bench.run(Decision(problem=DENIED), key=ELSEWHERE)
    await bench.run(Decision((present(),), depends_on=(TWO,), reports_on=(ELSEWHERE,)))
    await asyncio.sleep(20)
    assert bench.loop.waiting == 1
    assert list(bench.loop._heeds.waiting_for(ELSEWHERE)) == [ONE]
    await bench.loop.close(A)
    assert bench.loop.waiting == 0
    assert list(bench.loop._heeds.waiting_for(ELSEWHERE)) == []
    before = len(bench.noted.steps)
    await bench.run(WANTED)
    assert len(bench.noted.steps) == before + 1
    await bench.close()


@in_virtual_time
async def test_changes_of_a_lower_that_is_gone_are_nobodys() -> None:
    """Its caches may be told something while they are being taken down."""
    bench = LoopUnderTest(hearing("config_maps"))
    bench.rule.hears = (*bench.rule.hears, Watch("config_maps", lambda world, lower, _: world.lowers[lower].caches()))
    bench.loop.open(A)
    await bench.loop.close(A)
    cache = bench.world.lowers.pop(A).config_maps
    put(cache, copy("one"))
    assert bench.rule.looks == []


@in_virtual_time
async def test_a_lower_knows_since_when_it_is_looked_after() -> None:
    """Nobody has looked after one that is not open yet."""
    bench = LoopUnderTest()
    bench.loop.open(A)
    assert (bench.world.lowers[A].since, bench.world.lowers[B].since) == (NOW, None)
    await bench.close()


@in_virtual_time
async def test_a_lower_can_be_opened_again() -> None:
    """Its connection changed: everything is looked at anew, and changes are heard once."""
    bench = LoopUnderTest(hearing("config_maps"))
    bench.rule.say(ONE, Decision())
    bench.loop.open(A)
    await bench.loop.close(A)
    bench.loop.open(A)
    await bench.loop.wait_idle()
    assert looks(bench) == 1
    put(bench.world.lowers[A].config_maps, copy("one"))
    await bench.loop.wait_idle()
    assert looks(bench) == 2


@in_virtual_time
async def test_a_key_of_a_lower_that_is_not_open_is_nobodys() -> None:
    """It is looked at when that lower is opened."""
    bench = LoopUnderTest()
    bench.rule.say(ELSEWHERE, Decision())
    bench.loop.add(ELSEWHERE)
    bench.loop.add(ELSEWHERE, 5.0)
    await bench.run(Decision(depends_on=(ELSEWHERE,)), Decision())
    assert bench.rule.looks == [ONE]
    bench.loop.open(B)
    await bench.loop.wait_idle()
    assert ELSEWHERE in bench.rule.looks


@in_virtual_time
async def test_a_step_above_goes_into_the_upper_clusters_cache() -> None:
    """So that the next decision, of whichever lower, sees it."""
    bench = LoopUnderTest()
    node = Ref(UPPER, NODE, "", "lower-a")
    bench.clusters[UPPER].answer(
        "patch", {"metadata": {"name": "lower-a", "uid": "node", "resourceVersion": "90"}, "spec": {"x": 1}}
    )
    await bench.run(Decision((Patched(node, Patch("merge-patch", {"spec": {"x": 1}}), "because"),)), Decision())
    entry = bench.world.upper.nodes.get("", "lower-a")
    assert entry is not None
    assert entry.version == 90
