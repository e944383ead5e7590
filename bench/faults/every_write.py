"""The engine is killed at every write of a workload: before it, after it, and when its response is lost.

    .venv/bin/python -m bench.faults.every_write [--workloads create,update] [--moments lost] [--rigs 2] [--every 1]

An undisturbed run of each workload is the reference. Then, for each of its writes and each moment, the engine is killed
there and restarted: within ten seconds it has to be ready and everything as at the reference's end; no object may have
been created twice and no pod have run twice, objects of other owners may not be changed, every write must be fenced,
and then the engine has to be quiet.

At another moment, "cut", the response is lost and the engine keeps running. Stored results of workloads and moments
that are not selected are kept, so that the campaign can be split into several runs.
"""

import argparse
import asyncio
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from bench.faults.workloads import WORKLOADS, Workload
from bench.kit import histories
from bench.kit.clusters import on_clusters
from bench.kit.faultproxy.faults import Dropped, Fault, Hung, Lost, Passed
from bench.kit.faultproxy.requests import ProxiedRequest
from bench.kit.final_states import State, differences
from bench.kit.histories import Place
from bench.kit.reporting import RESULTS, keep, kept_before, verdict
from bench.kit.rig import Rig
from bench.kit.sites import NotInTime, until
from bench.kit.trial_namespace import TrialNamespace
from tensile.sandbox.sandbox import Sandbox
from tensile.sandbox.state import UPPER

NAME = "faults-everywrite"
MOMENTS = ("before", "after", "lost", "cut")
RECOVERED_IN = 10.0
QUIET = 1.5
MOST = 60
"""The number of writes of one workload at which the campaign stops, because the writes do not end."""
PATIENCE = 60.0
"""Seconds until waiting times out; a machine that is shared is slow."""


class Reference(NamedTuple):
    """The outcome of an undisturbed run: its final state, its writes by place, and how many of them count."""

    state: State
    writes: Counter[Place]
    number: int


class Crash:
    """Strikes at the write of that number (from 1 on); after that no request of the engine passes any more.

    With "cut" the engine keeps running, and all other requests pass. `struck` is the write at which it strikes,
    `is_over` whether it has done so.
    """

    def __init__(
        self, number: int, moment: str, counts: Callable[[ProxiedRequest], bool], kill: Callable[[], None]
    ) -> None:
        self.interrupted_write: ProxiedRequest | None = None
        self.is_over = False
        self.seen = 0
        self._number = number
        self._moment = moment
        self._counts = counts
        self._kill = kill
        self._is_blocked = False

    async def fault_for(self, request: ProxiedRequest) -> Fault:
        """Count writes, and strike at the right one."""
        if self._is_blocked:
            return Hung()
        if not request.is_write or not self._counts(request):
            return Passed()
        self.seen += 1
        if self.seen != self._number:
            return Passed()
        self.interrupted_write = request
        self._is_blocked = self._moment != "cut"
        if self._moment == "before":
            self._end()
            return Dropped()
        return Passed() if self._moment == "after" else Lost()

    async def on_executed(self, request: ProxiedRequest, _status: int) -> None:
        """Kill the engine before it receives the response."""
        if request == self.interrupted_write and self._moment in ("lost", "cut"):
            self._end()

    async def on_responded(self, request: ProxiedRequest, _status: int) -> None:
        """Kill the engine after it has received the response."""
        if request == self.interrupted_write and self._moment == "after":
            self._end()

    def is_again(self, request: ProxiedRequest) -> bool:
        """Report whether this is the write whose response was lost, which the engine retries after a back-off."""
        return self._moment == "cut" and str(request) == str(self.interrupted_write)

    def _end(self) -> None:
        if self._moment != "cut":
            self._kill()
        self.is_over = True


async def reference(rig: Rig, workload: Workload) -> Reference:
    """Run a workload undisturbed."""
    async with TrialNamespace(rig) as ns:
        await workload.prepare(ns)
        start = await rig.wait_until_idle(len(rig.journal), QUIET)
        await workload.run(ns)
        await ns.wait_until(workload.is_complete, f"{workload.name}: done", PATIENCE)
        await rig.wait_until_idle(start, QUIET)
        writes = [one for one in rig.writes_since(start) if workload.is_counted(ns, one.request)]
        found = Reference(await ns.state(), histories.counted(writes), len(writes))
        await end(ns, workload)
        return found


async def interrupt_at_write(
    rig: Rig, workload: Workload, known: Reference, number: int, moment: str
) -> dict[str, Any]:
    """Run a workload and kill the engine at one write; return the outcome, with "struck" None if no write was left."""
    async with TrialNamespace(rig) as ns:
        await workload.prepare(ns)
        start = await rig.wait_until_idle(len(rig.journal), QUIET / 3)
        crash = Crash(number, moment, lambda request: workload.is_counted(ns, request), rig.kill)
        rig.set_director(crash)
        await workload.run(ns)
        await until(
            lambda: is_interrupted_or_complete(ns, workload, known, crash), f"{workload.name}: struck or done", PATIENCE
        )
        rig.set_director()
        begin = time.monotonic()
        if crash.interrupted_write is not None and moment != "cut":
            rig.start()
        broken = await wait_until_recovered(ns, known)
        took = time.monotonic() - begin
        if not broken:
            broken = await writes_while_idle(ns, workload, crash, start)
        broken += await check_run(ns, workload, known, start)
        await end(ns, workload)
        struck = (
            None
            if crash.interrupted_write is None
            else f"{crash.interrupted_write.verb} {crash.interrupted_write.kind}"
        )
        return {
            "deed": workload.name,
            "write": number,
            "moment": moment,
            "struck": struck,
            "s": round(took, 2),
            "broken": broken,
        }


async def writes_while_idle(ns: TrialNamespace, workload: Workload, crash: Crash, start: int) -> list[str]:
    """Wait until the engine is idle, and return the writes that it makes then, or the error if it is never idle."""
    try:
        idle = await ns.rig.wait_until_idle(start, QUIET)
    except NotInTime as error:
        return [str(error)]
    await asyncio.sleep(QUIET)
    counted = [one.request for one in ns.rig.writes_since(idle) if workload.is_counted(ns, one.request)]
    late = [request for request in counted if request.resource not in workload.late and not crash.is_again(request)]
    return [f"{request} in a quiet time" for request in late]


async def is_interrupted_or_complete(ns: TrialNamespace, workload: Workload, known: Reference, crash: Crash) -> bool:
    """Report whether the engine was struck, or has no write left."""
    if crash.interrupted_write is not None:
        return crash.is_over
    if not workload.is_complete(await ns.objects()) or differences(known.state, await ns.state()):
        return False
    await ns.rig.wait_until_idle(len(ns.rig.journal), QUIET)
    return True


async def wait_until_recovered(ns: TrialNamespace, known: Reference) -> list[str]:
    """Return when the engine is ready and the state equals the reference; return the differences after a timeout."""

    async def is_alike() -> bool:
        """Report whether the engine is ready and its state equals the reference."""
        return await ns.rig.is_ready() and not differences(known.state, await ns.state())

    try:
        await until(is_alike, "as the reference", PATIENCE)
    except NotInTime as error:
        return [str(error), *differences(known.state, await ns.state())]
    return []


async def check_run(ns: TrialNamespace, workload: Workload, known: Reference, start: int) -> list[str]:
    """Check the run against the oracles."""
    writes = [one for one in ns.rig.writes_since(start) if workload.is_counted(ns, one.request)]
    lowers = [pod_event for pod_event in ns.pod_events if pod_event.cluster != UPPER]
    return [
        *histories.lived_twice(lowers),
        *histories.reverted(pod_event for pod_event in ns.pod_events if pod_event.cluster == UPPER),
        *histories.unfenced(ns.rig.journal.since(start)),
        *histories.made_twice(writes),
        *histories.written_too_often(known.writes, writes),
        *await ns.find_damage(),
    ]


async def end(ns: TrialNamespace, workload: Workload) -> None:
    """Restore everything, and return when no pod of the namespace is left in any cluster."""
    await workload.restore(ns)
    await ns.wait_until(lambda found: not any(found[name]["pods"] for name in found), "no pod is left", PATIENCE)


async def every_write(
    rig: Rig, workload: Workload, moment: str, numbers: Iterable[int], within: float
) -> dict[str, Any]:
    """Strike at these writes of a workload, as many as it has, and return the result with the failures.

    Args:
        rig: one whose engine runs.
        workload: the workload.
        moment: one of MOMENTS.
        numbers: of the writes, from 1 on.
        within: the seconds from the restart in which everything has to be right again.
    """
    known = await reference(rig, workload)
    trials: list[dict[str, Any]] = []
    for number in numbers:
        trial = await interrupt_at_write(rig, workload, known, number, moment)
        if trial["struck"] is None:
            break
        trial["broken"] += [f"only after {trial['s']:.1f} s"] if trial["s"] > within else []
        trials.append(trial)
        print(workload.name, moment, " ".join(f"{key}={value}" for key, value in trial.items()), flush=True)
    return {
        "deed": workload.name,
        "moment": moment,
        "writes": known.number,
        "strikes": len(trials),
        "date": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "slowest_s": max((one["s"] for one in trials), default=0.0),
        "at": dict(Counter(one["struck"] for one in trials)),
        "broken": [
            f"{workload.name}, {moment} write {one['write']}: {failure}" for one in trials for failure in one["broken"]
        ],
    }


async def scenario(sandbox: Sandbox, args: argparse.Namespace) -> dict[str, Any]:
    """Run the workloads, several at a time on separate rigs."""
    wanted = [workload for workload in WORKLOADS if not args.workloads or workload.name in args.workloads.split(",")]
    moments = [moment for moment in MOMENTS if not args.moments or moment in args.moments.split(",")]
    pairs = [(workload, moment) for workload in wanted for moment in moments]
    found: list[dict[str, Any]] = []

    async def work() -> None:
        """Run one workload after the other on a rig."""
        async with AsyncExitStack() as stack:
            directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            rig = await stack.enter_async_context(Rig(sandbox, directory))
            rig.start()
            await rig.wait_until_usable()
            while pairs:
                workload, moment = pairs.pop(0)
                found.append(await every_write(rig, workload, moment, range(1, MOST, args.every), RECOVERED_IN))

    await asyncio.gather(*(work() for _ in range(args.rigs)))
    return {"runs": found}


def merged(before: Iterable[dict[str, Any]], now: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """Return one result of earlier and new runs: new ones replace earlier ones of the same workload and moment."""
    names = [workload.name for workload in WORKLOADS]
    newest = {(one["deed"], one["moment"]): one for one in (*before, *now) if one["deed"] in names}
    runs = sorted(newest.values(), key=lambda one: (names.index(one["deed"]), MOMENTS.index(one["moment"])))
    broken = [failure for one in runs for failure in one["broken"]]
    return {"strikes": sum(one["strikes"] for one in runs), "runs": runs, "broken": broken}


def main() -> int:
    """Parse the arguments, run on an own sandbox, store the result, and return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--workloads",
        default="",
        help="the workloads to run, separated by commas; default: all of " + ",".join(one.name for one in WORKLOADS),
    )
    parser.add_argument(
        "--moments", default="", help="the moments to run, separated by commas; default: all of " + ",".join(MOMENTS)
    )
    parser.add_argument("--rigs", type=int, default=2, help="the number of rigs that run at the same time")
    parser.add_argument("--every", type=int, default=1, help="interrupt only every Nth write")
    parser.add_argument(
        "--sandbox", type=Path, default=None, help="the directory of a running sandbox; default: start one"
    )
    parser.add_argument("--results", type=Path, default=RESULTS, help="the folder in which to write the result")
    args = parser.parse_args()
    kubernetes, result = on_clusters(lambda sandbox, _scratch: scenario(sandbox, args), args.sandbox)
    whole = merged(kept_before(args.results, NAME).get("runs", ()), result.get("runs", ()))
    whole["broken"] += result.get("broken", ())
    path = keep(args.results, NAME, kubernetes, whole)
    return verdict(NAME, whole["broken"], path)


if __name__ == "__main__":
    sys.exit(main())
