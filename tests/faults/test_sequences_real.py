"""Tests of random sequences on real control planes; `python -m bench.model.sequences.real` plays two hundred."""

from pathlib import Path
from random import Random

import pytest

from bench.kit.faultproxy.faults import Delayed, Dropped, Lost, Passed, Refused, Torn
from bench.kit.faultproxy.requests import ProxiedRequest
from bench.kit.rig import Rig
from bench.kit.sites import until
from bench.kit.trial_namespace import TrialNamespace
from bench.model.sequences.actions import read
from bench.model.sequences.real import ONE_IN, SHARED_FAULTS, SORTS, FaultPlan, campaign, random_actions
from bench.model.sequences.real_namespace import RealNamespace
from tensile.sandbox.sandbox import Sandbox

SEQUENCES, MOST = 6, 15
PATIENCE = 30.0
EVERYTHING = ("pod:90", "serve:0")
"""A pod that runs in lower-b with all that a pod can depend on here."""
SPOILS = (
    ("unseat:0", "ConfigMap m0 is not in lower-b as of the one above"),
    ("drift:2", "Secret s0: data is {'k': 'Mw=='} and not {'k': 'MA=='}"),
    ("unseat:5", "the slice is not there in lower-b"),
    ("kill:0", "p0 is not below, Running above"),
)
"""Actions in the lower cluster, and the problem after each; without its pod, no other object has to exist."""


def test_a_sequence_on_real_clusters_is_determined_by_its_seed() -> None:
    """Every type of action occurs, and a limit of the number of actions applies."""
    every = [random_actions(seed) for seed in range(100)]
    assert every == [random_actions(seed) for seed in range(100)]
    assert {action.sort for actions in every for action in actions} == set(SORTS)
    assert all(10 <= len(actions) <= 30 for actions in every)
    assert len(random_actions(1, 9)) <= 9


@pytest.mark.real
async def test_only_writes_in_shaken_namespaces_have_faults(sandbox: Sandbox, tmp_path: Path) -> None:
    """About one write in four has a fault, every type of fault occurs, and faults are counted."""
    async with Rig(sandbox, tmp_path) as rig:
        weather = FaultPlan(rig, Random(1))
        weather.namespaces.add("shaken")
        write, read_only = (ProxiedRequest("upper", verb, "pods", "", "shaken", "p0") for verb in ("patch", "get"))
        assert {await weather.fault_for(one) for one in [write._replace(namespace="calm"), read_only] * 50} == {
            Passed()
        }
        drawn_faults = [await weather.fault_for(write) for _ in range(800)]
    faults = [one for one in drawn_faults if one != Passed()]
    assert 100 < len(faults) < 2 * 800 / ONE_IN
    assert {type(one) for one in faults} == {Dropped, Lost, Torn, Delayed, Refused}
    assert sum(weather.applied.values()) == len(faults)


@pytest.mark.real
async def test_on_real_clusters_each_wrong_state_is_reported(sandbox: Sandbox, tmp_path: Path) -> None:
    """The engine was killed, so that each object that is removed or changed in the lower cluster stays wrong."""
    async with Rig(sandbox, tmp_path) as rig:
        rig.start()
        await rig.wait_until_usable()
        async with TrialNamespace(rig) as scene:
            ground = RealNamespace(scene)
            for action in read(EVERYTHING):
                await ground.run(action)
            await until(lambda: _is_right(ground), "everything is right", PATIENCE)
            rig.kill()
            for action, violation in SPOILS:
                await ground.run(*read([action]))
                assert violation in await ground.wrong(), action
            assert await ground.wrong() == [SPOILS[-1][1]]
            assert any("Pod" not in one and "p0" in one for one in ground.history_lines())
            await rig.upper.delete(scene.path("pods", "p0") + "?gracePeriodSeconds=0")


async def _is_right(ground: RealNamespace) -> bool:
    return not await ground.wrong()


@pytest.mark.real
async def test_every_sequence_on_real_clusters_ends_in_the_correct_state(sandbox: Sandbox, tmp_path: Path) -> None:
    """Every namespace has faults; the number of storms over all of them depends on the duration."""
    async with Rig(sandbox, tmp_path) as rig:
        rig.start()
        await rig.wait_until_usable()
        result = await campaign(rig, range(1, 1 + SEQUENCES), SEQUENCES, most=MOST)
    assert result["broken"] == []
    assert (result["sequences"], result["divergences"]) == (SEQUENCES, 0)
    assert result["writes"] > 10 * SEQUENCES
    assert set(result["met"]) - set(SHARED_FAULTS)
