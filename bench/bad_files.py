"""How `tensile validate` answers every kind of bad file: exit code, form, and time beside `tensile --version`.

    .venv/bin/python bench/bad_files.py

Each file is timed next to a `--version` of its own, so that what else the machine does hits both. Writes
bench/results/bad-files.json; exits with 1 when a file is not refused as it should be or takes 200 ms longer.
"""

import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests" / "topology"))

from corpus_form import Bad  # noqa: E402 - the corpus is the tests'
from test_bad_files import ALL  # noqa: E402

TENSILE = str(Path(sys.executable).with_name("tensile"))
BAR = 0.2
TRIES = 3


def is_a_file(bad: Bad) -> bool:
    """Say whether a kind can be a file: a lone surrogate has no UTF-8, and some are wrong in a ConfigMap only."""
    return not bad.configmap and bad.text.encode(errors="ignore").decode() == bad.text


def timed(*arguments: str) -> tuple[float, subprocess.CompletedProcess[str]]:
    """Run the program and give seconds and what it said."""
    begin = time.perf_counter()
    done = subprocess.run([TENSILE, *arguments], capture_output=True, text=True, check=False)
    return time.perf_counter() - begin, done


def flaws(file: Path, place: str) -> tuple[list[str], float]:
    """Give what is wrong with one refusal, and by how many seconds it is slower than `--version`, at best."""
    best, found = float("inf"), []
    for _ in range(TRIES):
        version, _done = timed("--version")
        taken, done = timed("validate", "-f", str(file))
        best = min(best, taken - version)
        if done.returncode != 1 or done.stdout or "Traceback" in done.stderr:
            found.append(f"exit {done.returncode}: {done.stderr[:200]}")
        if place not in done.stderr:
            found.append(f"{place} is not in {done.stderr[:200]}")
        if best <= BAR:
            break
    return found + ([f"{best:.3f} s slower than --version"] if best > BAR else []), best


def main() -> int:
    """Try every kind, print what is wrong, keep the result."""
    slower: dict[str, float] = {}
    broken: dict[str, list[str]] = {}
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "topology.yaml"
        for bad in filter(is_a_file, ALL):
            file.write_text(bad.text)
            found, slower[bad.kind] = flaws(file, f"{file}:{bad.line}:{bad.column}: ")
            if found:
                broken[bad.kind] = found
                print(bad.kind, *found, sep="\n  ", flush=True)
    worst = max(slower, key=lambda kind: slower[kind])
    result = {
        "kinds": len(slower),
        "broken": broken,
        "median_slower_s": round(statistics.median(slower.values()), 3),
        "worst_slower_s": round(slower[worst], 3),
        "worst": worst,
        "bar_s": BAR,
    }
    print(json.dumps(result, indent=2))
    target = ROOT / "bench" / "results" / "bad-files.json"
    target.parent.mkdir(exist_ok=True)
    target.write_text(json.dumps(result, indent=2) + "\n")
    return bool(broken)


if __name__ == "__main__":
    sys.exit(main())
