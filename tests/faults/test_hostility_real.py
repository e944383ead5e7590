"""Tests of hostile tenants on real control planes; `python -m bench.model.hostility.real` plays 200 sequences."""

from pathlib import Path

import pytest

from bench.kit.rig import LOWERS, Rig
from bench.kit.sites import until
from bench.model.hostility.actions import ActionRunner
from bench.model.hostility.honest import DATABASE
from bench.model.hostility.markers import ABOVE, BELOW
from bench.model.hostility.object_watches import ObjectWatches
from bench.model.hostility.real import campaign
from bench.model.hostility.real_clusters import RealTenantClusters
from bench.model.hostility.setting import Setting
from bench.model.hostility.shared_faults import SharedFaults
from bench.model.hostility.tenant_api import HONEST
from bench.model.sequences.actions import read
from tensile.names import OWNER, UPPER_UID
from tensile.objects import POD, SECRET, UPPER, Ref, uid
from tensile.sandbox.sandbox import Sandbox

SEEDS, MOST = (1, 2, 3, 4), 16
"""Sequences with the same topology: nothing is mapped to the namespace of the first two, and that of the others is the
upper tenant's."""
PATIENCE = 20.0
A, B = LOWERS


@pytest.mark.real
async def test_on_real_clusters_hostile_tenants_neither_reach_nor_delay_other_tenants(sandbox: Sandbox) -> None:
    """They do not exhaust the memory of the engine or delay its responses either."""
    result = await campaign(sandbox, Setting(), SEEDS, MOST)
    assert result["broken"] == []
    assert result["sequences"] == len(SEEDS)
    assert result["samples"] > 10
    assert result["writes"] > 10 * len(SEEDS)


@pytest.mark.real
async def test_on_real_clusters_the_watchman_reports_misplaced_objects_and_data(
    sandbox: Sandbox, tmp_path: Path
) -> None:
    """No engine runs here; the test itself writes what an engine must not write."""
    async with Rig(sandbox, tmp_path) as rig, ObjectWatches(rig) as lookout:
        async with RealTenantClusters(rig, lookout, SharedFaults(rig), Setting(lower=B)) as ground:
            watchman, setting = ground.checker, ground.ledger.setting
            await ActionRunner(ground, rig.nodes.__getitem__).run(*read(["pod:0"]))
            original = Ref(UPPER, SECRET, setting.bank, DATABASE)
            pod = Ref(UPPER, POD, setting.bank, "web")
            await until(lambda: _has(lookout, original, pod), "the pod and its Secret are there", PATIENCE)
            found = ground.find(original)
            assert found is not None
            marks = {"labels": {OWNER: rig.mark}, "annotations": {UPPER_UID: uid(found)}}
            copy = Ref(B, SECRET, ground.ledger.lower_namespaces.hostile_namespace(), DATABASE)
            await ground.create(copy, {"metadata": marks, "data": found["data"]}, HONEST)
            word = ground.ledger.markers.new(BELOW)
            await ground.patch(pod, {"metadata": {"labels": {"team": word}}}, HONEST)
            await until(lambda: _says(ground, 3), "what is wrong is seen", PATIENCE)
        assert {violation.rpartition(": ")[2] for violation in watchman.wrong} == {
            "not its place",
            "another tenant's object",
        }


@pytest.mark.real
async def test_on_real_clusters_hostile_tenants_only_write_to_their_own_namespaces(
    sandbox: Sandbox, tmp_path: Path
) -> None:
    """They have no permissions elsewhere, and the objects of the lower tenant are recorded as hostile."""
    async with (
        Rig(sandbox, tmp_path) as rig,
        ObjectWatches(rig) as lookout,
        RealTenantClusters(rig, lookout, SharedFaults(rig), Setting(lower=B)) as ground,
    ):
        setting, place = ground.ledger.setting, ground.ledger.lower_namespaces.hostile_namespace()
        for who, own, other in (
            (BELOW, Ref(B, SECRET, place, "s"), Ref(A, SECRET, setting.hostile, "s")),
            (ABOVE, Ref(UPPER, SECRET, setting.hostile, "s"), Ref(UPPER, SECRET, setting.bank, "s")),
        ):
            await ground.create(other, {}, who)
            await ground.create(own, {}, who, "tensile-kube")
            await until(lambda own=own: _has(lookout, own), "what he may make is there", PATIENCE)
            assert ground.find(other) is None
        made = ground.find(Ref(B, SECRET, place, "s"))
        assert made is not None
        assert ground.ledger.hostile == {uid(made)}
        assert made["metadata"]["managedFields"][0]["manager"] == "tensile-kube"


async def _has(lookout: ObjectWatches, *refs: Ref) -> bool:
    return all(lookout.find(ref) is not None for ref in refs)


async def _says(ground: RealTenantClusters, count: int) -> bool:
    return len(ground.checker.wrong) >= count
