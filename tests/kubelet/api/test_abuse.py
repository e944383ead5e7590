"""Short forms of the fault campaigns that `python -m bench.faults.kubelet_api` runs at length."""

from pathlib import Path

import kubelet_abuse
from kubelet_lab import QUICK, KubeletApiHarness, leak_watch
from kubelet_pki import SERVER, Pki, write

MANY = QUICK._replace(waiting=64, asking=1.0)


async def test_torn_streams_leave_no_task_descriptor_or_open_stream(pki: Pki) -> None:
    """Sixty streams are cut by either side at any moment; no task, descriptor or counted stream is left."""
    async with leak_watch(), KubeletApiHarness(pki, MANY) as kubelet_api:
        found = await kubelet_abuse.torn(kubelet_api, seed=1, count=60)
        assert (found["tasks"], found["descriptors"], found["open"], found["stuck"]) == (0, 0, 0, [])
        assert len(found["ways"]) == 5


async def test_nothing_is_forwarded_without_a_101_from_the_lower(pki: Pki) -> None:
    """Forty lower servers that answer anything but 101 receive no byte of the caller's, and no caller is switched."""
    async with leak_watch(), KubeletApiHarness(pki, MANY) as kubelet_api:
        found = await kubelet_abuse.refused(kubelet_api, seed=1, count=40)
        assert (found["answers"], found["bytes_down"], found["switched"]) == (40, 0, 0)
        assert (found["tasks"], found["descriptors"]) == (0, 0)


async def test_fuzzed_requests_get_no_5xx_and_leave_nothing(pki: Pki) -> None:
    """Four hundred malformed requests cause no 5xx, no unforeseen error, and no leaked task or descriptor."""
    async with leak_watch(), KubeletApiHarness(pki, MANY) as kubelet_api:
        found = await kubelet_abuse.fuzz(kubelet_api, seed=1, count=400, settling=100)
        assert (found["errors_of_ours"], found["unforeseen"]) == (0, [])
        assert (found["tasks"], found["descriptors"]) == (0, 0)
        assert {"200", "400", "401", "403", "404", "405"} <= set(found["statuses"])


async def test_certificate_rotations_break_no_request_or_stream(pki: Pki, tmp_path: Path) -> None:
    """No request or stream fails during six rotations of certificate and CA, and each new certificate is seen."""
    files = write(tmp_path, pki.servers.issue("first", usage=SERVER))
    async with leak_watch(), KubeletApiHarness(pki, MANY, files) as kubelet_api:
        found = await kubelet_abuse.rotated(kubelet_api, tmp_path, count=6, streams=3)
        assert (found["failed"], found["echoes_missing"], found["certificates_seen"]) == ([], 0, 6)
        assert found["requests"] > 30
