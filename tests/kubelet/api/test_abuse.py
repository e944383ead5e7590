"""Short forms of the campaigns that `python -m bench.faults.guarded` runs at length."""

from pathlib import Path

import kubelet_abuse
from kubelet_lab import QUICK, Lab, leak_watch
from kubelet_pki import SERVER, Pki, write

MANY = QUICK._replace(waiting=64, asking=1.0)


async def test_torn_streams_leave_nothing(pki: Pki) -> None:
    """Sixty streams torn by either side at any moment: no task, no descriptor and no count of one is left."""
    async with leak_watch(), Lab(pki, MANY) as lab:
        found = await kubelet_abuse.torn(lab, seed=1, count=60)
        assert (found["tasks"], found["descriptors"], found["open"], found["stuck"]) == (0, 0, 0, [])
        assert len(found["ways"]) == 5


async def test_without_a_101_nothing_passes(pki: Pki) -> None:
    """Forty lowers that answer anything else get no byte of the caller's, and no caller is switched."""
    async with leak_watch(), Lab(pki, MANY) as lab:
        found = await kubelet_abuse.refused(lab, seed=1, count=40)
        assert (found["answers"], found["bytes_down"], found["switched"]) == (40, 0, 0)
        assert (found["tasks"], found["descriptors"]) == (0, 0)


async def test_fuzzed_requests_are_the_callers_fault(pki: Pki) -> None:
    """Four hundred requests that hardly are any: no 5xx of ours, nothing that nobody foresaw, nothing left."""
    async with leak_watch(), Lab(pki, MANY) as lab:
        found = await kubelet_abuse.fuzz(lab, seed=1, count=400, settling=100)
        assert (found["errors_of_ours"], found["unforeseen"]) == (0, [])
        assert (found["tasks"], found["descriptors"]) == (0, 0)
        assert {"200", "400", "401", "403", "404", "405"} <= set(found["statuses"])


async def test_rotations_disturb_nobody(pki: Pki, tmp_path: Path) -> None:
    """Six rotations of certificate and authority under requests and streams: none fails, and each is seen."""
    files = write(tmp_path, pki.servers.issue("first", usage=SERVER))
    async with leak_watch(), Lab(pki, MANY, files) as lab:
        found = await kubelet_abuse.rotated(lab, tmp_path, count=6, streams=3)
        assert (found["failed"], found["echoes_missing"], found["certificates_seen"]) == ([], 0, 6)
        assert found["requests"] > 30
