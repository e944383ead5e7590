"""Objects of other owners occupy names that the engine needs: each stays unchanged, and the engine reports it.

    .venv/bin/python -m bench.faults.strangers [--kinds Pod,Node]

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

from bench.faults.canaries import FORMS, SUBJECTS, Case, Made, Place, cases, marks
from bench.kit import audit
from bench.kit.children import Child
from bench.kit.sites import MERGE, Manifest, NotInTime, Refused, Site, until
from bench.kit.trial import AGENT, LIMIT, TOPOLOGY, Trial, run
from tensile.names import Owner, owner_of
from tensile.sandbox.processes import choose
from tensile.sandbox.sandbox import Sandbox
from tensile.sandbox.state import UPPER, Options

FILE = "strangers.yaml"
ENGINES_HAND = "fieldManager=tensile-kube"
LONGEST = 240.0
ABREAST = 4
"""The number of kinds at a time."""


class Field(Trial):
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

    def place(self, case: Case) -> Place:
        """Return the place of a case's foreign object, which may not exist yet."""
        return case.subject.stranger(self._uids[case] if case.subject.by_uid else case.name)

    async def ask(self, given: Iterable[Case]) -> None:
        """Create the upper objects that need the names."""
        asked = tuple(given)
        await asyncio.gather(*map(self._ask, asked))
        self.extra |= {case.name for case in asked if case.kind == "Node"}
        self.write()

    async def _ask(self, case: Case) -> None:
        above = case.subject.above(case.name)
        for made in above:
            await until(lambda made=made: self._made(made), f"{made.path} is made", LIMIT)
        if case.subject.by_uid and case not in self._uids:
            self._uids[case] = (await self.upper.call("GET", above[0].path))["metadata"]["uid"]

    async def _made(self, made: Made) -> bool:
        """Create an object; return False while its namespace is being created or deleted, or the name is in use."""
        try:
            await self.upper.call("POST", made.collection, made.body)
        except Refused as error:
            if error.status in (403, 404, 409):
                return False
            raise
        return True

    async def unask(self, given: Sequence[Case]) -> None:
        """Delete these upper objects, and wait until they are deleted."""
        self.extra -= {case.name for case in given}
        self.write()
        await asyncio.gather(*map(self._unask, given))

    async def _unask(self, case: Case) -> None:
        paths = [made.path for made in reversed(case.subject.above(case.name))]
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

    async def put(self, case: Case) -> None:
        """Create the foreign object in its place."""
        above, place = case.subject.above(case.name), self.place(case)
        upper = (await self.upper.call("GET", above[0].path))["metadata"]["uid"] if above else ""
        meta = {"name": place.name, **marks(case.form, self.owner, upper)}
        query = f"?{ENGINES_HAND}" if case.form == "rival" else ""
        body = {"metadata": meta, **case.subject.content}
        await self.site(place.cluster).call("POST", f"{place.collection}{query}", body)

    async def read(self, case: Case) -> Manifest:
        """Return the current state of a foreign object."""
        place = self.place(case)
        return await self.site(place.cluster).call("GET", place.path)

    async def note(self, given: Iterable[Case]) -> None:
        """Record the current state of foreign objects."""
        for case in given:
            self.seen[case] = await self.read(case)

    def untold(self, given: Iterable[Case], since: int = 0) -> list[Case]:
        """Return the foreign objects that the engine has not reported; `since` is a position in its log."""
        said = self.log.read_bytes()[since:].decode()
        return [case for case in given if self._words(case) not in said]

    def _words(self, case: Case) -> str:
        """Return the log message with which the engine reports a foreign object."""
        place = self.place(case)
        space = place.collection.partition("/namespaces/")[2].partition("/")[0]
        inside = f"{space}/" if space else ""
        where = "the upper cluster" if place.cluster == UPPER else f"lower cluster {place.cluster}"
        return f"{case.kind} {inside}{place.name} exists in {where} and has another owner"


async def stand_in_the_way(field: Field, given: Sequence[Case]) -> None:
    """Create every foreign object while the engine is down; some replace objects of the engine."""
    early = [case for case in given if case.moment == "took-place"]
    await field.ask(early)
    for case in early:
        await until(lambda case=case: _stands(field, case), f"{field.place(case).path} is made by the engine", LONGEST)
    await _ready(field, early)
    _stop(field)
    for place in map(field.place, early):
        await field.site(place.cluster).delete(f"{place.path}?gracePeriodSeconds=0")
    for place in map(field.place, early):
        site, path = field.site(place.cluster), place.path
        await until(lambda site=site, path=path: field.is_deleted(site, path), f"{path} is gone", LONGEST)
    await field.ask([case for case in given if case not in early])
    for case in given:
        await field.put(case)
    field.since = {name: audit.position(field.site(name).audit_log) for name in (UPPER, *field.lowers)}


async def _stands(field: Field, case: Case) -> bool:
    try:
        await field.read(case)
    except Refused:
        return False
    return True


async def _ready(field: Field, given: Sequence[Case]) -> None:
    """Wait until the pods of cases run."""
    for case in given:
        for made in case.subject.above(case.name)[-1:] if case.subject.runs else ():

            async def runs(path: str = made.path) -> bool:
                """Report whether the pod runs."""
                return bool((await field.upper.call("GET", path)).get("status", {}).get("phase") == "Running")

            await until(runs, f"{made.path} runs", LIMIT)


def _stop(field: Field) -> None:
    assert field.engine is not None
    field.engine.stop()


async def live_among(field: Field, given: Sequence[Case]) -> None:
    """Let the engine work, apply the moments of the cases, kill the engine, and let it work again."""
    await settled(field, given)
    await field.note(given)
    edited, left, anew = (
        [case for case in given if case.moment == one] for one in ("edited", "given-up", "asked-anew")
    )
    for case in edited:
        change = {"metadata": {"annotations": {"example.com/edited": "yes"}}}
        place = field.place(case)
        await field.site(place.cluster).call("PATCH", place.path, change, MERGE)
    await field.note(edited)
    await field.unask([*left, *anew])
    await field.ask(anew)
    assert field.engine is not None
    field.engine.kill()
    await settled(field, [case for case in given if _still_asks(case)])


def _still_asks(case: Case) -> bool:
    """Report whether an upper object still needs the name; a recreated claim has another volume."""
    return case.moment not in ("given-up", "took-place") and not (case.subject.by_uid and case.moment == "asked-anew")


async def settled(field: Field, given: Sequence[Case]) -> None:
    """Start the engine, and wait until it has reported each foreign object."""
    since = field.log.stat().st_size
    field.start_engine()

    async def all_told() -> bool:
        """Report whether the engine's log contains all reports."""
        return not field.untold(given, since)

    try:
        await until(all_told, "every stranger is told of", LONGEST)
    except NotInTime as error:
        raise NotInTime(f"{error}: {[case.name for case in field.untold(given, since)][:9]}") from None


async def broken(field: Field, given: Sequence[Case]) -> list[str]:
    """Return the foreign objects that were changed, or that the engine has not reported."""
    found = [f"{case.name}: not told of" for case in field.untold(given)]
    for case in given:
        found += await _touched(field, case)
    return found


async def _touched(field: Field, case: Case) -> list[str]:
    """Return the changes to one foreign object; nodes are also written by the cluster's own controllers."""
    place, before = field.place(case), field.seen[case]["metadata"]
    try:
        after = (await field.read(case))["metadata"]
    except Refused:
        return [f"{case.name}: gone"]
    same = ("uid",) if case.kind == "Node" else ("uid", "resourceVersion")
    found = [f"{case.name}: another {one}" for one in same if before[one] != after[one]]
    records = audit.read(field.site(place.cluster).audit_log, field.since[place.cluster])
    return found + [f"{case.name}: {one['verb']} by the engine" for one in records if _is_write_to(one, place)]


def _is_write_to(record: audit.Record, place: Place) -> bool:
    about = record.get("objectRef", {})
    return (
        str(record.get("userAgent", "")).startswith(AGENT)
        and record["verb"] in ("create", "update", "patch", "delete")
        and record.get("responseStatus", {}).get("code", 0) < 300  # noqa: PLR2004
        and (about.get("name"), about.get("resource")) == (place.name, place.collection.rpartition("/")[2])
    )


async def clear(field: Field, given: Sequence[Case]) -> None:
    """Delete the foreign objects and everything that was created for them."""
    for place in map(field.place, given):
        await field.site(place.cluster).delete(f"{place.path}?gracePeriodSeconds=0")
    await field.unask([case for case in given if case.moment != "given-up"])


async def strangers(field: Field, given: Sequence[Case]) -> dict[str, Any]:
    """Run all steps, and return the result with the failures."""
    await field.begin()
    await stand_in_the_way(field, given)
    print(f"{len(given)} strangers are in their places", flush=True)
    await live_among(field, given)
    print("the engine has lived among them twice", flush=True)
    found = await broken(field, given)
    await clear(field, given)
    kinds = sorted({case.kind for case in given})
    whole = sum(not any(words.startswith(f"{case.name}:") for words in found) for case in given)
    return {"canaries": len(given), "kinds": kinds, "untouched_and_told": whole, "broken": found}


async def scenario(sandbox: Sandbox, given: Namespace) -> dict[str, Any]:
    """Test these kinds in every situation, some kinds at a time."""
    parts = []
    kinds = given.kinds.split(",")
    for share in (kinds[start : start + ABREAST] for start in range(0, len(kinds), ABREAST)):
        everything, begin = cases(tuple(share), FORMS), time.monotonic()
        async with Field(sandbox, len(everything)) as field:
            parts.append(await strangers(field, everything))
        print(f"{', '.join(share)}: {time.monotonic() - begin:.0f} s", flush=True)
    return {
        "canaries": sum(part["canaries"] for part in parts),
        "kinds": sorted(kinds),
        "untouched_and_told": sum(part["untouched_and_told"] for part in parts),
        "broken": [words for part in parts for words in part["broken"]],
    }


def _kinds(parser: ArgumentParser) -> None:
    parser.add_argument("--kinds", default=",".join(SUBJECTS), help="which, separated by commas; default: all")


if __name__ == "__main__":
    sys.exit(run("strangers", scenario, Options(nodes=1), pods=0, rounds=1, words=__doc__ or "", arguments=_kinds))
