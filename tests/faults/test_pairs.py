"""Tests of two engines in memory, one of which is late; `python -m bench.model.sequences.pairs` plays them all."""

import pytest

from bench.model.sequences.actions import Action, read
from bench.model.sequences.model import LOWERS
from bench.model.sequences.pairs import ORDERS, SINCE, pairs, played, tried
from bench.model.sequences.races import BEGUN, COPIES
from bench.model.sequences.runner import finish, new_simulation, run_in_virtual_time
from bench.model.sequences.simulation import Simulation

PAIRS = {one.name: one for one in pairs()}
SHARES = 3
EVERY = 7
APART = 120.0
FOUGHT_OVER, MOST = 3, 90
"""The contested parts (a node's status, its taints, a pod's status), and the most writes of each by both engines."""


def test_the_pairs_cover_every_situation() -> None:
    """They have pods in every state, each kind that pods depend on, and watches that continue in either order."""
    assert {name.removeprefix("Pod ").split(",")[0] for name in PAIRS} == {*BEGUN, *COPIES}
    assert {name.split(", ")[-1] for name in PAIRS} == set(ORDERS)
    assert {name.split(", ")[2] for name in PAIRS if name.startswith("Pod ")} == set(SINCE)
    assert all([action.sort for action in one.actions].count("stop") == 3 for one in PAIRS.values())
    assert all([action.sort for action in one.actions].count("go") == 3 for one in PAIRS.values())


@pytest.mark.parametrize("share", range(SHARES))
def test_an_engine_with_outdated_caches_does_no_harm(share: int) -> None:
    """No live pod is ended, no pod runs twice, and both engines settle."""
    every = list(PAIRS.values())[::EVERY][share::SHARES]
    assert [violation for violation in map(tried, every) if violation] == []


@pytest.mark.parametrize("name", [name for name in PAIRS if name.startswith("Pod told, 16, runs")])
def test_a_running_pod_is_kept_by_an_engine_that_knows_an_older_upper_pod(name: str) -> None:
    """That engine finds a lower pod of another UID, and has to read which upper pod is the older one."""
    assert tried(PAIRS[name]) == ""


def test_two_engines_settle_if_nothing_changes() -> None:
    """A write of one engine causes no write of the other, with lists as with watches."""
    actions: list[Action] = read(["pod:90", "serve:0", "wait:3", "run:0", "wait:3"])
    assert run_in_virtual_time(lambda: played(actions)) == []


def test_two_engines_that_disagree_on_reachability_write_at_a_limited_rate() -> None:
    """Each one reports the node and the pod every few seconds as it observes them, until both agree."""
    written: list[str] = []

    async def run() -> list[str]:
        """Disconnect one engine for two minutes."""
        stage, model, play = new_simulation()
        late = Simulation(model.check_write, stage)
        await stage.start()
        await late.start()
        for action in read(["pod:90", "serve:0", "wait:3", "run:0", "wait:3"]):
            await play.run(action)
        late.disconnect(LOWERS[1], 600.0)
        start = len(stage.done)
        await stage.let_time_pass(APART)
        written.extend(stage.done[start:])
        await late.recover()
        defects = [*await finish(stage, model), *late.defects]
        await stage.crash()
        await late.crash()
        return defects

    assert run_in_virtual_time(run) == []
    assert 2 * FOUGHT_OVER < len(written) <= MOST * FOUGHT_OVER
