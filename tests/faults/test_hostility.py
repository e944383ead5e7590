"""Tests of hostile tenants beside honest load in memory; `python -m bench.model.hostility` plays 2,000 sequences."""

import asyncio
from collections.abc import Callable

import pytest

from bench.model.hostility.actions import MOST, SORTS, ActionRunner, random_actions
from bench.model.hostility.choices import RANGE, Choices
from bench.model.hostility.forging import FINALIZER, KINDS, OTHER_MANAGER, Forgery, Known, pod_below, predecessor, thing
from bench.model.hostility.health import Health
from bench.model.hostility.lateness import BOUND
from bench.model.hostility.markers import BELOW, Markers
from bench.model.hostility.real import engines
from bench.model.hostility.runner import setting_of, wrong
from bench.model.hostility.setting import SETTINGS, Setting
from bench.model.hostility.simulation import TenantSimulation
from bench.model.hostility.tenant_api import HONEST
from bench.model.sequences.actions import Action, read
from bench.model.sequences.model import LOWERS
from bench.model.sequences.runner import run_in_virtual_time
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
def test_hostile_tenants_neither_reach_nor_delay_other_tenants(part: int) -> None:
    """No data of another tenant and no foreign object is affected, no honest pod is late, and the engine settles."""
    for seed in range(1 + part, 1 + SEQUENCES, PARTS):
        assert wrong(random_actions(seed)) == [], seed


def test_a_sequence_is_determined_by_its_seed() -> None:
    """It can be replayed by its seed or its text, and every type of action and every setting occurs."""
    every = [random_actions(seed) for seed in range(200)]
    assert every == [random_actions(seed) for seed in range(200)]
    assert {action.sort for actions in every for action in actions} == {*SORTS, "setting"}
    assert {setting_of(actions) for actions in every} == set(SETTINGS)
    assert all(MOST // 3 < len(actions) <= MOST + 1 for actions in every)
    assert all(0 <= action.number < RANGE for actions in every for action in actions)
    assert read(map(str, every[0])) == every[0]
    assert setting_of(every[0][1:]) == Setting()


def test_a_number_is_split_into_choices() -> None:
    """Each choice uses a part of the number; once nothing is left of it, the first option is chosen."""
    choices = Choices(7 + 10 * 2 + 30 * 4)
    assert [choices.pick(range(10)), choices.pick(range(3)), choices.chance(5)] == [7, 2, False]
    assert [choices.pick("abc"), choices.chance(4)] == ["a", False]
    assert Choices(1).chance(3)


# Tests of the actions.


def forged(number: int, make: Callable[[Choices, Known], Forgery]) -> Forgery:
    """Return what a hostile tenant writes who knows a few names and UIDs."""
    marks = Markers()
    names, uids = {SECRET: ("database",), POD: ("web",)}, {POD: ("u-web",), SECRET: ("u-database",)}
    known = Known(MARK, "demo", uids, names, ("u-space", "aaa"), lambda: marks.new(BELOW))
    return make(Choices(number), known)


def test_forgeries_have_every_form() -> None:
    """They have foreign UIDs and names, finalizers, owners, large values, and optional and required references."""
    texts = [str(forged(seed * 7919**3, pod_below)) for seed in range(2_000)]
    wanted = ("u-web", "made-up", FINALIZER, "ownerReferences", "x" * 20_000, "secretRef", "imagePullSecrets",
              "kube-api-access-", "upper-token-u-web", "nobody", "'optional': True", OTHER_MANAGER)  # fmt: skip
    assert [violation for violation in wanted if not any(violation in text for text in texts)] == []
    assert {forged(seed * 7919**3, thing).kind for seed in range(200)} == set(KINDS)
    assert {forged(seed, predecessor).manager for seed in range(20)} == {FIELD_MANAGER}


# Tests of the arena.


Spoil = Callable[[TenantSimulation], object]


def spoiled(setting: Setting, spoil: Spoil) -> list[str]:
    """Run honest pods, spoil something as if the engine did it, and return what the watchman reports."""

    async def run() -> list[str]:
        """Run the scenario."""
        arena = TenantSimulation(setting)
        play = ActionRunner(arena)
        await arena.start()
        for action in read(["pod:0", "serve:0", "wait:3"]):
            await play.run(action)
        await arena.wait_until_quiet()
        assert list(arena.checker.wrong) == []
        done = spoil(arena)
        if asyncio.iscoroutine(done):
            await done
        arena.inspect()
        arena.check_final_state()
        await arena.crash()
        return list(arena.checker.wrong)

    return run_in_virtual_time(run)


def puts(kind: Kind, namespace: str, of: str) -> Spoil:
    """Return an action that copies an object of tenant bank to a lower namespace that has none of its pods."""

    def spoil(arena: TenantSimulation) -> None:
        """Copy the object."""
        found = arena.find(Ref(UPPER, kind, "bank", of))
        assert found is not None
        meta = {"name": of, "namespace": namespace, "annotations": {UPPER_UID: uid(found)}, "labels": {OWNER: MARK}}
        arena.clusters[B].place(kind, {**found, "metadata": meta})

    return spoil


@pytest.mark.parametrize(
    ("kind", "name", "namespace", "violation"),
    [
        (SECRET, "database", "aaa", "not its place"),
        (SECRET, "database", "bank", "no pod bound here asks for it"),
        (CONFIG_MAP, "config", "shop", "not its place"),
        (SERVICE, "front", "bank", "no pod bound here asks for it"),
        (SERVICE_ACCOUNT, "payer", "aaa", "not its place"),
    ],
)
def test_the_watchman_reports_an_object_in_a_wrong_namespace(
    kind: Kind, name: str, namespace: str, violation: str
) -> None:
    """It does so whoever created the object."""
    found = spoiled(Setting(identity="lower"), puts(kind, namespace, name))
    assert found
    assert all(one.endswith(violation) for one in found), found


def test_the_watchman_reports_a_status_of_another_pod() -> None:
    """The message and the address of a hostile tenant's pod are two problems."""

    def spoil(arena: TenantSimulation) -> None:
        """Write the status."""
        word = arena.ledger.markers.new(BELOW)
        status = {"phase": "Running", "podIP": "6.6.1.1", "message": word}
        arena.clusters[UPPER].alter(Ref(UPPER, POD, "bank", "web"), lambda one: one.update(status=status))

    assert len(spoiled(Setting(), spoil)) == 2


def test_the_watchman_reports_that_a_foreign_object_was_deleted() -> None:
    """It reports the request of the engine before it is carried out, and the missing object afterwards."""
    ref = Ref(A, SECRET, "team", "own")

    async def spoil(arena: TenantSimulation) -> None:
        """Delete the object as the engine."""
        found = arena.find(ref)
        assert found is not None
        await arena.connections[A].delete(ref, uid=uid(found))

    assert spoiled(Setting(), spoil) == [f"delete {ref}: is a stranger's", f"{ref} is a stranger's and was touched"]


def test_the_watchman_reports_a_late_pod() -> None:
    """Its lower pod is never created, because the engine cannot reach any cluster."""

    async def run() -> list[str]:
        """Play a pod that is bound while every connection of the engine is down."""
        arena = TenantSimulation(Setting())
        play = ActionRunner(arena)
        await arena.start()
        watching = asyncio.get_running_loop().create_task(arena.watch())
        for way in arena.connections.values():
            way.is_down = True
        await play.run(Action("pod", 0))
        await asyncio.sleep(2 * BOUND)
        watching.cancel()
        await arena.crash()
        return list(arena.checker.wrong)

    assert run_in_virtual_time(run) == ["bank/web in lower-a: is Pending above and not below for 5 s"]


def test_the_lower_hostile_tenant_only_creates_objects_in_its_own_namespace() -> None:
    """The objects that it creates are recorded as hostile, and exist in no other namespace."""

    async def run() -> list[str]:
        """Run every type of hostile action many times."""
        arena = TenantSimulation(Setting(hostile_namespace="tenant"))
        play = ActionRunner(arena)
        await arena.start()
        for number in range(20):
            for sort in ("pod", "forge", "mimic", "thing", "tamper", "flood", "tell", "pretend", "stuff"):
                await play.run(Action(sort, number * 7919**3))
        made = [
            one for kind in (POD, SECRET) for one in arena.list_objects(B, kind) if uid(one) in arena.ledger.hostile
        ]
        await arena.crash()
        return sorted({metadata(one)["namespace"] for one in made})

    assert run_in_virtual_time(run) == ["mallory-up"]


def test_refused_requests_have_no_effect() -> None:
    """They concern a missing namespace and missing objects."""

    async def run() -> list[str]:
        """Send the requests."""
        arena = TenantSimulation(Setting())
        ref = Ref(A, SECRET, "aaa", "s")
        await arena.create(ref, {}, BELOW, FIELD_MANAGER)
        await arena.patch(ref, {"metadata": {"labels": {"a": "b"}}}, BELOW)
        await arena.patch(ref, {"metadata": {"labels": {"a": "b"}}}, BELOW, FIELD_MANAGER)
        await arena.delete(ref, {"metadata": {"uid": "u"}}, HONEST)
        return [str(arena.find(ref)), *arena.checker.wrong]

    assert run_in_virtual_time(run) == ["None"]


def test_the_watchman_reports_a_lower_namespace_of_a_wrong_upper_namespace() -> None:
    """The first problem names the upper namespace for which it was created."""

    def spoil(arena: TenantSimulation) -> None:
        """Change the annotations to those of another namespace."""
        shop = arena.find(Ref(UPPER, NAMESPACE, "", "shop"))
        assert shop is not None
        notes = {UPPER_UID: uid(shop), UPPER_NAMESPACE: "shop"}
        arena.clusters[A].alter(
            Ref(A, NAMESPACE, "", "demo-bank"), lambda one: one["metadata"].update(annotations=notes)
        )

    found = spoiled(Setting(mapping="prefix"), spoil)
    assert found[0] == "namespace demo-bank in lower-a was made for shop, whose lower namespace is demo-shop"


# Tests of the parts for real clusters that need none.


def test_sequences_with_the_same_topology_share_an_engine() -> None:
    """Each sequence is played once."""
    found = engines(range(60))
    assert sorted(seed for _, seeds in found for seed in seeds) == list(range(60))
    assert len(found) == len({setting[:3] for setting, _ in found})
    for setting, seeds in found:
        assert {setting_of(random_actions(seed, 40))[:3] for seed in seeds} == {setting[:3]}


def test_memory_and_response_time_of_an_engine_have_limits() -> None:
    """A value above its limit is reported."""
    health = Health(lambda: None)
    health.memory, health.slowest, health.samples = 100 << 20, 0.2, 5
    assert health.figures() == {"rss_mib": 100, "healthz_s": 0.2, "samples": 5}
    assert health.broken() == []
    health.memory, health.slowest = 301 << 20, 1.5
    assert health.broken() == ["301 MiB of memory", "/healthz took 1.50 s"]
