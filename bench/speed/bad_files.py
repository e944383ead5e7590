"""The answers of `tensile validate` to every kind of bad file: exit code, form, and time beyond `tensile --version`.

    .venv/bin/python -m bench.speed.bad_files

Each file is timed next to a `--version` of its own, so that other load of the machine affects both. It is timed again
while it is over the bar, and once more in the end: the fastest time is that of the program, the rest is caused by the
machine. Writes bad-files.json. Exits with 1 if a file is not refused as it should be, or takes 200 ms longer.
"""

import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from bench.kit.reporting import RESULTS, ROOT

sys.path.insert(0, str(ROOT / "tests" / "kit"))

from corpus import ALL
from corpus_form import Bad

TENSILE = str(Path(sys.executable).with_name("tensile"))
BAR = 0.2
TRIES = 7


def is_a_file(bad: Bad) -> bool:
    """Report whether a kind can be a file.

    A lone surrogate cannot be encoded as UTF-8, and some kinds are wrong in a ConfigMap only.
    """
    return not bad.configmap and bad.text.encode(errors="ignore").decode() == bad.text


def timed(*arguments: str) -> tuple[float, subprocess.CompletedProcess[str]]:
    """Run the program; return the seconds and its output."""
    begin = time.perf_counter()
    done = subprocess.run([TENSILE, *arguments], capture_output=True, text=True, check=False)
    return time.perf_counter() - begin, done


def flaws(file: Path, place: str) -> tuple[list[str], float]:
    """Return what is wrong with one refusal, and by how many seconds it is slower than `--version`."""
    versions, answers, slower, found = [], [], 0.0, []
    for _ in range(TRIES):
        versions.append(timed("--version")[0])
        taken, done = timed("validate", "-f", str(file))
        answers.append(taken)
        slower = min(answers) - min(versions)
        if done.returncode != 1 or done.stdout or "Traceback" in done.stderr:
            found.append(f"exit {done.returncode}: {done.stderr[:200]}")
        if place not in done.stderr:
            found.append(f"{place} is not in {done.stderr[:200]}")
        if slower <= BAR:
            break
    return found + ([f"{slower:.3f} s slower than --version"] if slower > BAR else []), slower


def run_validate(kinds: list[Bad], folder: Path) -> dict[str, tuple[list[str], float]]:
    """Return the flaws and the seconds of each kind, by its name."""
    file, results = folder / "topology.yaml", {}
    for bad in kinds:
        file.write_text(bad.text)
        results[bad.kind] = flaws(file, f"{file}:{bad.line}:{bad.column}: ")
    return results


def main() -> int:
    """Try every kind, and those with a flaw again; print the flaws and store the result."""
    kinds = [bad for bad in ALL if is_a_file(bad)]
    with tempfile.TemporaryDirectory() as folder:
        results = run_validate(kinds, Path(folder))
        results |= run_validate([bad for bad in kinds if results[bad.kind][0]], Path(folder))
    broken = {kind: found for kind, (found, _) in results.items() if found}
    slower = {kind: seconds for kind, (_, seconds) in results.items()}
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
    target = RESULTS / "bad-files.json"
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(json.dumps(result, indent=2) + "\n")
    return bool(broken)


if __name__ == "__main__":
    sys.exit(main())
