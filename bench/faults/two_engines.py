"""Two engines on one topology without leader election, one of which is repeatedly suspended and resumed.

    .venv/bin/python -m bench.faults.two_engines [--rounds 100] [--pods 6] [--seed 1]

In every round pods are deleted and recreated under their names, and the objects that they refer to are changed, while
one of the two engines is stopped (SIGSTOP): either from before the changes until all are done, or somewhere in the
middle. It resumes (SIGCONT) with an outdated view of the clusters. No pod may ever run twice, objects of other owners
may not be changed, every write has to be fenced, and writes of an engine that come too late have to be refused.
"""

import argparse
import asyncio
import sys
import time
from base64 import b64encode
from collections import Counter
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import orjson

from bench.kit import histories, topologies
from bench.kit.child_processes import Child
from bench.kit.clusters import on_clusters
from bench.kit.faultproxy.journal import Write
from bench.kit.final_states import Objects
from bench.kit.histories import PodEvent
from bench.kit.oracles import is_ready, uid_of, upper_uid_of
from bench.kit.reporting import RESULTS, keep, verdict
from bench.kit.rig import LOWERS, Rig
from bench.kit.sites import MERGE, NotInTime, Refused, until
from bench.kit.trial_namespace import TrialNamespace
from tensile.sandbox.sandbox import Sandbox
from tensile.sandbox.state import UPPER

NAME = "faults-twins"
ELSEWHERE = "127.0.0.2"
PATIENCE = 60.0
LONGEST_STOP = 1.0
QUIET = 3.0
CONFLICT = 409
SETTINGS, PASSWORD = "settings", "password"


class EnginePair(NamedTuple):
    """A rig with two engines, and a namespace on it."""

    rig: Rig
    ns: TrialNamespace
    engines: tuple[Child, Child]


def second(rig: Rig) -> Path:
    """Write the topology of a second replica: another user and address, the same nodes."""
    directory = rig.directory / "second"
    directory.mkdir()
    for name, proxy in rig.proxies.items():
        text = topologies.kubeconfig(rig.sandbox.clusters[name], second_user(rig), server=proxy.url)
        (directory / f"{name}.kubeconfig").write_text(text)
    for name in ("kubelet.crt", "kubelet.key"):
        (directory / name).write_bytes((rig.directory / name).read_bytes())
    topology = orjson.loads((rig.directory / "topology.yaml").read_bytes())
    topology["kubelet"] |= {"bind": ELSEWHERE, "nodeAddress": ELSEWHERE}
    topology["telemetry"]["bind"] = ELSEWHERE
    (directory / "topology.yaml").write_bytes(orjson.dumps(topology))
    return directory


def second_user(rig: Rig) -> str:
    """Return the user name of the second engine in the clusters."""
    return f"{rig.name}-second"


@asynccontextmanager
async def start_pair(sandbox: Sandbox, directory: Path) -> AsyncIterator[EnginePair]:
    """Yield two engines that have started, and a namespace."""
    async with Rig(sandbox, directory) as rig:
        first, place = rig.start(), second(rig)
        command = ["tensile", "run", "-f", str(place / "topology.yaml"), "--log-format", "json"]
        other = Child(command, sandbox, place / "engine.log")
        try:
            await until(first.has_started, "the first engine has started", PATIENCE)
            await until(other.has_started, "the second engine has started", PATIENCE)
            await rig.wait_until_usable()
            async with TrialNamespace(rig) as ns:
                yield EnginePair(rig, ns, (first, other))
        finally:
            for one in (first, other):
                one.resume()
            other.kill()


class Slots:
    """Pods of fixed names, each recreated again and again; `uids` are those of the current pods."""

    def __init__(self, pair: EnginePair, count: int) -> None:
        self._pair = pair
        self._names = [f"slot-{number}" for number in range(count)]
        self.uids: dict[str, str] = {}

    async def create_objects(self) -> None:
        """Create all pods, and the objects that they refer to."""
        ns, upper = self._pair.ns, self._pair.rig.upper
        await upper.call("POST", ns.path("configmaps"), {"metadata": {"name": SETTINGS}, "data": {"n": "0"}})
        await upper.call("POST", ns.path("secrets"), {"metadata": {"name": PASSWORD}, "data": {"n": "MA=="}})
        for name in self._names:
            await self._make(name)

    async def change_something(self, chance: Random, number: int) -> None:
        """Recreate half of the pods and change the objects that all refer to, in the round of that number."""
        ns, upper = self._pair.ns, self._pair.rig.upper
        chosen = chance.sample(self._names, max(1, len(self._names) // 2))
        await asyncio.gather(*(self._renew(name) for name in chosen))
        await upper.call("PATCH", ns.path("configmaps", SETTINGS), {"data": {"n": str(number)}}, MERGE)
        await upper.call("PATCH", ns.path("secrets", PASSWORD), {"stringData": {"n": str(number)}}, MERGE)

    async def settled(self, number: int) -> None:
        """Return when every pod is Ready, has one lower pod, and all data is that of the round of that number."""
        wrong: list[str] = []

        def is_settled(found: Objects) -> bool:
            """Report whether nothing is wrong, and record what is wrong."""
            wrong[:] = self._wrong(found, number)
            return not wrong

        try:
            await self._pair.ns.wait_until(is_settled, f"round {number}", PATIENCE)
        except NotInTime as error:
            raise NotInTime(f"{error}: {'; '.join(wrong)}") from None

    async def clear(self) -> None:
        """Delete all pods, and return when none is left in any cluster."""
        ns = self._pair.ns
        for name in self._names:
            await self._pair.rig.upper.delete(ns.path("pods", name) + "?gracePeriodSeconds=1")
        await ns.wait_until(lambda found: not any(found[name]["pods"] for name in found), "no pod is left", PATIENCE)

    def _wrong(self, found: Objects, number: int) -> list[str]:
        """Return what is wrong in the round of that number."""
        ready = {one["metadata"]["name"]: uid_of(one) for one in found[UPPER]["pods"] if is_ready(one)}
        problems = [f"{name} is not Ready" for name, uid in self.uids.items() if ready.get(name) != uid]
        below = Counter(upper_uid_of(one) for name in LOWERS for one in found[name]["pods"])
        problems += [f"{below[uid]} pods are below for {name}" for name, uid in self.uids.items() if below[uid] != 1]
        problems += [f"a pod is below for {uid}, which is gone" for uid in below if uid not in self.uids.values()]
        values = {SETTINGS: str(number), PASSWORD: b64encode(str(number).encode()).decode()}
        for name in LOWERS:
            for one in (*found[name]["configmaps"], *found[name]["secrets"]):
                called, value = one["metadata"]["name"], one["data"].get("n")
                if value != values.get(called, value):
                    problems.append(f"{name}: {called} says {value}")
        return problems

    async def _renew(self, name: str) -> None:
        """Delete a pod, and recreate it as soon as its name is free."""
        await self._pair.rig.upper.delete(self._pair.ns.path("pods", name) + "?gracePeriodSeconds=1")

        async def is_made() -> bool:
            """Report whether the pod could be created; its name is in use until an engine has finished the deletion."""
            try:
                await self._make(name)
            except Refused as error:
                if error.status != CONFLICT:
                    raise
                return False
            return True

        await until(is_made, f"{name} is made anew", PATIENCE)

    async def _make(self, name: str) -> None:
        """Create a pod; its name determines its lower cluster."""
        lower = LOWERS[sum(name.encode()) % len(LOWERS)]
        volumes = [
            {"name": "c", "configMap": {"name": SETTINGS}},
            {"name": "s", "secret": {"secretName": PASSWORD}},
        ]
        spec = {
            "nodeName": self._pair.rig.nodes[lower],
            "terminationGracePeriodSeconds": 1,
            "containers": [{"name": "main", "image": "app:1"}],
            "volumes": volumes,
        }
        body = {"metadata": {"name": name}, "spec": spec}
        made = await self._pair.rig.upper.call("POST", self._pair.ns.path("pods"), body)
        self.uids[name] = uid_of(made)


async def turn(slots: Slots, victim: Child, chance: Random, number: int, *, throughout: bool) -> float:
    """Suspend one engine while objects change, and return the seconds until all has settled after it resumes."""
    if throughout:
        victim.suspend()
        await slots.change_something(chance, number)
        await asyncio.sleep(chance.uniform(0.0, LONGEST_STOP))
    else:
        stirring = asyncio.create_task(slots.change_something(chance, number))
        await asyncio.sleep(chance.uniform(0.0, LONGEST_STOP / 4))
        victim.suspend()
        await asyncio.sleep(chance.uniform(0.0, LONGEST_STOP))
        victim.resume()
        await stirring
    victim.resume()
    begin = time.monotonic()
    await slots.settled(number)
    return time.monotonic() - begin


async def write_all_the_time(rig: Rig, quiet: float) -> list[Write]:
    """Wait until nothing is written for so many seconds, up to a limit; return the writes of the last interval.

    Writes of nodes do not count, because the two engines disagree on them: each has its own address.
    """
    found: list[Write] = []
    for _ in range(4):
        start = len(rig.journal)
        await asyncio.sleep(quiet)
        found = [one for one in rig.writes_since(start) if not one.request.kind.startswith("nodes")]
        if not found:
            break
    return found


def recreated_pods(pod_events: Iterable[PodEvent]) -> list[str]:
    """No second lower pod was ever created for one upper pod.

    Args:
        pod_events: of the lower clusters, only pods of this topology.
    """
    made: dict[str, set[str]] = {}
    for pod_event in pod_events:
        made.setdefault(upper_uid_of(pod_event.pod), set()).add(uid_of(pod_event.pod))
    return [f"{len(pods)} lower pods were made for {uid}" for uid, pods in made.items() if uid and len(pods) > 1]


def statuses_by_user(writes: Iterable[Write]) -> dict[str, dict[str, int]]:
    """Count the answers to writes, by user and status."""
    found: dict[str, Counter[str]] = {}
    for one in writes:
        found.setdefault(one.request.user, Counter())[str(one.status)] += 1
    return {user: dict(sorted(counts.items())) for user, counts in sorted(found.items())}


def judged(pair: EnginePair, start: int, harmed: list[str]) -> tuple[dict[str, Any], list[str]]:
    """Return the writes after the first `start` ones, and the failures."""
    ns, writes = pair.ns, list(pair.rig.journal.since(start))
    lowers = [one for one in ns.pod_events if one.cluster != UPPER]
    counts = statuses_by_user(one for one in writes if ns.contains(one.request))
    conflicts = sum(one.get(str(CONFLICT), 0) for one in counts.values())
    broken = [
        *histories.lived_twice(lowers),
        *histories.reverted(one for one in ns.pod_events if one.cluster == UPPER),
        *histories.unfenced(writes),
        *recreated_pods(lowers),
        *harmed,
    ]
    broken += [] if len(counts) == len(pair.engines) else [f"only {list(counts)} wrote anything"]
    broken += [] if conflicts else ["no two writes were ever in conflict: nothing was tried"]
    return {"writes": counts, "conflicts": conflicts, "lower_pods": len({uid_of(one.pod) for one in lowers})}, broken


async def run_alternating(pair: EnginePair, rounds: int, pods: int, seed: int, quiet: float = QUIET) -> dict[str, Any]:
    """Run so many rounds, and return the result with the failures."""
    chance, start = Random(seed), len(pair.rig.journal)
    slots = Slots(pair, pods)
    await slots.create_objects()
    await slots.settled(0)
    await pair.ns.create_canaries()
    took = []
    for number in range(1, rounds + 1):
        victim = pair.engines[number % 2]
        took.append(await turn(slots, victim, chance, number, throughout=chance.choice((True, False))))
        print(f"round {number}: settled after {took[-1]:.2f} s", flush=True)
    noisy = await write_all_the_time(pair.rig, quiet)
    harmed = await pair.ns.find_damage()
    found, broken = judged(pair, start, harmed)
    broken += [f"{one.request} in a quiet time" for one in noisy]
    await slots.clear()
    return {"rounds": rounds, "pods": pods, "seed": seed, "slowest_s": round(max(took), 2), **found, "broken": broken}


def main() -> int:
    """Parse the arguments, run on an own sandbox, store the result, and return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=100, help="the number of rounds")
    parser.add_argument("--pods", type=int, default=6, help="the number of pods")
    parser.add_argument("--seed", type=int, default=time.time_ns() % 1_000_000, help="the seed of the random choices")
    parser.add_argument("--results", type=Path, default=RESULTS, help="the folder in which to write the result")
    args = parser.parse_args()

    async def scenario(sandbox: Sandbox, scratch: Path) -> dict[str, Any]:
        """Run with the arguments of the command line."""
        async with start_pair(sandbox, scratch) as pair:
            return await run_alternating(pair, args.rounds, args.pods, args.seed)

    kubernetes, result = on_clusters(scenario)
    path = keep(args.results, NAME, kubernetes, result)
    return verdict("twins", result["broken"], path)


if __name__ == "__main__":
    sys.exit(main())
