"""Watches that do not tell the truth, in short; `python -m bench.faults.watches` has more, half-open ones too."""

from itertools import product
from pathlib import Path

import pytest

from bench.faults.watches import FAULTS, LOWER, PATIENCE, Field, laid_out, suffer
from bench.kit.rig import Rig
from bench.kit.sites import MERGE, PODS, Refused, until
from tensile.sandbox.sandbox import Sandbox
from tensile.sandbox.state import UPPER

pytestmark = pytest.mark.real
SHORT = ("stale", "dropped", "duplicated", "reordered", "410", "hang")


async def test_whatever_watches_tell_all_is_right_in_the_end(sandbox: Sandbox, tmp_path: Path) -> None:
    """What was told late, wrongly or not at all is acted on, deletions as well, and nothing runs twice."""
    async with laid_out(sandbox, tmp_path, namespaces=2) as field:
        for fault, victim in product(FAULTS, (UPPER, LOWER)):
            if fault.name in SHORT:
                result = await suffer(field, fault, victim, PATIENCE)
                assert result["broken"] == []
                assert result["recovered"] == len(field.namespaces)


async def test_what_is_wrong_in_a_namespace_is_told(sandbox: Sandbox, tmp_path: Path) -> None:
    """Without an engine nothing ever gets right: the look that the others rest on says so."""
    async with Rig(sandbox, tmp_path) as rig:
        field = Field(rig, 1)
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
    """Create a pod as soon as its namespace has an account."""

    async def is_accepted() -> bool:
        """Try."""
        try:
            await rig.upper.call("POST", PODS.format(namespace), body)
        except Refused:
            return False
        return True

    await until(is_accepted, "the pod is accepted", PATIENCE)
