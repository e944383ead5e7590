"""Hostile tenants beside honest load in memory, in short: `python -m bench.model.hostility` plays 2,000 sequences."""

import asyncio
from collections.abc import Callable

import pytest

from bench.model.hostility.actions import MOST, SORTS, Play, thought_up
from bench.model.hostility.arena import Arena
from bench.model.hostility.choices import RANGE, Choices
from bench.model.hostility.forging import FINALIZER, KINDS, OTHER_MANAGER, Forgery, Known, pod_below, predecessor, thing
from bench.model.hostility.hands import HONEST
from bench.model.hostility.health import Health
from bench.model.hostility.lateness import BOUND
from bench.model.hostility.marks import BELOW, Marks
from bench.model.hostility.playing import setting_of, wrong
from bench.model.hostility.real import engines
from bench.model.hostility.setting import SETTINGS, Setting
from bench.model.sequences.actions import Action, read
from bench.model.sequences.model import LOWERS
from bench.model.sequences.playing import in_no_time
from tensile.names import FIELD_MANAGER, OWNER, UPPER_NAMESPACE, UPPER_UID
from tensile.objects import (
    CONFIG_MAP,
    NAMESPACE,
    POD,
    SECRET,
    SERVICE,
    SERVICE_ACCOUNT,
    UPPER,
    Kind,
    Ref,
    metadata,
    uid,
)

SEQUENCES, PARTS = 100, 10
A, B = LOWERS
MARK = "0123456789abcdef"


@pytest.mark.usefixtures("rarely_collected")
@pytest.mark.parametrize("part", range(PARTS))
def test_whatever_hostile_tenants_do_they_reach_nothing_and_hold_up_nobody(part: int) -> None:
    """No word of another tenant's, no stranger's object, no honest pod that is late; and the engine comes to rest."""
    for seed in range(1 + part, 1 + SEQUENCES, PARTS):
        assert wrong(thought_up(seed)) == [], seed


def test_a_sequence_is_its_seeds() -> None:
    """It can be played again, as a whole or written out; every sort of action and every setting comes up."""
    every = [thought_up(seed) for seed in range(200)]
    assert every == [thought_up(seed) for seed in range(200)]
    assert {action.sort for actions in every for action in actions} == {*SORTS, "setting"}
    assert {setting_of(actions) for actions in every} == set(SETTINGS)
    assert all(MOST // 3 < len(actions) <= MOST + 1 for actions in every)
    assert all(0 <= action.number < RANGE for actions in every for action in actions)
    assert read(map(str, every[0])) == every[0]
    assert setting_of(every[0][1:]) == Setting()


def test_a_number_is_taken_apart_into_choices() -> None:
    """Each takes its part; of nothing the first is chosen."""
    choices = Choices(7 + 10 * 2 + 30 * 4)
    assert [choices.pick(range(10)), choices.pick(range(3)), choices.chance(5)] == [7, 2, False]
    assert [choices.pick("abc"), choices.chance(4)] == ["a", False]
    assert Choices(1).chance(3)


# Actions.


def forged(number: int, make: Callable[[Choices, Known], Forgery]) -> Forgery:
    """Return what a hostile tenant writes who knows a few names and UIDs."""
    marks = Marks()
    names, uids = {SECRET: ("database",), POD: ("web",)}, {POD: ("u-web",), SECRET: ("u-database",)}
    known = Known(MARK, "demo", uids, names, ("u-space", "aaa"), lambda: marks.new(BELOW))
    return make(Choices(number), known)


def test_forgeries_are_of_every_form() -> None:
    """With each marking, others' UIDs and names, finalizers, owners, sizes, and references, needed or not."""
    texts = [str(forged(seed * 7919**3, pod_below)) for seed in range(2_000)]
    wanted = ("u-web", "made-up", FINALIZER, "ownerReferences", "x" * 20_000, "secretRef", "imagePullSecrets",
              "kube-api-access-", "upper-token-u-web", "nobody", "'optional': True", OTHER_MANAGER)  # fmt: skip
    assert [words for words in wanted if not any(words in text for text in texts)] == []
    assert {forged(seed * 7919**3, thing).kind for seed in range(200)} == set(KINDS)
    assert {forged(seed, predecessor).manager for seed in range(20)} == {FIELD_MANAGER}


# The arena.


Spoil = Callable[[Arena], object]


def spoiled(setting: Setting, spoil: Spoil) -> list[str]:
    """Let honest pods run, have something be done as if the engine did it, and return what the watchman says."""

    async def run() -> list[str]:
        """Do so."""
        arena = Arena(setting)
        play = Play(arena)
        await arena.start()
        for action in read(["pod:0", "serve:0", "wait:3"]):
            await play.carry_out(action)
        await arena.calm()
        assert list(arena.watchman.wrong) == []
        done = spoil(arena)
        if asyncio.iscoroutine(done):
            await done
        arena.inspect()
        arena.inspect_at_the_end()
        await arena.crash()
        return list(arena.watchman.wrong)

    return in_no_time(run)


def puts(kind: Kind, namespace: str, of: str) -> Spoil:
    """Copy an object of bank's into a lower namespace that has none of its pods."""

    def spoil(arena: Arena) -> None:
        """Put it there."""
        found = arena.find(Ref(UPPER, kind, "bank", of))
        assert found is not None
        meta = {"name": of, "namespace": namespace, "annotations": {UPPER_UID: uid(found)}, "labels": {OWNER: MARK}}
        arena.clusters[B].place(kind, {**found, "metadata": meta})

    return spoil


@pytest.mark.parametrize(
    ("kind", "name", "namespace", "words"),
    [
        (SECRET, "database", "aaa", "not its place"),
        (SECRET, "database", "bank", "no pod bound here asks for it"),
        (CONFIG_MAP, "config", "shop", "not its place"),
        (SERVICE, "front", "bank", "no pod bound here asks for it"),
        (SERVICE_ACCOUNT, "payer", "aaa", "not its place"),
    ],
)
def test_the_watchman_sees_what_is_where_it_does_not_belong(kind: Kind, name: str, namespace: str, words: str) -> None:
    """At once, whoever put it there."""
    found = spoiled(Setting(identity="lower"), puts(kind, namespace, name))
    assert found
    assert all(one.endswith(words) for one in found), found


def test_the_watchman_sees_a_status_that_is_not_a_pod_s_own() -> None:
    """A word, or an address, of a pod of the hostile tenant's."""

    def spoil(arena: Arena) -> None:
        """Report it."""
        word = arena.ledger.marks.new(BELOW)
        status = {"phase": "Running", "podIP": "6.6.1.1", "message": word}
        arena.clusters[UPPER].alter(Ref(UPPER, POD, "bank", "web"), lambda one: one.update(status=status))

    assert len(spoiled(Setting(), spoil)) == 2


def test_the_watchman_sees_that_a_stranger_was_touched() -> None:
    """By the engine, before it happens, and afterwards."""
    ref = Ref(A, SECRET, "team", "own")

    async def spoil(arena: Arena) -> None:
        """Delete it, as the engine."""
        found = arena.find(ref)
        assert found is not None
        await arena.ways[A].delete(ref, uid=uid(found))

    assert spoiled(Setting(), spoil) == [f"delete {ref}: is a stranger's", f"{ref} is a stranger's and was touched"]


def test_the_watchman_sees_that_a_pod_is_late() -> None:
    """One that nobody makes below, as no engine runs that could."""

    async def run() -> list[str]:
        """Play a pod whose lower pod is deleted again and again."""
        arena = Arena(Setting())
        play = Play(arena)
        await arena.start()
        watching = asyncio.get_running_loop().create_task(arena.watch())
        for way in arena.ways.values():
            way.is_down = True
        await play.carry_out(Action("pod", 0))
        await asyncio.sleep(2 * BOUND)
        watching.cancel()
        await arena.crash()
        return list(arena.watchman.wrong)

    assert in_no_time(run) == ["bank/web in lower-a: is Pending above and not below for 5 s"]


def test_hostile_deeds_are_done_by_their_own_hands_in_their_own_namespaces() -> None:
    """What the one below makes is known for his, and nothing of it is anywhere else."""

    async def run() -> list[str]:
        """Do every sort of hostile action many times."""
        arena = Arena(Setting(ground="tenant"))
        play = Play(arena)
        await arena.start()
        for number in range(20):
            for sort in ("pod", "forge", "mimic", "thing", "tamper", "flood", "tell", "pretend", "stuff"):
                await play.carry_out(Action(sort, number * 7919**3))
        made = [one for kind in (POD, SECRET) for one in arena.every(B, kind) if uid(one) in arena.ledger.hostile]
        await arena.crash()
        return sorted({metadata(one)["namespace"] for one in made})

    assert in_no_time(run) == ["mallory-up"]


def test_what_a_cluster_refuses_does_not_happen() -> None:
    """A name that is taken, an object that is gone, a namespace that is not there."""

    async def run() -> list[str]:
        """Try."""
        arena = Arena(Setting())
        ref = Ref(A, SECRET, "aaa", "s")
        await arena.create(ref, {}, BELOW, FIELD_MANAGER)
        await arena.patch(ref, {"metadata": {"labels": {"a": "b"}}}, BELOW)
        await arena.patch(ref, {"metadata": {"labels": {"a": "b"}}}, BELOW, FIELD_MANAGER)
        await arena.delete(ref, {"metadata": {"uid": "u"}}, HONEST)
        return [str(arena.find(ref)), *arena.watchman.wrong]

    assert in_no_time(run) == ["None"]


def test_namespaces_are_for_whom_they_were_made() -> None:
    """One that is made for two is seen."""

    def spoil(arena: Arena) -> None:
        """Make one for another."""
        shop = arena.find(Ref(UPPER, NAMESPACE, "", "shop"))
        assert shop is not None
        notes = {UPPER_UID: uid(shop), UPPER_NAMESPACE: "shop"}
        arena.clusters[A].alter(
            Ref(A, NAMESPACE, "", "demo-bank"), lambda one: one["metadata"].update(annotations=notes)
        )

    found = spoiled(Setting(mapping="prefix"), spoil)
    assert found[0] == "namespace demo-bank in lower-a was made for shop, whose place is demo-shop"


# Real clusters, as far as that is decided without them.


def test_sequences_with_the_same_topology_share_an_engine() -> None:
    """And each is played once."""
    found = engines(range(60))
    assert sorted(seed for _, seeds in found for seed in seeds) == list(range(60))
    assert len(found) == len({setting[:3] for setting, _ in found})
    for setting, seeds in found:
        assert {setting_of(thought_up(seed, 40))[:3] for seed in seeds} == {setting[:3]}


def test_what_an_engine_takes_has_bars() -> None:
    """Of memory, and of how soon it answers."""
    health = Health(lambda: None)
    health.memory, health.slowest, health.samples = 100 << 20, 0.2, 5
    assert health.figures() == {"rss_mib": 100, "healthz_s": 0.2, "samples": 5}
    assert health.broken() == []
    health.memory, health.slowest = 301 << 20, 1.5
    assert health.broken() == ["301 MiB of memory", "/healthz took 1.50 s"]
