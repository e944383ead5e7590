"""Makes saved plans stale in more than two hundred ways, each of which `tensile apply PLAN` has to refuse.

    .venv/bin/python -m bench.conformance.stale [--match 'configmap|node']

A plan is saved, one thing that it depends on changes, and the plan is applied. It has to be refused with exit code 1,
the message has to name the object or the cluster and its change, and nothing may be written. Twenty other changes must
not make the plan stale: its steps have to be applied.
"""

import argparse
import re
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from bench.conformance.stale.mirrored_kinds import WORDS, Change, Subject, subjects
from bench.conformance.stale.mirrored_kinds import prepare as prepare_subjects
from bench.conformance.stale.other_changes import OTHER_CHANGES, OtherChange, converge
from bench.conformance.stale.setup import GROUND, Done, PlanClusters
from bench.conformance.stale.unrelated_changes import UNRELATED_CHANGES
from bench.conformance.stale.unrelated_changes import prepare as prepare_harmless
from bench.kit.clusters import on_clusters
from bench.kit.reporting import RESULTS, keep, verdict
from bench.kit.sites import NotInTime, Refused
from tensile.sandbox.sandbox import Sandbox

NAME = "stale"
STALE = "The plan is stale. These have moved since it was made:"
UNCHANGED = "Nothing was changed. Plan again with `tensile plan --out FILE`."
Cases = dict[str, tuple[Subject, Change]]


def named() -> Cases:
    """Return the cases of mirrored kinds by their names."""
    return {f"{one.group}-{one.sort.kind.lower()}-{one.name}": (one, change) for one, change in subjects()}


def wrong(done: Done, wrote: list[str], says: str, about: str = "") -> Iterator[str]:
    """Yield how a refusal differs from the expected one; each line on what has changed has to contain `about`."""
    lines = done.err.removeprefix("Error: ").splitlines()
    output = "; ".join(lines) or done.out[-300:]
    if done.code != 1:
        yield f"exit code {done.code}: {output}"
    if not lines or STALE not in lines[0] or lines[-1] != UNCHANGED:
        yield f"not reported as stale: {output}"
    elif not any(re.search(says, line) for line in lines[1:-1]):
        yield f"another message than {says!r}: {output}"
    else:
        yield from (f"said besides: {line}" for line in lines[1:-1] if about not in line)
    yield from (f"it wrote: {one}" for one in wrote)


Attempt = Callable[[], Awaitable[list[str]]]


async def tried(name: str, attempt: Attempt) -> list[str]:
    """Return how a case differs from what is expected; a case that cannot be prepared differs too."""
    begin = time.monotonic()
    try:
        found = await attempt()
    except (NotInTime, Refused, AssertionError) as error:
        found = [str(error)]
    print(f"{name}: {found or 'right'} ({time.monotonic() - begin:.1f} s)", flush=True)
    return found


async def about_kinds(clusters: PlanClusters, cases: Cases) -> dict[str, list[str]]:
    """Try the cases of mirrored kinds, with plans of their namespace, so that applying one affects no other kind."""
    await prepare_subjects(clusters, [one for one, _ in cases.values()])

    async def attempt(subject: Subject, change: Change) -> list[str]:
        """Save a plan of the subject's namespace, change the subject, and apply the plan."""
        says = rf"{subject.lower}: {subject.sort.kind} {subject.namespace}/{subject.name}: "
        says += f"({'|'.join(WORDS[one] for one in change.reasons)})"
        await clusters.save("--namespace", subject.namespace)
        await change.way(clusters, subject)
        return [*wrong(*await clusters.apply(), says, subject.namespace)]

    return {name: await tried(name, partial(attempt, *case)) for name, case in cases.items()}


async def about_others(clusters: PlanClusters, names: list[str]) -> dict[str, list[str]]:
    """Try the other cases."""
    await converge(clusters)

    async def attempt(case: OtherChange) -> list[str]:
        """Save a plan, make the change of the case, and apply the plan."""
        if case.before is not None:
            await case.before(clusters)
        await clusters.save()
        async with case.changed(clusters):
            return [*wrong(*await clusters.apply(), case.says)]

    return {name: await tried(name, partial(attempt, OTHER_CHANGES[name])) for name in names}


async def unrelated_changes(clusters: PlanClusters, names: list[str]) -> dict[str, list[str]]:
    """Try the changes that must not make a plan stale."""
    await prepare_harmless(clusters)

    async def attempt(name: str) -> list[str]:
        """Make the change, and apply the saved plan, which has to apply its step."""
        await UNRELATED_CHANGES[name](clusters)
        done, wrote = await clusters.apply()
        found = [] if "Applied" in done.out + done.err else [f"refused: {done.err}"]
        if not any("/nodes/" in one for one in wrote):
            found.append("the label of the Node was not written")
        return found

    found: dict[str, list[str]] = {}
    for name in names:
        await converge(clusters)
        await clusters.save()
        found[name] = await tried(name, partial(attempt, name))
    return found


async def scenario(sandbox: Sandbox, match: str) -> dict[str, Any]:
    """Try all cases whose name matches a regular expression."""
    cases = {name: case for name, case in named().items() if re.search(match, name)}
    async with PlanClusters(sandbox) as clusters:
        fine = await unrelated_changes(clusters, [name for name in UNRELATED_CHANGES if re.search(match, name)])
        stale = await about_others(clusters, [name for name in OTHER_CHANGES if re.search(match, name)])
        stale |= await about_kinds(clusters, cases)
    broken = [f"{name}: {failure}" for name, found in (fine | stale).items() for failure in found]
    return {
        "stale": len(stale),
        "refused": sum(not found for found in stale.values()),
        "harmless": len(fine),
        "applied": sum(not found for found in fine.values()),
        "broken": broken,
    }


def main() -> int:
    """Run the selected cases, keep the result, and return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--match", default="", help="run only the cases whose name matches this regular expression")
    parser.add_argument("--results", type=Path, default=RESULTS, help="the folder in which to write the result")
    args = parser.parse_args()
    kubernetes, result = on_clusters(lambda sandbox, _scratch: scenario(sandbox, args.match), None, GROUND)
    path = keep(args.results, f"faults-{NAME}", kubernetes, result)
    print(", ".join(f"{word} {count}" for word, count in result.items() if word != "broken"), flush=True)
    return verdict(NAME, result["broken"], path)


if __name__ == "__main__":
    sys.exit(main())
