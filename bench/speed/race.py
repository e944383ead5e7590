"""A race in rounds: the parties take turns on one sandbox, and the engine is judged by the ceiling's median.

Whatever else the machine does hits all parties alike, so only ratios of one sitting mean anything.
"""

import argparse
import asyncio
import tempfile
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from bench.kit.parties import PARTIES, Party, Turn, emptied, taking_part
from bench.kit.reporting import RESULTS, keep, medians, ratios, table
from bench.kit.sites import Site
from tensile.sandbox.apiserver import RESOURCES
from tensile.sandbox.sandbox import Sandbox
from tensile.sandbox.state import UPPER, Options

NAMESPACE = "default"
LIMIT = 400.0


class Race(NamedTuple):
    """What is measured: `run` gives one turn's numbers for so many pods, of which `fields` are compared.

    `result` is the name of the file of results, in which {pods} stands for their number. The engine's median of
    `deciding` may be up to `bar` times the ceiling's. `parties` are those that take part.
    """

    result: str
    run: Callable[[Turn, int], Awaitable[dict[str, Any]]]
    fields: Sequence[str]
    deciding: str
    bar: float
    parties: Sequence[Party] = PARTIES


async def take_turns(race: Race, sandbox: Sandbox, pods: int, rounds: int) -> list[dict[str, Any]]:
    """Run every party once a round, and return the runs in the order in which they were."""
    runs: list[dict[str, Any]] = []
    for number in range(1, rounds + 1):
        for party in race.parties:
            async with taking_part(party, sandbox) as turn:
                run = {"round": number, "party": party.name, "load": turn.load, **await race.run(turn, pods)}
                await emptied(sandbox, NAMESPACE, LIMIT)
            runs.append(run)
            print(" ".join(f"{key}={value}" for key, value in run.items() if key != "seconds"), flush=True)
    return runs


async def measure(race: Race, sandbox: Sandbox, pods: int, rounds: int, results: Path) -> int:
    """Run all rounds, keep and print them, and return the exit code."""
    runs = await take_turns(race, sandbox, pods, rounds)
    async with Site(sandbox.clusters[UPPER]) as site:
        kubernetes = await site.version()
    found = {party.name: medians(runs, party.name, race.fields) for party in race.parties}
    against = ratios(found, race.fields)
    result = {"pods": pods, "rounds": rounds, "medians": found, "ratios": against, "bar": race.bar, "runs": runs}
    path = keep(results, race.result.format(pods=pods), kubernetes, result)
    ratio = against["ceiling"][race.deciding]
    print(table(found, race.fields))
    others = ", ".join(f"{row[race.deciding]:g} x {name}" for name, row in against.items() if name != "ceiling")
    print(f"{race.deciding}: {ratio:g} x the ceiling (bar {race.bar:g}), {others} ({path})")
    return 0 if ratio <= race.bar else 1


def roomy(pods: int) -> Options:
    """Return each lower nodes enough for all of the pods: one cluster alone takes them."""
    return Options(nodes=max(Options().nodes, pods // int(RESOURCES["pods"]) + 1))


def main(race: Race, pods: int, words: str | None) -> int:
    """Read the arguments, start a sandbox, measure; `pods` is how many there are unless the command line says."""
    parser = argparse.ArgumentParser(description=(words or "").splitlines()[0])
    parser.add_argument("--pods", type=int, default=pods)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--results", type=Path, default=RESULTS)
    given = parser.parse_args()
    with (
        tempfile.TemporaryDirectory() as scratch,
        Sandbox.start(Path(scratch) / "sandbox", roomy(given.pods)) as sandbox,
    ):
        return asyncio.run(measure(race, sandbox, given.pods, given.rounds, given.results))
