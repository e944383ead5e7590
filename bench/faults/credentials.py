"""Tokens expire; certificates, CAs, kubeconfigs and Secrets are replaced; another cluster answers at an address.

    .venv/bin/python -m bench.faults.credentials --pods 20 --rounds 5
    .venv/bin/python -m bench.faults.credentials --files

With `--files` only the files and the Secret with a lower cluster's credential are replaced; its result is stored beside
the other. During the swaps pods are written all the time, no pod is deleted or restarted in any cluster, and nothing is
written to the wrong cluster. The engine calls the cluster with the new credential at most two seconds after the file
(the Secret, the address) was repaired; a pod that was bound during the fault is Ready at most five seconds after it.
"""

import asyncio
import sys
import time
from argparse import ArgumentParser, Namespace
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from datetime import datetime
from http import HTTPStatus
from itertools import count
from typing import Any

from bench.faults.credential_faults import (
    PROBE,
    AddressTurned,
    AuthorityRotated,
    CertificateRotated,
    FileSwapped,
    SecretRotated,
    Swap,
    TokenEnds,
)
from bench.kit import audit, oracles
from bench.kit.participants import wait_until_nodes_usable
from bench.kit.sites import AWAY, DEPLOYMENTS, MERGE, NODES, PODS, Refused, until, until_gone
from bench.kit.trial import AGENT, NAMESPACE, Snapshot, Trial, run
from bench.kit.workload import deployment, pod
from tensile.names import LOWER_REACHABLE
from tensile.sandbox.sandbox import Sandbox
from tensile.sandbox.state import UPPER, Options

AT_MOST = 5.0
CALLED_IN = 2.0
BEAT = 0.05
"""Seconds between two writes to pods."""
NOTICED_IN = 60.0
HOLD = 3.0
GROUP = "swapped"
FILES = "--files"
LOAD = "bench/load"
READ = "credential reloaded"
UNREACHABLE_MESSAGE, BACK_MESSAGE = b'"cluster unreachable"', b'"cluster reachable"'
VICTIM, STRANGER = "lower-a", "lower-b"


FILE_SWAPS: dict[str, Callable[[Trial], Swap]] = {
    "token": lambda trial: TokenEnds(trial, VICTIM),
    "kubeconfig": lambda trial: FileSwapped(trial, VICTIM, STRANGER),
    "certificate": lambda trial: CertificateRotated(trial, VICTIM),
    "secret": lambda trial: SecretRotated(trial, VICTIM),
    "authority": lambda trial: AuthorityRotated(trial, VICTIM),
}
"""Swaps of the files and the Secret that hold the credential of one lower cluster."""
OTHER_SWAPS: dict[str, Callable[[Trial], Swap]] = {
    "upper": lambda trial: TokenEnds(trial, UPPER),
    "address": lambda trial: AddressTurned(trial, VICTIM, STRANGER),
}


def swaps(trial: Trial, *, files: bool) -> list[Swap]:
    """Return the swaps to try in turn; with `files`, only those of one lower cluster's files and Secret."""
    kinds = FILE_SWAPS if files else FILE_SWAPS | OTHER_SWAPS
    return [make(trial) for make in kinds.values()]


async def run_swap(trial: Trial, swap: Swap, pods: int, rounds: int) -> list[dict[str, Any]]:
    """Run pods in every lower cluster, break and repair credentials so many times, and return each result."""
    names = [f"{GROUP}-{lower}" for lower in trial.lowers]
    for name, lower in zip(names, trial.lowers, strict=True):
        await trial.upper.call("POST", DEPLOYMENTS.format(NAMESPACE), deployment(name, pods, lower, grace=30))
    await trial.wait_until_settled(pods * len(names))
    try:
        await prepared(trial, swap)
        async with written_to(trial, swap):
            found = [await once(trial, swap, number) for number in range(rounds)]
    finally:
        await swap.end()
    await wait_until_nodes_usable(trial.upper, len(trial.lowers))
    await trial.remove(*names)
    return found


async def prepared(trial: Trial, swap: Swap) -> None:
    """Prepare the swap; return when the engine uses it, so that a newly bound pod becomes Ready."""
    log_position = trial.log.stat().st_size
    if await swap.prepare():
        await until_logged(trial, READ, log_position)
    await wait_until_nodes_usable(trial.upper, len(trial.lowers))
    name = f"{GROUP}-prepared"
    await bind(trial, name)
    await until_ready(trial, name)
    await remove(trial, name)


async def once(trial: Trial, swap: Swap, number: int) -> dict[str, Any]:
    """Break the credentials, bind a pod, repair them, and return the time until the pod is Ready and the failures."""
    before = await trial.wait_until_settled(len((await trial.snapshot()).upper))
    positions = {site.name: audit.position(site.audit_log) for site in (trial.upper, *trial.lowers.values())}
    log_position = trial.log.stat().st_size
    begin = time.monotonic()
    await swap.break_credential()
    await until_logged(trial, swap.log_message, log_position)
    noticed = time.monotonic() - begin
    condition = await reason_of(trial, swap)
    name = f"{GROUP}-{number}"
    await bind(trial, name)
    await asyncio.sleep(HOLD)
    during = await trial.snapshot()
    written = stranger_writes(trial, swap, positions)
    begin = time.monotonic()
    await swap.repair()
    await until_ready(trial, name)
    took = time.monotonic() - begin
    called = await first_call(trial, swap, positions[swap.victim])
    broken = [*condition, *written, *replaced(before, during, name)]
    broken += [f"{swap.victim} was called only after {called:.1f} s"] if called > CALLED_IN else []
    broken += [f"{name} was Ready only {took:.1f} s after it was put right"] if took > AT_MOST else []
    after = await trial.wait_until_settled(len(before.upper) + 1)
    await until_recovered(trial, log_position)
    broken += replaced(before, after, name)
    for site in (trial.upper, *trial.lowers.values()):
        records = audit.read(site.audit_log, positions[site.name])
        broken += oracles.deletions(one for one in records if one.get("objectRef", {}).get("name") != PROBE)
    await remove(trial, name)
    took_s = {"noticed_s": noticed, "called_s": called, "resumed_s": took}
    return {"swap": swap.name, **{what: round(seconds, 2) for what, seconds in took_s.items()}, "broken": broken}


@asynccontextmanager
async def written_to(trial: Trial, swap: Swap) -> AsyncIterator[None]:
    """Update pods one after another for as long as the block runs, except those on the wrong cluster."""

    async def write() -> None:
        """Update the pods again and again."""
        for number in count():
            with suppress(*AWAY):
                found = (await trial.snapshot()).upper
                for one in (each for each in found if each["spec"].get("nodeName") != swap.stranger):
                    path = f"{PODS.format(NAMESPACE)}/{one['metadata']['name']}"
                    with suppress(Refused):
                        await trial.upper.call("PATCH", path, {"metadata": {"annotations": {LOAD: f"{number}"}}}, MERGE)
                    await asyncio.sleep(BEAT)
            await asyncio.sleep(BEAT)

    writing = asyncio.create_task(write())
    try:
        yield
    finally:
        writing.cancel()
        with suppress(asyncio.CancelledError):
            await writing


async def first_call(trial: Trial, swap: Swap, position: int) -> float:
    """Return the seconds from the repair to the first request of the engine that the cluster accepted."""
    site = trial.lowers.get(swap.victim, trial.upper)
    found: list[float] = []

    async def is_reported() -> bool:
        """Report whether the audit log has an accepted request after the repair."""
        records = audit.read(site.audit_log, position)
        found[:] = [since for one in records if (since := accepted(one) - swap.repaired_at) > 0]
        return bool(found)

    await until(is_reported, f"{swap.victim} is called", NOTICED_IN)
    return min(found)


def accepted(record: audit.Record) -> float:
    """Return the arrival time of an accepted request of the engine, in seconds since 1970; 0 for any other record."""
    status = record.get("responseStatus", {}).get("code")
    if not record.get("userAgent", "").startswith(AGENT) or status == HTTPStatus.UNAUTHORIZED:
        return 0.0
    return datetime.fromisoformat(record["requestReceivedTimestamp"]).timestamp()


async def bind(trial: Trial, name: str) -> None:
    """Create a pod that is bound to the victim's node."""
    manifest = pod(name, GROUP)
    manifest["spec"]["nodeName"] = VICTIM
    await trial.upper.call("POST", PODS.format(NAMESPACE), manifest)


async def remove(trial: Trial, name: str) -> None:
    """Delete a pod, and return when it is deleted in all clusters."""
    path = f"{PODS.format(NAMESPACE)}/{name}"
    await trial.upper.delete(path)
    for site in (trial.upper, trial.lowers[VICTIM]):
        await until_gone(site, PODS.format(NAMESPACE), f"fieldSelector=metadata.name%3D{name}", NOTICED_IN)


async def until_ready(trial: Trial, name: str) -> None:
    """Return when an upper pod is Ready."""

    async def is_ready() -> bool:
        """Report whether the pod is Ready."""
        return oracles.is_ready(await trial.upper.call("GET", f"{PODS.format(NAMESPACE)}/{name}"))

    await until(is_ready, f"{name} is Ready", NOTICED_IN)


async def until_logged(trial: Trial, message: str, since: int) -> None:
    """Return when the engine has logged a message."""

    async def is_logged() -> bool:
        """Report whether the log contains the message after the position `since`."""
        return message.encode() in trial.log.read_bytes()[since:]

    await until(is_logged, f"the engine logged {message!r}", NOTICED_IN)


async def until_recovered(trial: Trial, since: int) -> None:
    """Return when the engine no longer considers the cluster unreachable, according to its log."""

    async def is_logged() -> bool:
        """Report whether the last of the two messages is the one of the recovery."""
        logged = trial.log.read_bytes()[since:]
        return UNREACHABLE_MESSAGE not in logged or logged.rfind(BACK_MESSAGE) > logged.rfind(UNREACHABLE_MESSAGE)

    await until(is_logged, f"the engine logged {BACK_MESSAGE.decode()}", NOTICED_IN)


async def reason_of(trial: Trial, swap: Swap) -> list[str]:
    """Wait for the reason in the condition of the victim's node, if there has to be one, and return what is wrong."""
    found: dict[str, Any] = {}

    async def is_reported() -> bool:
        """Report whether the node's condition has the reason."""
        node = await trial.upper.call("GET", f"{NODES}/{VICTIM}")
        found.update(next(one for one in node["status"]["conditions"] if one["type"] == LOWER_REACHABLE))
        return not swap.reason or bool(found["reason"] == swap.reason)

    await until(is_reported, f"the node says {swap.reason}", NOTICED_IN)
    if swap.reason and (found["status"] != "False" or "use the kubeconfig of another" not in found["message"]):
        return [f"the node says {found}"]
    return []


def stranger_writes(trial: Trial, swap: Swap, positions: dict[str, int]) -> list[str]:
    """Return the engine's writes to the wrong cluster."""
    if not swap.stranger:
        return []
    records = audit.read(trial.lowers[swap.stranger].audit_log, positions[swap.stranger])
    found = audit.writes(records, AGENT, without=("leases",))
    return [f"{swap.stranger} was written to: {one['verb']} {one['objectRef']}" for one in found]


def replaced(before: Snapshot, after: Snapshot, name: str) -> list[str]:
    """Return which upper and lower pods are not the same as before; the pod of that name is new."""
    broken = oracles.replaced(before.upper, _without(after.upper, name), UPPER)
    for lower, pods in before.lowers.items():
        broken += oracles.replaced(pods, _without(after.lowers[lower], name), lower)
    return broken


def _without(pods: Sequence[dict[str, Any]], name: str) -> list[dict[str, Any]]:
    return [one for one in pods if one["metadata"]["name"] != name]


def arguments(parser: ArgumentParser) -> None:
    """Add the option that selects the swaps."""
    parser.add_argument(
        FILES,
        action="store_true",
        help="run only the faults of the files or Secrets that hold the credential of one lower",
    )


async def scenario(sandbox: Sandbox, args: Namespace) -> dict[str, Any]:
    """Run every swap."""
    runs = []
    async with Trial(sandbox) as trial:
        await trial.start_engine_and_nodes()
        for swap in swaps(trial, files=args.files):
            found = await run_swap(trial, swap, args.pods // len(trial.lowers), args.rounds)
            for one in found:
                print(" ".join(f"{key}={value}" for key, value in one.items()), flush=True)
            runs += found
    return {"runs": runs, "broken": [failure for one in runs for failure in one["broken"]]}


if __name__ == "__main__":
    name = "credentials-files" if FILES in sys.argv else "credentials"
    options = Options(nodes=1)
    sys.exit(run(name, scenario, options, pods=20, rounds=5, doc=__doc__ or "", arguments=arguments))
