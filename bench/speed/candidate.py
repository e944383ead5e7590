"""The time and CPU that the engine needs to plan a candidate beside many pods, compared with `tensile plan`.

    .venv/bin/python -m bench.speed.candidate --pods 5000 --rounds 3

The engine reads its topology from a ConfigMap of the upper cluster, and mirrors the pods into two lower clusters. In
each round, a candidate is written for each of four edits. The seconds until ConfigMap NAME-plan has its plan are
measured, and the CPU time that the engine uses until then. `tensile plan` then plans the same text in a process of its
own.
"""

import asyncio
import resource
import subprocess
import sys
import time
from argparse import Namespace
from collections.abc import Callable, Iterator
from hashlib import sha256
from pathlib import Path
from statistics import median
from typing import Any

import orjson
import yaml

from bench.kit.child_processes import Child
from bench.kit.participants import wait_until_machine_idle, wait_until_nodes_usable
from bench.kit.sites import Manifest, NotInTime, Refused, until
from bench.kit.topologies import by_files, by_secrets
from bench.kit.trial import NAMESPACE, Trial, run
from bench.speed.comparison import roomy
from bench.speed.steady import at_rest, filled, usage
from tensile.names import CANDIDATE_SUFFIX, PLAN_SUFFIX
from tensile.sandbox.sandbox import Sandbox
from tensile.sandbox.state import UPPER

MAPS = f"/api/v1/namespaces/{NAMESPACE}/configmaps"
NAME, KEY = "topo", "topology.yaml"
SECONDS_AT_MOST, CPU_AT_MOST = 5.0, 0.5
"""The limit for the seconds to a plan, and for the CPU seconds beyond those of `tensile plan`."""
LIMIT = 60.0
Document = dict[str, Any]


def _relabel(lower: Document) -> None:
    lower["node"] = {"labels": {"edit": "yes"}}


def _drain(lower: Document) -> None:
    lower["maintenance"] = "drain"


def _retaint(lower: Document) -> None:
    lower["node"] = {"taints": [{"key": "edit", "value": "yes", "effect": "NoExecute"}]}


def _without_services(lower: Document) -> None:
    lower["controllers"] = ["PV", "ServiceAccount"]


EDITS: dict[str, Callable[[Document], None]] = {
    "label": _relabel,
    "drain": _drain,
    "taint": _retaint,
    "controllers": _without_services,
}
"""Edits of the first lower cluster, by name."""


def edited(topology: Document, edit: Callable[[Document], None], number: int) -> str:
    """Return the text of a topology after an edit; `number` makes the text of each round different."""
    first, *others = topology["lowers"]
    first = dict(first)
    edit(first)
    return f"# round {number}\n{yaml.safe_dump({**topology, 'lowers': [first, *others]}, sort_keys=False)}"


async def planned(trial: Trial, text: str) -> tuple[float, float, Manifest]:
    """Write a candidate. Return the seconds to its plan, the engine's CPU seconds, and the data of NAME-plan."""
    digest, found = sha256(text.encode()).hexdigest(), dict[str, Any]()

    async def is_there() -> bool:
        """Report whether the plan is the one of this candidate."""
        try:
            found.update((await trial.upper.call("GET", f"{MAPS}/{NAME}{PLAN_SUFFIX}")).get("data") or {})
        except Refused:
            return False
        return bool(found.get("candidateHash") == digest)

    cpu, begin = usage(trial).cpu, time.monotonic()
    await trial.apply_data(MAPS, NAME + CANDIDATE_SUFFIX, {KEY: text})
    await until(is_there, "the candidate is planned", LIMIT)
    return time.monotonic() - begin, usage(trial).cpu - cpu, found


async def planned_apart(path: Path) -> tuple[float, Document]:
    """Return the CPU seconds of `tensile plan`, and its output."""
    before, command = _children(), [sys.executable, "-m", "tensile", "plan", "-f", str(path), "-o", "json"]
    done = await asyncio.to_thread(subprocess.run, command, capture_output=True, check=False)
    if done.returncode not in (0, 2):
        raise NotInTime(f"tensile plan: exit code {done.returncode}: {done.stderr.decode()}")
    return _children() - before, orjson.loads(done.stdout)


def _children() -> float:
    """Return the CPU seconds of all children that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


async def compared(trial: Trial, name: str, text: str, by_file: str) -> dict[str, Any]:
    """Plan one edit as a candidate and by `tensile plan`; `by_file` is the text with paths of kubeconfigs."""
    await wait_until_machine_idle()
    await at_rest(trial)
    seconds, cpu, data = await planned(trial, text)
    path = trial.sandbox.directory / "candidate.yaml"
    path.write_text(by_file)
    apart, document = await planned_apart(path)
    if "error" in data:
        raise NotInTime(f"{name}: not planned: {data['error']}")
    summary = orjson.loads(data["plan.json"])["summary"]
    found = {"edit": name, "seconds": round(seconds, 2), "cpu_s": round(cpu, 2), "apart_cpu_s": round(apart, 2)}
    return {
        **found,
        "changes": sum(summary[part] for part in ("add", "change", "delete")),
        "same": summary == document["summary"],
    }


async def scenario(sandbox: Sandbox, args: Namespace) -> dict[str, Any]:
    """Plan each edit in each round."""
    topology = yaml.safe_load((sandbox.directory / "topology.yaml").read_text())
    files = {name: sandbox.directory / f"{name}.kubeconfig" for name in sandbox.clusters}
    of_file = by_files(topology, files)
    runs: list[dict[str, Any]] = []
    async with Trial(sandbox) as trial:
        of_map = by_secrets(topology, trial.lowers, NAMESPACE)
        await trial.keep_kubeconfigs(files)
        await trial.apply_data(MAPS, NAME, {KEY: yaml.safe_dump(of_map, sort_keys=False)})
        options = ["--configmap", f"{NAMESPACE}/{NAME}", "--kubeconfig", str(files[UPPER]), "--log-format", "json"]
        trial.engine = Child(["tensile", "run", *options], trial.sandbox, trial.log)
        await wait_until_nodes_usable(trial.upper, len(trial.lowers))
        await filled(trial, args.pods)
        for number in range(args.rounds):
            for name, edit in EDITS.items():
                texts = (edited(one, edit, number) for one in (of_map, of_file))
                runs.append(await compared(trial, name, *texts))
                print(" ".join(f"{key}={value}" for key, value in runs[-1].items()), flush=True)
    return {"runs": runs, "medians": medians(runs), "broken": [failure for one in runs for failure in _broken(one)]}


def medians(runs: list[dict[str, Any]]) -> dict[str, dict[str, float]]:
    """Return the medians of each edit."""
    fields = ("seconds", "cpu_s", "apart_cpu_s")
    return {
        name: {field: round(median(one[field] for one in runs if one["edit"] == name), 2) for field in fields}
        for name in EDITS
    }


def _broken(one: dict[str, Any]) -> Iterator[str]:
    """Yield which bars one plan exceeded."""
    if one["seconds"] > SECONDS_AT_MOST:
        yield f"{one['edit']}: planned after {one['seconds']} s, at most {SECONDS_AT_MOST:g} s"
    if one["cpu_s"] > one["apart_cpu_s"] + CPU_AT_MOST:
        yield f"{one['edit']}: {one['cpu_s']} s of CPU, {one['apart_cpu_s']} s in a process of its own"
    if not one["same"]:
        yield f"{one['edit']}: the plans do not count the same changes"


if __name__ == "__main__":
    sys.exit(run("candidate", scenario, roomy(5000), pods=5000, rounds=3, doc=__doc__ or ""))
