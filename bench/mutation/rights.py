"""Each right of the engine is taken away in turn, and a test has to break of it: no role holds more than is needed.

    .venv/bin/python -m bench.mutation.rights [--only "lower: patch pods/resize" …] [--left] [--minutes 20] [--lanes 2]

First some tests of tests/e2e run under the roles as they are shipped: none may fail, and nothing may be refused for
want of a right. Their audit logs tell which right serves which tests. Then each verb on each resource is left out of
the roles by itself, and the tests that use it run again, the quickest first, until one fails. It counts only where the
apiserver has refused that very thing meanwhile, so that a test which fails of something else proves nothing.
Writes faults-rights.json; exits with 1 when a right is not missed. It takes long: with --minutes no other right is
begun after so many, and with --left those are tried that the kept result does not show to be missed.
"""

import argparse
import asyncio
import os
import sys
import time
from asyncio.subprocess import Process
from collections.abc import Awaitable, Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import orjson

from bench.kit.clusters import on_clusters
from bench.kit.granting import EVERYTHING, OWN, Thing, everything, roles_of, thing, things
from bench.kit.reporting import RESULTS, ROOT, keep, kept_before, verdict
from tensile.sandbox.binaries import CONTROL_PLANE
from tensile.sandbox.sandbox import Sandbox
from tensile.sandbox.state import Options
from tensile.topology import parse

T = TypeVar("T")
NAME = "faults-rights"
PATIENCE = 8
"""Seconds after which a test gives up what does not come."""
LIMIT = 150.0
HUNG = -1
FAILED = 1
"""What pytest ends with when tests fail; anything else but 0 is no answer."""
UNASKED = frozenset({"mutatingwebhookconfigurations.admissionregistration.k8s.io"})
"""Refused to the engine where a test's topology has another name than its roles: a stale registration is looked for."""
TESTS = tuple(
    f"tests/e2e/test_{one}"
    for one in (
        "writes.py::test_a_pods_life_takes_few_writes",
        "waiting_e2e.py::test_a_pod_without_tolerations_comes_to_run",
        "main_job.py",
        "candidate_e2e.py::test_the_plan_goes_with_its_candidate",
        "candidate_e2e.py::test_the_cost_of_an_edit_names_disruption_budgets",
        "changes.py::test_a_resize_travels_and_its_result_comes_back",
        "changes.py::test_a_debug_container_is_added_below",
        "drift.py::test_an_edited_copy_is_put_back",
        "drift.py::test_a_deleted_copy_is_made_again",
        "drift.py::test_a_deleted_node_is_made_again_and_costs_no_pod",
        "drift.py::test_the_labels_of_a_namespace_of_ours_are_put_back",
        "drift.py::test_a_label_that_is_put_back_makes_the_pod_ours_again",
        "conflicts.py::test_a_strangers_object_is_reported_and_never_touched",
        "events_e2e.py::test_what_happens_below_is_told_above",
        "events_e2e.py::test_a_repeat_counts_and_makes_no_second_event",
        "events_e2e.py::test_old_events_do_not_come_again_after_a_restart",
        "identity.py::test_with_the_lowers_identity_an_account_of_its_own_goes_before_the_pod",
        "identity.py::test_with_the_uppers_identity_every_token_is_one_of_the_upper",
        "identity.py::test_a_foreign_account_lends_nobody_its_rights",
        "identity.py",
        "inherited_defects.py::test_defect_16_what_was_deleted_unseen_is_no_puzzle",
        "map.py::test_good_and_bad_edits_are_answered_for_in_time",
        "node_e2e.py::test_a_node_shows_that_its_engine_runs",
        "plan_e2e.py::test_what_is_planned_is_what_is_done",
        "recreation.py",
        "reload.py::test_an_empty_lower_leaves_and_another_joins",
        "replicas.py::test_an_engine_that_ends_hands_over_to_the_other_and_back",
        "rights_e2e.py::test_logs_come_by_a_certificate_that_the_upper_issued",
        "rights_e2e.py::test_a_container_is_attached_to",
        "rights_e2e.py::test_a_port_is_forwarded",
        "rights_e2e.py::test_a_stream_by_websocket_is_opened[exec?command=true&stdout=1]",
        "rights_e2e.py::test_a_stream_by_websocket_is_opened[attach?stdout=1]",
        "rights_e2e.py::test_a_stream_by_websocket_is_opened[portforward?ports=80]",
        "rights_e2e.py::test_a_token_says_who_calls_and_its_rights_say_what_it_may",
        "rights_e2e.py::test_use_is_told_where_the_lower_measures_it",
        "services_e2e.py::test_a_service_is_below_wherever_its_namespace_has_pods",
        "services_e2e.py::test_a_name_that_is_taken_is_said_and_not_touched",
        "services_e2e.py",
        "storage_e2e.py::test_a_stateful_set_gets_its_volumes_where_its_pods_run",
        "storage_e2e.py",
        "storage_kept.py",
        "storage_taken.py",
        "unwatched.py::test_another_subject_above_is_one_below",
        "unwatched.py::test_a_grant_that_is_taken_away_below_is_given_again",
        "unwatched.py::test_a_grant_waits_for_its_cluster_role_below",
        "unwatched.py::test_a_role_whose_name_is_taken_below_is_left_alone",
        "unwatched.py::test_a_slice_whose_name_is_taken_below_is_left_alone",
        "unwatched.py::test_what_went_above_while_no_engine_ran_goes_below",
        "unwatched.py::test_a_claim_that_went_above_while_no_engine_ran_goes_below",
        "vacancies_e2e.py::test_only_what_is_ours_and_empty_goes",
        "vacancies_e2e.py::test_a_namespace_deleted_while_the_engine_was_down_goes_too",
        "webhook_e2e.py::test_fields_are_reloaded_and_switched_off_it_is_taken_back",
        "webhook_e2e.py::test_an_engine_that_starts_again_is_heard_again",
        "webhook_e2e.py::test_replicas_in_a_cluster_share_the_certificate_in_a_secret",
        "webhook_e2e.py::test_a_claim_with_a_chosen_node_pins_its_pod",
        "bare_e2e.py::test_a_pod_without_a_controller_is_freed_and_again",
        "bare_e2e.py::test_a_pod_whose_name_somebody_took_is_kept",
        "bare_e2e.py::test_a_pod_whose_secrets_name_somebody_took_stays_and_it_is_said_why",
        "bare_e2e.py::test_a_pod_that_its_namespace_has_no_room_for_any_more_is_kept_until_it_has",
    )
)
"""Between them they use every right; those that stand for whole files are long, and run where no other breaks."""


class Ran(NamedTuple):
    """How tests ended: pytest's exit code and its words on what failed, seconds, and what engines did meanwhile."""

    code: int
    words: str
    seconds: float
    done: frozenset[Thing]
    refused: frozenset[Thing]
    denied: frozenset[Thing]


class Measure(NamedTuple):
    """How many tests run at the same time, and after how many seconds no other right is begun."""

    lanes: int
    seconds: float


class Trial:
    """Runs tests on a sandbox, each run with files of its own in `scratch`."""

    def __init__(self, sandbox: Sandbox, scratch: Path) -> None:
        self._sandbox = sandbox
        self._scratch = scratch
        self._count = 0

    async def ran(self, test: str, missing: Thing | None = None) -> Ran:
        """Run a test, or a file of them to its first failure, with one thing left out of the roles."""
        self._count += 1
        uses = self._scratch / f"uses-{self._count}.jsonl"
        kept = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST_")}
        variables = {
            **kept,
            "TENSILE_SANDBOX": str(self._sandbox.directory),
            "TENSILE_USES": str(uses),
            "TENSILE_PATIENCE": str(PATIENCE),
            "TENSILE_WITHOUT": str(missing or ""),
            "COLUMNS": "400",
        }
        options = ["-q", "-x", "-p", "no:cacheprovider", "--tb=no", "-rfE", f"--basetemp={self._scratch}/{self._count}"]
        begin = time.monotonic()
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "pytest", *options, test, cwd=ROOT, env=variables, stdout=asyncio.subprocess.PIPE
        )
        code, words = await _ended(process)
        seconds = round(time.monotonic() - begin, 1)
        return Ran(code, words, seconds, **_uses(uses))


async def _ended(process: Process) -> tuple[int, str]:
    """Return how a run of pytest ends; a run that hangs is ended and has no result."""
    assert process.stdout is not None
    try:
        async with asyncio.timeout(LIMIT):
            out = await process.stdout.read()
            return await process.wait(), failure(out.decode())
    except TimeoutError:
        process.kill()
        await process.wait()
        return HUNG, f"did not end in {LIMIT:g} s"


def failure(text: str) -> str:
    """Return what pytest says at its end of the first test that failed, "" for none."""
    lines = [line for line in text.splitlines() if line.startswith(("FAILED ", "ERROR "))]
    return lines[0][:500] if lines else ""


def _uses(path: Path) -> dict[str, frozenset[Thing]]:
    lines = [orjson.loads(line) for line in path.read_bytes().splitlines()] if path.exists() else []
    sorts = ("done", "refused", "denied")
    return {sort: frozenset(thing(text) for line in lines for text in line[sort]) for sort in sorts}


def wanted() -> list[Thing]:
    """Return every thing that the roles of a topology which asks for all there is let an engine do."""
    file: dict[str, Any] = {
        "apiVersion": "tensile-kube.io/v1alpha1",
        "kind": "Topology",
        "name": "demo",
        "lowers": [{"name": "a", "kubeconfig": "a"}],
        "kubelet": {},
    }
    everything(file)
    roles = roles_of(parse(orjson.dumps(file).decode(), name="topology.yaml"), OWN, "topology")
    # Rules for several ConfigMaps by name, such as NAME-status and NAME-plan, are one thing here.
    return [*dict.fromkeys(one for name, objects in roles.items() for one in things(name, objects, OWN))]


def likely(missing: Thing, whole: dict[str, Ran]) -> list[str]:
    """Return the tests that a thing is used by, the quickest first; those that fail anyway say nothing.

    For a stream the apiserver asks for two verbs, of which its log tells one, and all kinds have no resource of their
    own: of those, tests that do anything near.
    """
    by_seconds = sorted((test for test, ran in whole.items() if ran.code == 0), key=lambda test: whole[test].seconds)
    users = [test for test in by_seconds if missing in whole[test].done]
    if users or not ("/" in missing.resource or missing.resource == EVERYTHING):
        return users
    return [test for test in by_seconds if any(_is_near(missing, one) for one in whole[test].done)]


def _is_near(missing: Thing, other: Thing) -> bool:
    """Report whether two are of one resource; of all kinds below are those that are in no role by themselves."""
    if missing.resource == EVERYTHING:
        return (other.side, other.verb) == (missing.side, missing.verb) and other not in wanted()
    return (missing.side, missing.resource, missing.scope) == (other.side, other.resource, other.scope)


def is_shown(missing: Thing, ran: Ran) -> bool:
    """Report whether a run failed of what was left out: pytest says so, and the apiserver has refused it."""
    return ran.code == FAILED and any(_is_near(missing, one) for one in ran.refused)


async def missed(trial: Trial, missing: Thing, whole: dict[str, Ran]) -> dict[str, Any]:
    """Leave a thing out until a test breaks of it, and return which one, and how."""
    tried = []
    for test in likely(missing, whole):
        ran = await trial.ran(test, missing)
        tried.append(test)
        if is_shown(missing, ran):
            return {"breaks": ran.words, "s": ran.seconds, "held": tried[:-1]}
    return {"breaks": "", "held": tried}


async def trial_of(
    trial: Trial,
    rights: Sequence[Thing],
    tests: Sequence[str],
    measure: Measure,
    note: Callable[[dict[str, Any]], object],
) -> dict[str, Any]:
    """Run the tests whole, then without each right, as far as the measure goes.

    Gives the result, which has been noted with each right on the way.
    """
    end = time.monotonic() + measure.seconds
    whole: dict[str, Ran] = {}
    rows: dict[str, dict[str, Any]] = {}

    async def run_whole(test: str) -> None:
        """Run one under the roles as they are."""
        ran = whole[test] = await trial.ran(test)
        print(f"{test}: {ran.code} in {ran.seconds} s", flush=True)

    async def take_away(missing: Thing) -> None:
        """Leave one right out."""
        if time.monotonic() > end:
            return
        row = rows[str(missing)] = await missed(trial, missing, whole)
        print(f"{missing}: {row['breaks'] or 'NOT MISSED'}", flush=True)
        note(result())

    def result() -> dict[str, Any]:
        """Tell what is known by now."""
        return told({test: {"s": ran.seconds, "wrong": wrong(ran)} for test, ran in whole.items()}, rows)

    await in_lanes(measure.lanes, tests, run_whole)
    await in_lanes(measure.lanes, rights, take_away)
    return result()


async def in_lanes(lanes: int, todo: Iterable[T], work: Callable[[T], Awaitable[None]]) -> None:
    """Do some things, so many at the same time."""
    left = list(todo)

    async def lane() -> None:
        """Do one after the other."""
        while left:
            await work(left.pop(0))

    await asyncio.gather(*(lane() for _ in range(lanes)))


def told(whole: dict[str, Any], rows: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Return the result: how the tests went under the whole roles, what broke without each right, and what is wrong."""
    broken = [f"{test}: {words}" for test, found in whole.items() for words in found["wrong"]]
    broken += [
        f"{right}: no test breaks without it, of {row['held']}" for right, row in rows.items() if not row["breaks"]
    ]
    return {
        "rights": len(rows),
        "whole": whole,
        "rows": {right: rows[right] for right in sorted(rows)},
        "broken": broken,
    }


def joined(before: dict[str, Any], now: dict[str, Any]) -> dict[str, Any]:
    """Lay the result of some rights or tests over what was kept of all of them; what there is no more goes."""
    rows = {**before.get("rows", {}), **now["rows"]}
    whole = {**before.get("whole", {}), **now["whole"]}
    rights = [str(one) for one in wanted()]
    found = told(
        {test: found for test, found in whole.items() if test in TESTS},
        {right: row for right, row in rows.items() if right in rights},
    )
    return {**found, "broken": [*found["broken"], *(f"{one}: not tried yet" for one in rights if one not in rows)]}


def wrong(ran: Ran) -> list[str]:
    """Return what is wrong with a test that may do all: it failed, or the engine was denied something."""
    denied = [one for one in ran.denied if one.resource not in UNASKED]
    found = [f"denied: {', '.join(map(str, sorted(denied)))}"] if denied else []
    return found + ([f"fails under the roles as they are: {ran.words}"] if ran.code else [])


def main() -> int:
    """Read the arguments, run it, keep and print what came out."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--only", nargs="*", default=[], help="these rights alone, as they are printed")
    parser.add_argument("--left", action="store_true", help="those alone that were not shown to be missed")
    parser.add_argument("--minutes", type=float, default=120.0, help="after which no other right is begun")
    parser.add_argument("--tests", nargs="*", default=list(TESTS), help="these tests alone")
    parser.add_argument("--lanes", type=int, default=2, help="tests at the same time")
    parser.add_argument("--running", type=Path, help="a sandbox that runs")
    given = parser.parse_args()
    before = kept_before(given.results, NAME)
    rights = [thing(one) for one in given.only] or wanted()
    if given.left:
        rights = [one for one in rights if not before.get("rows", {}).get(str(one), {}).get("breaks")]

    is_part = given.only or given.left or given.tests != list(TESTS)

    def note(result: dict[str, Any]) -> Path:
        """Keep what is known by now, so that a trial that is cut off was not for nothing."""
        return keep(given.results, NAME, CONTROL_PLANE.version, joined(before if is_part else {}, result))

    async def scenario(sandbox: Sandbox, scratch: Path) -> dict[str, Any]:
        """Run it there."""
        measure = Measure(given.lanes, 60 * given.minutes)
        return await trial_of(Trial(sandbox, scratch), rights, given.tests, measure, note)

    _, result = on_clusters(scenario, given.running, Options())
    path = note(result)
    return verdict("rights", kept_before(given.results, NAME)["broken"], path)


if __name__ == "__main__":
    sys.exit(main())
