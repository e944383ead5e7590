"""Objects of other owners occupy names that the engine needs: each stays unchanged, and the engine reports it.

    .venv/bin/python -m bench.faults.name_conflicts [--kinds Pod,Node]

The engine is stopped while most of them are created, works among them, is killed, and works among them again. Then the
clusters' audit logs show whether it has written to any of them, and its own log shows whether it reported each. A few
kinds are tested at a time, so that each part ends within two minutes.
"""

import asyncio
import sys
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Iterable, Sequence
from typing import Any

import yaml

from bench.faults.foreign_objects import FOREIGN_KINDS, FORMS, Case, ObjectLocation, UpperObject, cases, marks
from bench.kit import audit
from bench.kit.child_processes import Child
from bench.kit.sites import MERGE, Manifest, NotInTime, Refused, Site, until
from bench.kit.trial import AGENT, LIMIT, TOPOLOGY, Trial, run
from tensile.names import Owner, owner_of
from tensile.sandbox.processes import choose
from tensile.sandbox.sandbox import Sandbox
from tensile.sandbox.state import UPPER, Options

FILE = "strangers.yaml"
ENGINE_FIELD_MANAGER = "fieldManager=tensile-kube"
LONGEST = 240.0
ABREAST = 4
"""The number of kinds at a time."""


class ConflictTrial(Trial):
    """A trial with a namespace prefix in lower-b, and another lower cluster for each canary that is a Node.

    Those have no controllers: they use the cluster of lower-a, whose claims and accounts they must not delete.
    """

    owner: Owner

    def __init__(self, sandbox: Sandbox, ports: int) -> None:
        super().__init__(sandbox)
        self.extra: set[str] = set()
        self.ports = choose([ports])[0]
        self.seen: dict[Case, Manifest] = {}
        self.since: dict[str, int] = {}
        self._uids: dict[Case, str] = {}

    async def begin(self) -> None:
        """Determine the owner, and start the engine for the first time."""
        system = await self.upper.call("GET", "/api/v1/namespaces/kube-system")
        self.owner = owner_of(system["metadata"]["uid"], TOPOLOGY)
        self.write()
        await self.start_engine_and_nodes()

    def write(self) -> None:
        """Write the topology file with the lower clusters that are wanted now."""
        directory = self.sandbox.directory
        found = yaml.safe_load((directory / "topology.yaml").read_text())
        found["lowers"][1]["namespaces"] = {"mapping": "prefix"}
        found["controllers"] = ["PV", "Service", "ServiceAccount", "RBAC"]
        for port, name in zip(self.ports, sorted(self.extra), strict=False):
            node = {"name": name, "kubeletPort": port}
            entry = {"name": name, "kubeconfig": "lower-a.kubeconfig", "node": node, "controllers": []}
            found["lowers"].append(entry)
        fresh = directory / f"{FILE}.new"
        fresh.write_text(yaml.safe_dump(found))
        fresh.rename(directory / FILE)

    def start_engine(self) -> Child:
        """Start the engine on that file."""
        arguments = ["tensile", "run", "-f", str(self.sandbox.directory / FILE), "--log-format", "json"]
        self.engine = Child(arguments, self.sandbox, self.log)
        return self.engine

    def site(self, cluster: str) -> Site:
        """Return a cluster."""
        return self._site(cluster)

    def location_of(self, case: Case) -> ObjectLocation:
        """Return the place of a case's foreign object, which may not exist yet."""
        return case.foreign_kind.location(self._uids[case] if case.foreign_kind.by_uid else case.name)

    async def create_upper_objects(self, cases: Iterable[Case]) -> None:
        """Create the upper objects that need the names."""
        all_cases = tuple(cases)
        await asyncio.gather(*map(self._create_upper_objects, all_cases))
        self.extra |= {case.name for case in all_cases if case.kind == "Node"}
        self.write()

    async def _create_upper_objects(self, case: Case) -> None:
        above = case.foreign_kind.upper_objects(case.name)
        for made in above:
            await until(lambda made=made: self._is_created(made), f"{made.path} is made", LIMIT)
        if case.foreign_kind.by_uid and case not in self._uids:
            self._uids[case] = (await self.upper.call("GET", above[0].path))["metadata"]["uid"]

    async def _is_created(self, made: UpperObject) -> bool:
        """Create an object; return False while its namespace is being created or deleted, or the name is in use."""
        try:
            await self.upper.call("POST", made.collection, made.body)
        except Refused as error:
            if error.status in (403, 404, 409):
                return False
            raise
        return True

    async def delete_upper_objects(self, cases: Sequence[Case]) -> None:
        """Delete these upper objects, and wait until they are deleted."""
        self.extra -= {case.name for case in cases}
        self.write()
        await asyncio.gather(*map(self._delete_upper_objects, cases))

    async def _delete_upper_objects(self, case: Case) -> None:
        paths = [made.path for made in reversed(case.foreign_kind.upper_objects(case.name))]
        for path in paths:
            await self.upper.delete(path)
        for path in paths:
            await until(lambda path=path: self.is_deleted(self.upper, path), f"{path} is gone", LONGEST)

    async def is_deleted(self, site: Site, path: str) -> bool:
        """Report whether no object of that path exists."""
        try:
            await site.call("GET", path)
        except Refused as error:
            return error.status == 404  # noqa: PLR2004
        return False

    async def create_foreign_object(self, case: Case) -> None:
        """Create the foreign object in its place."""
        above, location = case.foreign_kind.upper_objects(case.name), self.location_of(case)
        upper = (await self.upper.call("GET", above[0].path))["metadata"]["uid"] if above else ""
        meta = {"name": location.name, **marks(case.form, self.owner, upper)}
        query = f"?{ENGINE_FIELD_MANAGER}" if case.form == "rival" else ""
        body = {"metadata": meta, **case.foreign_kind.content}
        await self.site(location.cluster).call("POST", f"{location.collection}{query}", body)

    async def read_foreign_object(self, case: Case) -> Manifest:
        """Return the current state of a foreign object."""
        location = self.location_of(case)
        return await self.site(location.cluster).call("GET", location.path)

    async def record_states(self, cases: Iterable[Case]) -> None:
        """Record the current state of foreign objects."""
        for case in cases:
            self.seen[case] = await self.read_foreign_object(case)

    def unreported(self, cases: Iterable[Case], since: int = 0) -> list[Case]:
        """Return the foreign objects that the engine has not reported; `since` is a position in its log."""
        log_text = self.log.read_bytes()[since:].decode()
        return [case for case in cases if self._log_message(case) not in log_text]

    def _log_message(self, case: Case) -> str:
        """Return the log message with which the engine reports a foreign object."""
        location = self.location_of(case)
        space = location.collection.partition("/namespaces/")[2].partition("/")[0]
        inside = f"{space}/" if space else ""
        where = "the upper cluster" if location.cluster == UPPER else f"lower cluster {location.cluster}"
        return f"{case.kind} {inside}{location.name} exists in {where} and has another owner"


async def create_foreign_objects(trial: ConflictTrial, cases: Sequence[Case]) -> None:
    """Create every foreign object while the engine is down; some replace objects of the engine."""
    early = [case for case in cases if case.moment == "took-place"]
    await trial.create_upper_objects(early)
    for case in early:
        await until(
            lambda case=case: _exists(trial, case), f"{trial.location_of(case).path} is made by the engine", LONGEST
        )
    await _ready(trial, early)
    _stop(trial)
    for location in map(trial.location_of, early):
        await trial.site(location.cluster).delete(f"{location.path}?gracePeriodSeconds=0")
    for location in map(trial.location_of, early):
        site, path = trial.site(location.cluster), location.path
        await until(lambda site=site, path=path: trial.is_deleted(site, path), f"{path} is gone", LONGEST)
    await trial.create_upper_objects([case for case in cases if case not in early])
    for case in cases:
        await trial.create_foreign_object(case)
    trial.since = {name: audit.position(trial.site(name).audit_log) for name in (UPPER, *trial.lowers)}


async def _exists(trial: ConflictTrial, case: Case) -> bool:
    try:
        await trial.read_foreign_object(case)
    except Refused:
        return False
    return True


async def _ready(trial: ConflictTrial, cases: Sequence[Case]) -> None:
    """Wait until the pods of cases run."""
    for case in cases:
        for made in case.foreign_kind.upper_objects(case.name)[-1:] if case.foreign_kind.runs else ():

            async def runs(path: str = made.path) -> bool:
                """Report whether the pod runs."""
                return bool((await trial.upper.call("GET", path)).get("status", {}).get("phase") == "Running")

            await until(runs, f"{made.path} runs", LIMIT)


def _stop(trial: ConflictTrial) -> None:
    assert trial.engine is not None
    trial.engine.stop()


async def run_moments(trial: ConflictTrial, cases: Sequence[Case]) -> None:
    """Let the engine work, apply the moments of the cases, kill the engine, and let it work again."""
    await wait_until_reported(trial, cases)
    await trial.record_states(cases)
    edited, left, anew = (
        [case for case in cases if case.moment == one] for one in ("edited", "given-up", "asked-anew")
    )
    for case in edited:
        change = {"metadata": {"annotations": {"example.com/edited": "yes"}}}
        location = trial.location_of(case)
        await trial.site(location.cluster).call("PATCH", location.path, change, MERGE)
    await trial.record_states(edited)
    await trial.delete_upper_objects([*left, *anew])
    await trial.create_upper_objects(anew)
    assert trial.engine is not None
    trial.engine.kill()
    await wait_until_reported(trial, [case for case in cases if _still_needs_name(case)])


def _still_needs_name(case: Case) -> bool:
    """Report whether an upper object still needs the name; a recreated claim has another volume."""
    return case.moment not in ("given-up", "took-place") and not (
        case.foreign_kind.by_uid and case.moment == "asked-anew"
    )


async def wait_until_reported(trial: ConflictTrial, cases: Sequence[Case]) -> None:
    """Start the engine, and wait until it has reported each foreign object."""
    since = trial.log.stat().st_size
    trial.start_engine()

    async def all_are_reported() -> bool:
        """Report whether the engine's log contains all reports."""
        return not trial.unreported(cases, since)

    try:
        await until(all_are_reported, "the engine reports every foreign object", LONGEST)
    except NotInTime as error:
        raise NotInTime(f"{error}: {[case.name for case in trial.unreported(cases, since)][:9]}") from None


async def broken(trial: ConflictTrial, cases: Sequence[Case]) -> list[str]:
    """Return the foreign objects that were changed, or that the engine has not reported."""
    found = [f"{case.name}: not reported" for case in trial.unreported(cases)]
    for case in cases:
        found += await _touched(trial, case)
    return found


async def _touched(trial: ConflictTrial, case: Case) -> list[str]:
    """Return the changes to one foreign object; nodes are also written by the cluster's own controllers."""
    location, before = trial.location_of(case), trial.seen[case]["metadata"]
    try:
        after = (await trial.read_foreign_object(case))["metadata"]
    except Refused:
        return [f"{case.name}: gone"]
    same = ("uid",) if case.kind == "Node" else ("uid", "resourceVersion")
    found = [f"{case.name}: another {one}" for one in same if before[one] != after[one]]
    records = audit.read(trial.site(location.cluster).audit_log, trial.since[location.cluster])
    return found + [f"{case.name}: {one['verb']} by the engine" for one in records if _is_write_to(one, location)]


def _is_write_to(record: audit.Record, location: ObjectLocation) -> bool:
    about = record.get("objectRef", {})
    return (
        str(record.get("userAgent", "")).startswith(AGENT)
        and record["verb"] in ("create", "update", "patch", "delete")
        and record.get("responseStatus", {}).get("code", 0) < 300  # noqa: PLR2004
        and (about.get("name"), about.get("resource")) == (location.name, location.collection.rpartition("/")[2])
    )


async def clear(trial: ConflictTrial, cases: Sequence[Case]) -> None:
    """Delete the foreign objects and everything that was created for them."""
    for location in map(trial.location_of, cases):
        await trial.site(location.cluster).delete(f"{location.path}?gracePeriodSeconds=0")
    await trial.delete_upper_objects([case for case in cases if case.moment != "given-up"])


async def name_conflicts(trial: ConflictTrial, cases: Sequence[Case]) -> dict[str, Any]:
    """Run all steps, and return the result with the failures."""
    await trial.begin()
    await create_foreign_objects(trial, cases)
    print(f"{len(cases)} foreign objects exist", flush=True)
    await run_moments(trial, cases)
    print("the engine has lived among them twice", flush=True)
    found = await broken(trial, cases)
    await clear(trial, cases)
    kinds = sorted({case.kind for case in cases})
    whole = sum(not any(failure.startswith(f"{case.name}:") for failure in found) for case in cases)
    return {"canaries": len(cases), "kinds": kinds, "untouched_and_told": whole, "broken": found}


async def scenario(sandbox: Sandbox, args: Namespace) -> dict[str, Any]:
    """Test these kinds in every situation, some kinds at a time."""
    parts = []
    kinds = args.kinds.split(",")
    for share in (kinds[start : start + ABREAST] for start in range(0, len(kinds), ABREAST)):
        everything, begin = cases(tuple(share), FORMS), time.monotonic()
        async with ConflictTrial(sandbox, len(everything)) as trial:
            parts.append(await name_conflicts(trial, everything))
        print(f"{', '.join(share)}: {time.monotonic() - begin:.0f} s", flush=True)
    return {
        "canaries": sum(part["canaries"] for part in parts),
        "kinds": sorted(kinds),
        "untouched_and_told": sum(part["untouched_and_told"] for part in parts),
        "broken": [failure for part in parts for failure in part["broken"]],
    }


def _kinds(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--kinds", default=",".join(FOREIGN_KINDS), help="the kinds to run, separated by commas; default: all"
    )


if __name__ == "__main__":
    sys.exit(run("strangers", scenario, Options(nodes=1), pods=0, rounds=1, doc=__doc__ or "", arguments=_kinds))
