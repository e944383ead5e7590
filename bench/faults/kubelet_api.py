"""The kubelet API under abuse: torn streams, lowers that disagree, fuzzed requests, rotated certificates.

    .venv/bin/python -m bench.faults.kubelet_api

It uses scripted clusters in this process, without a sandbox, because it looks for leaks. Writes faults-guarded.json;
exits with 1 if a task or a descriptor leaks, a byte passes without a 101, the engine itself returns a 5xx, memory
changes by more than 10 %, or a rotation disturbs a request or a stream.
"""

import argparse
import asyncio
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests" / "kit"))

import kubelet_abuse
from kubelet_lab import QUICK, KubeletApiHarness
from kubelet_pki import SERVER, Pki, write

from bench.kit.reporting import RESULTS, keep, verdict

LIMITS = QUICK._replace(waiting=64, asking=0.3)
MEMORY = 0.1


async def campaigns(counts: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Run each campaign in a laboratory of its own, and return the results."""
    pki, seed, found = Pki(folder), counts.seed, {}
    async with KubeletApiHarness(pki, LIMITS) as lab:
        found["torn"] = await kubelet_abuse.torn(lab, seed, counts.torn)
    async with KubeletApiHarness(pki, LIMITS) as lab:
        found["refused"] = await kubelet_abuse.refused(lab, seed, counts.refused)
    async with KubeletApiHarness(pki, LIMITS) as lab:
        found["fuzz"] = await kubelet_abuse.fuzz(lab, seed, counts.fuzz, counts.fuzz // 10)
    own = folder / "rotated"
    own.mkdir()
    files = write(own, pki.servers.issue("first", usage=SERVER))
    async with KubeletApiHarness(pki, LIMITS, files) as lab:
        found["rotated"] = await kubelet_abuse.rotated(lab, own, counts.rotations, 10)
    return found


def broken(found: dict[str, Any]) -> Iterator[str]:
    """Yield the results beyond the limits."""
    for name, figures in found.items():
        for what in ("tasks", "descriptors", "open", "bytes_down", "switched", "errors_of_ours", "echoes_missing"):
            if figures.get(what):
                yield f"{name}: {figures[what]} {what}"
        for what in ("unforeseen", "failed", "stuck"):
            yield from (f"{name}: {each}" for each in figures.get(what, ()))
    fuzz, rotated = found["fuzz"], found["rotated"]
    if abs(fuzz["memory_end_mib"] / fuzz["memory_settled_mib"] - 1) > MEMORY:
        yield f"fuzz: memory went from {fuzz['memory_settled_mib']} to {fuzz['memory_end_mib']} MiB"
    if rotated["certificates_seen"] != rotated["rotations"]:
        yield f"rotated: only {rotated['certificates_seen']} certificates were shown"


def main() -> int:
    """Run all campaigns, store the result, and print the failures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name, count in (("torn", 500), ("refused", 100), ("fuzz", 20_000), ("rotations", 50), ("seed", 1)):
        parser.add_argument(f"--{name}", type=int, default=count)
    parser.add_argument("--results", type=Path, default=RESULTS, help="the folder in which to write the result")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = asyncio.run(campaigns(args, Path(folder)))
    path = keep(args.results, "faults-guarded", "none", {"seed": args.seed, **found})
    return verdict("guarded", list(broken(found)), path)


if __name__ == "__main__":
    sys.exit(main())
