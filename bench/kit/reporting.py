"""The results of a bench: a JSON file with all measurements and their environment, and lines for a person to read.

A run writes into build/, which git ignores: a commit for each run would clutter the history of the code. `make keep`
copies the newest results into bench/results, from which documents are made.
"""

import os
import platform
import statistics
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import orjson
import psutil

import tensile

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "build" / "results"
"""The directory that a run writes to."""
KEPT = ROOT / "bench" / "results"
"""The directory of the results that documents cite."""
LIBRARIES = ("aiohttp", "kubernetes", "msgspec", "orjson", "uvloop")


def machine() -> dict[str, Any]:
    """Return a description of the machine on which the measurements were made."""
    return {
        "processor": _processor(),
        "processors": os.cpu_count(),
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "system": f"{platform.system()} {platform.release()}",
    }


def versions(kubernetes: str) -> dict[str, str]:
    """Return the versions of the measured programs; `kubernetes` is the clusters' version."""
    found = {name: version(name) for name in LIBRARIES}
    ours = {"tensile": tensile.__version__, "python": platform.python_version(), "cluster": kubernetes}
    return {**ours, **{f"python-{name}": number for name, number in found.items()}}


def keep(directory: Path, name: str, kubernetes: str, result: dict[str, Any]) -> Path:
    """Write a result, with date, machine and versions, to DIRECTORY/NAME.json and return its path."""
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / f"{name}.json"
    date = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    whole = {"date": date, "machine": machine(), "versions": versions(kubernetes), **result}
    path.write_bytes(orjson.dumps(whole, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE))
    return path


def kept_before(directory: Path, name: str) -> dict[str, Any]:
    """Return the result of an earlier run in DIRECTORY/NAME.json, {} for none; RESULTS falls back on KEPT."""
    path = directory / f"{name}.json"
    if directory == RESULTS and not path.exists():
        path = KEPT / path.name
    found: dict[str, Any] = orjson.loads(path.read_bytes()) if path.exists() else {}
    return found


def medians(runs: Sequence[dict[str, Any]], party: str, fields: Sequence[str]) -> dict[str, float]:
    """Return the median of each field over the runs of one participant."""
    own = [run for run in runs if run["party"] == party]
    return {field: round(statistics.median(run[field] for run in own), 3) for field in fields}


def ratios(found: dict[str, dict[str, float]], fields: Sequence[str]) -> dict[str, dict[str, float]]:
    """Return the engine's medians as multiples of the others'; a field that is 0 for another has no ratio."""
    ours = found["engine"]
    return {
        party: {field: round(ours[field] / theirs[field], 3) for field in fields if theirs[field]}
        for party, theirs in found.items()
        if party != "engine"
    }


def table(found: dict[str, dict[str, float]], fields: Sequence[str]) -> str:
    """Format medians as a table, one participant per line."""
    lines = ["".join([f"{'median':10}", *(f"{field:>14}" for field in fields)])]
    lines += ["".join([f"{party:10}", *(f"{row[field]:>14g}" for field in fields)]) for party, row in found.items()]
    return "\n".join(lines)


def verdict(name: str, broken: Sequence[str], path: Path) -> int:
    """Print the failures, or that there are none, and return the exit code."""
    for failure in broken:
        print(f"{name}: BROKEN: {failure}", file=sys.stderr)
    print(f"{name}: {len(broken)} failed checks" if broken else f"{name}: all checks passed", f"({path})")
    return 1 if broken else 0


def _processor() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()
