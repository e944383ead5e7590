"""Tests of watches with wrong, late or missing events; `python -m bench.faults.watches` has more of them."""

from itertools import product
from pathlib import Path

import pytest

from bench.faults.watches import FAULTS, LOWER, PATIENCE, WatchTrial, laid_out, run_fault
from bench.kit.rig import Rig
from bench.kit.sites import MERGE, PODS, Refused, until
from tensile.sandbox.sandbox import Sandbox
from tensile.sandbox.state import UPPER

pytestmark = pytest.mark.real
SHORT = ("stale", "dropped", "duplicated", "reordered", "410", "hang")


async def test_faulty_watches_end_in_the_correct_state(sandbox: Sandbox, tmp_path: Path) -> None:
    """Late, wrong and missing events are compensated, deletions as well, and no pod runs twice."""
    async with laid_out(sandbox, tmp_path, namespaces=2) as field:
        for fault, victim in product(FAULTS, (UPPER, LOWER)):
            if fault.name in SHORT:
                result = await run_fault(field, fault, victim, PATIENCE)
                assert result["broken"] == []
                assert result["recovered"] == len(field.namespaces)


async def test_a_wrong_state_of_a_namespace_is_reported(sandbox: Sandbox, tmp_path: Path) -> None:
    """Without an engine the state never becomes correct, and the check that the other tests use reports that."""
    async with Rig(sandbox, tmp_path) as rig:
        field = WatchTrial(rig, 1)
        (namespace,) = field.namespaces
        assert await field.wrong() == {namespace: "above are []"}
        await rig.upper.call("POST", "/api/v1/namespaces", {"metadata": {"name": namespace}})
        meta = {"name": "pod-0", "labels": {"rig": rig.name}, "finalizers": ["example.com/hold"]}
        spec = {"nodeName": "none", "automountServiceAccountToken": False, "containers": [{"name": "c", "image": "i"}]}
        await _accepted(rig, namespace, {"metadata": meta, "spec": spec})
        assert await field.wrong() == {namespace: "above are ['pod-0']"}
        assert await field.settled(0.0, 0.1) == {}
        gone = {"metadata": {"finalizers": None}}
        await rig.upper.call("PATCH", f"{PODS.format(namespace)}/pod-0", gone, MERGE)
        await rig.upper.delete(f"/api/v1/namespaces/{namespace}")


async def _accepted(rig: Rig, namespace: str, body: dict[str, object]) -> None:
    """Create a pod as soon as its namespace has a ServiceAccount."""

    async def is_accepted() -> bool:
        """Report whether the pod could be created."""
        try:
            await rig.upper.call("POST", PODS.format(namespace), body)
        except Refused:
            return False
        return True

    await until(is_accepted, "the pod is accepted", PATIENCE)
