"""A comparison in rounds: the parties take turns on one sandbox; the engine is judged by the median of the bare loop.

Other load of the machine affects all parties alike, so only ratios within one run are meaningful.
"""

import argparse
import asyncio
import tempfile
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from bench.kit.participants import PARTICIPANTS, Participant, Turn, running_participant, wait_until_no_pods
from bench.kit.reporting import RESULTS, keep, medians, ratios, table
from bench.kit.sites import Site
from tensile.sandbox.apiserver import RESOURCES
from tensile.sandbox.sandbox import Sandbox
from tensile.sandbox.state import UPPER, Options

NAMESPACE = "default"
LIMIT = 400.0


class Race(NamedTuple):
    """A measurement: `run` returns the results of one turn with so many pods, of which `fields` are compared.

    `result` is the name of the file of results, in which {pods} is replaced by their number. The engine's median of
    `deciding` may be up to `bar` times that of the ceiling. `parties` are those that take part.
    """

    result: str
    run: Callable[[Turn, int], Awaitable[dict[str, Any]]]
    fields: Sequence[str]
    deciding: str
    bar: float
    participants: Sequence[Participant] = PARTICIPANTS


async def take_turns(race: Race, sandbox: Sandbox, pods: int, rounds: int) -> list[dict[str, Any]]:
    """Run every party once a round; return the runs in their order."""
    runs: list[dict[str, Any]] = []
    for number in range(1, rounds + 1):
        for participant in race.participants:
            async with running_participant(participant, sandbox) as turn:
                run = {"round": number, "party": participant.name, "load": turn.load, **await race.run(turn, pods)}
                await wait_until_no_pods(sandbox, NAMESPACE, LIMIT)
            runs.append(run)
            print(" ".join(f"{key}={value}" for key, value in run.items() if key != "seconds"), flush=True)
    return runs


async def measure(race: Race, sandbox: Sandbox, pods: int, rounds: int, results: Path) -> int:
    """Run all rounds, store and print the results; return the exit code."""
    runs = await take_turns(race, sandbox, pods, rounds)
    async with Site(sandbox.clusters[UPPER]) as site:
        kubernetes = await site.version()
    found = {participant.name: medians(runs, participant.name, race.fields) for participant in race.participants}
    against = ratios(found, race.fields)
    result = {"pods": pods, "rounds": rounds, "medians": found, "ratios": against, "bar": race.bar, "runs": runs}
    path = keep(results, race.result.format(pods=pods), kubernetes, result)
    ratio = against["ceiling"][race.deciding]
    print(table(found, race.fields))
    others = ", ".join(f"{row[race.deciding]:g} x {name}" for name, row in against.items() if name != "ceiling")
    print(f"{race.deciding}: {ratio:g} x the ceiling (bar {race.bar:g}), {others} ({path})")
    return 0 if ratio <= race.bar else 1


def roomy(pods: int) -> Options:
    """Return options that give each lower cluster enough nodes for all of the pods, because one alone runs them all."""
    return Options(nodes=max(Options().nodes, pods // int(RESOURCES["pods"]) + 1))


def main(race: Race, pods: int, words: str | None) -> int:
    """Parse the arguments, start a sandbox and measure; `pods` is the default number of pods."""
    parser = argparse.ArgumentParser(description=(words or "").splitlines()[0])
    parser.add_argument("--pods", type=int, default=pods, help="the number of pods")
    parser.add_argument(
        "--rounds", type=int, default=5, help="the number of rounds, in each of which every participant has one turn"
    )
    parser.add_argument("--results", type=Path, default=RESULTS, help="the folder in which to write the result")
    args = parser.parse_args()
    with (
        tempfile.TemporaryDirectory() as scratch,
        Sandbox.start(Path(scratch) / "sandbox", roomy(args.pods)) as sandbox,
    ):
        return asyncio.run(measure(race, sandbox, args.pods, args.rounds, args.results))
