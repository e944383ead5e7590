"""The division of test files among the processes of `make unit`.

xdist makes every process import all files and collect all tests, which for this many tests needs a third of the whole
run. Here each process collects its own files only. The shares are computed before the run, by the times of the files in
the last run; a new file counts as an average one.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from statistics import fmean
from xml.etree import ElementTree as ET

TIMES = Path("build/tests/unit.xml")
"""The file in which pytest records the time of each test, from the root of the repository."""


@cache
def of_files(root: Path, count: int, together: frozenset[str]) -> Mapping[str, int]:
    """Return the share, from 0, of each test file below `root`, by its relative path.

    The files of `together` get the same share.
    """
    files = sorted(one.relative_to(root).as_posix() for one in root.glob("tests/**/test_*.py"))
    groups = [[one for one in files if one in together], *([one] for one in files if one not in together)]
    return divided(groups, last_times(root / TIMES), count)


def last_times(path: Path) -> dict[str, float]:
    """Return the seconds that each file needed, {} if there was no run."""
    found: Counter[str] = Counter()
    with suppress(FileNotFoundError, ET.ParseError):
        for case in ET.parse(path).iter("testcase"):
            found[case.get("classname", "").replace(".", "/") + ".py"] += float(case.get("time", "0"))
    return dict(found)


def divided(groups: Iterable[Sequence[str]], times: Mapping[str, float], count: int) -> dict[str, int]:
    """Return the share of each file: the longest group first, each to the share with the smallest sum so far."""
    usual = fmean(times.values()) if times else 1.0
    weighed = [(sum(times.get(one, usual) for one in group), group) for group in groups]
    sums, found = [0.0] * count, dict[str, int]()
    for weight, group in sorted(weighed, key=lambda one: -one[0]):
        share = sums.index(min(sums))
        sums[share] += weight
        found.update(dict.fromkeys(group, share))
    return found
