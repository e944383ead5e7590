"""Removes each right of the engine in turn; a test has to fail without it, so no role grants more than is needed.

    .venv/bin/python -m bench.mutation.rights [--only "lower: patch pods/resize" …] [--left] [--minutes 20] [--lanes 2]

First some tests of tests/e2e run under the roles as they are shipped: none may fail, and no request may be denied for
want of a right. The audit logs show which right each test uses. Then each verb on each resource is removed from the
roles by itself, and the tests that use it run again, the quickest first, until one fails. A failure counts only if the
apiserver denied that very request in the run, so that a test that fails for another reason proves nothing. Writes
faults-rights.json; exits with 1 if no test fails without some right. A whole run takes long: --minutes sets the
time after which it starts no further right, and --left removes only the rights without which no test has failed yet.
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
from bench.kit.rbac import ALL_RESOURCES, OWN, Right, enable_all_features, parse_right, rights_in, roles_of
from bench.kit.reporting import RESULTS, ROOT, keep, kept_before, verdict
from tensile.sandbox.binaries import CONTROL_PLANE
from tensile.sandbox.sandbox import Sandbox
from tensile.sandbox.state import Options
from tensile.topology import parse

T = TypeVar("T")
NAME = "faults-rights"
PATIENCE = 8
"""Seconds that a test waits for a condition before it fails."""
LIMIT = 150.0
HUNG = -1
FAILED = 1
"""The exit code of pytest if tests fail; any other code but 0 is no result."""
UNASKED = frozenset({"mutatingwebhookconfigurations.admissionregistration.k8s.io"})
"""Denied if a test's topology has another name than its roles: the engine looks for a stale registration."""
TESTS = tuple(
    f"tests/e2e/test_{one}"
    for one in (
        "writes.py::test_a_pods_life_needs_few_writes",
        "waiting_e2e.py::test_a_labelled_pod_without_tolerations_gets_them_from_the_engine",
        "main_job.py",
        "candidate_e2e.py::test_the_plan_is_recreated_if_deleted_and_deleted_with_its_candidate",
        "candidate_e2e.py::test_the_cost_of_an_edit_names_the_disruption_budgets_of_evicted_pods",
        "changes.py::test_a_resize_reaches_the_lower_pod_and_its_result_the_upper_pod",
        "changes.py::test_debug_containers_are_added_to_the_lower_pod",
        "drift.py::test_an_edited_copy_is_reverted",
        "drift.py::test_a_deleted_copy_is_recreated",
        "drift.py::test_a_deleted_node_is_recreated_and_its_pods_are_kept",
        "drift.py::test_labels_of_an_engine_namespace_are_reverted",
        "drift.py::test_a_lower_pod_with_a_restored_owner_label_is_mirrored_again",
        "conflicts.py::test_an_object_of_another_owner_is_reported_as_a_name_conflict_and_never_touched",
        "events_e2e.py::test_events_of_a_lower_pod_are_mirrored_to_its_upper_pod",
        "events_e2e.py::test_a_repeated_event_increases_the_count_of_its_copy",
        "events_e2e.py::test_events_from_before_a_start_are_not_mirrored",
        "identity.py::test_with_identity_lower_the_account_is_mirrored_before_the_pod",
        "identity.py::test_with_identity_upper_every_token_is_issued_by_the_upper_cluster",
        "identity.py::test_an_account_of_another_owner_is_not_used_and_not_touched",
        "identity.py",
        "inherited_defects.py::test_defect_16_objects_that_were_deleted_while_no_engine_ran_cause_no_error",
        "map.py::test_the_status_reports_valid_and_invalid_edits_in_time",
        "node_e2e.py::test_the_lease_of_a_virtual_node_is_renewed_and_recreated",
        "plan_e2e.py::test_the_engine_writes_exactly_the_planned_changes",
        "recreation.py",
        "reload.py::test_the_node_of_an_empty_lower_is_deleted_and_created_again_by_edits",
        "replicas.py::test_an_engine_that_stops_hands_over_before_its_lease_would_expire",
        "rights_e2e.py::test_logs_are_served_with_a_certificate_that_the_upper_cluster_issued",
        "rights_e2e.py::test_attach_streams_the_new_output_of_a_container",
        "rights_e2e.py::test_a_port_is_forwarded",
        "rights_e2e.py::test_a_stream_by_websocket_is_opened[exec?command=true&stdout=1]",
        "rights_e2e.py::test_a_stream_by_websocket_is_opened[attach?stdout=1]",
        "rights_e2e.py::test_a_stream_by_websocket_is_opened[portforward?ports=80]",
        "rights_e2e.py::test_a_token_authenticates_a_caller_and_its_rights_are_checked",
        "rights_e2e.py::test_resource_metrics_contain_the_usage_that_the_lower_cluster_measures",
        "services_e2e.py::test_a_service_is_copied_to_every_lower_with_pods_of_its_namespace",
        "services_e2e.py::test_a_name_that_another_owners_service_has_is_reported_and_not_touched",
        "services_e2e.py",
        "storage_e2e.py::test_a_stateful_set_gets_its_volumes_where_its_pods_run",
        "storage_e2e.py",
        "storage_kept.py",
        "storage_taken.py",
        "unwatched.py::test_a_subject_that_is_added_to_a_binding_is_added_to_its_copy",
        "unwatched.py::test_a_deleted_copy_of_a_binding_is_recreated",
        "unwatched.py::test_a_binding_is_mirrored_once_its_lower_cluster_role_exists",
        "unwatched.py::test_a_lower_role_or_binding_of_another_owner_is_reported_and_not_touched",
        "unwatched.py::test_a_lower_slice_of_another_owner_is_reported_and_not_touched",
        "unwatched.py::test_copies_of_objects_that_were_deleted_while_no_engine_ran_are_deleted",
        "unwatched.py::test_the_copy_of_a_claim_that_was_deleted_while_no_engine_ran_is_deleted",
        "vacancies_e2e.py::test_only_empty_namespaces_of_the_topology_are_deleted",
        "vacancies_e2e.py::test_a_namespace_that_was_deleted_while_no_engine_ran_is_deleted_too",
        "webhook_e2e.py::test_edited_webhook_fields_are_applied_and_a_disabled_webhook_is_unregistered",
        "webhook_e2e.py::test_a_restarted_engine_is_called_with_its_new_certificate",
        "webhook_e2e.py::test_replicas_share_the_webhook_certificate_in_a_secret",
        "webhook_e2e.py::test_a_claim_with_a_selected_node_pins_its_pod_to_the_node",
        "bare_e2e.py::test_a_bare_pod_that_cannot_run_is_moved_and_later_moved_back",
        "bare_e2e.py::test_an_evicted_bare_pod_is_kept_while_another_pod_has_its_name",
        "bare_e2e.py::test_a_bare_pod_is_not_evicted_while_another_object_has_the_name_of_its_backup_secret",
        "bare_e2e.py::test_an_evicted_bare_pod_is_kept_until_the_quota_of_its_namespace_allows_it",
    )
)
"""Together they use every right; entries that are whole files take long, and run if no other test fails."""


class Ran(NamedTuple):
    """How a test run ended.

    Its fields are pytest's exit code, its line on the first failure, the seconds, and the requests of the engines that
    were done, refused, and denied for want of a right.
    """

    code: int
    failure: str
    seconds: float
    done: frozenset[Right]
    refused: frozenset[Right]
    denied: frozenset[Right]


class Measure(NamedTuple):
    """How many tests run at the same time, and after how many seconds no other right is begun."""

    lanes: int
    seconds: float


class Trial:
    """Runs tests on a sandbox; each run has its own files in `scratch`."""

    def __init__(self, sandbox: Sandbox, scratch: Path) -> None:
        self._sandbox = sandbox
        self._scratch = scratch
        self._count = 0

    async def ran(self, test: str, missing: Right | None = None) -> Ran:
        """Run a test, or the tests of a file until the first failure, with one right removed from the roles."""
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
        code, failure_text = await _ended(process)
        seconds = round(time.monotonic() - begin, 1)
        return Ran(code, failure_text, seconds, **_uses(uses))


async def _ended(process: Process) -> tuple[int, str]:
    """Return the exit code and the failure of a run of pytest; a run that hangs is killed and has no result."""
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
    """Return pytest's line on the first test that failed, "" if none failed."""
    lines = [line for line in text.splitlines() if line.startswith(("FAILED ", "ERROR "))]
    return lines[0][:500] if lines else ""


def _uses(path: Path) -> dict[str, frozenset[Right]]:
    lines = [orjson.loads(line) for line in path.read_bytes().splitlines()] if path.exists() else []
    sorts = ("done", "refused", "denied")
    return {sort: frozenset(parse_right(text) for line in lines for text in line[sort]) for sort in sorts}


def wanted() -> list[Right]:
    """Return every right that the roles of a topology with all features grant to an engine."""
    file: dict[str, Any] = {
        "apiVersion": "tensile-kube.io/v1alpha1",
        "kind": "Topology",
        "name": "demo",
        "lowers": [{"name": "a", "kubeconfig": "a"}],
        "kubelet": {},
    }
    enable_all_features(file)
    roles = roles_of(parse(orjson.dumps(file).decode(), name="topology.yaml"), OWN, "topology")
    # Rules for several ConfigMaps by name, such as NAME-status and NAME-plan, count as one right.
    return [*dict.fromkeys(one for name, objects in roles.items() for one in rights_in(name, objects, OWN))]


def likely(missing: Right, whole: dict[str, Ran]) -> list[str]:
    """Return the tests that use a right, the quickest first, without those that fail anyway.

    For a stream the apiserver checks two verbs, of which its log shows one, and the right to all kinds has no resource
    of its own. For these rights, if no test is known to use them, the tests that use a related right are returned.
    """
    by_seconds = sorted((test for test, ran in whole.items() if ran.code == 0), key=lambda test: whole[test].seconds)
    users = [test for test in by_seconds if missing in whole[test].done]
    if users or not ("/" in missing.resource or missing.resource == ALL_RESOURCES):
        return users
    return [test for test in by_seconds if any(_is_near(missing, one) for one in whole[test].done)]


def _is_near(missing: Right, other: Right) -> bool:
    """Report whether two rights concern the same resource; the right to all kinds covers those in no role."""
    if missing.resource == ALL_RESOURCES:
        return (other.side, other.verb) == (missing.side, missing.verb) and other not in wanted()
    return (missing.side, missing.resource, missing.scope) == (other.side, other.resource, other.scope)


def is_shown(missing: Right, ran: Ran) -> bool:
    """Report whether a run failed for the removed right: tests failed, and the apiserver refused such a request."""
    return ran.code == FAILED and any(_is_near(missing, one) for one in ran.refused)


async def missed(trial: Trial, missing: Right, whole: dict[str, Ran]) -> dict[str, Any]:
    """Remove a right until a test fails for it, and return which test, and its failure."""
    tried = []
    for test in likely(missing, whole):
        ran = await trial.ran(test, missing)
        tried.append(test)
        if is_shown(missing, ran):
            return {"breaks": ran.failure, "s": ran.seconds, "held": tried[:-1]}
    return {"breaks": "", "held": tried}


async def trial_of(
    trial: Trial,
    rights: Sequence[Right],
    tests: Sequence[str],
    measure: Measure,
    note: Callable[[dict[str, Any]], object],
) -> dict[str, Any]:
    """Run the tests under the whole roles, then without each right, until the time is over.

    Return the result; `note` also receives it after each right.
    """
    end = time.monotonic() + measure.seconds
    whole: dict[str, Ran] = {}
    rows: dict[str, dict[str, Any]] = {}

    async def run_whole(test: str) -> None:
        """Run one test under the roles as they are."""
        ran = whole[test] = await trial.ran(test)
        print(f"{test}: {ran.code} in {ran.seconds} s", flush=True)

    async def take_away(missing: Right) -> None:
        """Remove one right, and note the result."""
        if time.monotonic() > end:
            return
        row = rows[str(missing)] = await missed(trial, missing, whole)
        print(f"{missing}: {row['breaks'] or 'NOT MISSED'}", flush=True)
        note(result())

    def result() -> dict[str, Any]:
        """Return the result so far."""
        return summary({test: {"s": ran.seconds, "wrong": wrong(ran)} for test, ran in whole.items()}, rows)

    await in_lanes(measure.lanes, tests, run_whole)
    await in_lanes(measure.lanes, rights, take_away)
    return result()


async def in_lanes(lanes: int, todo: Iterable[T], work: Callable[[T], Awaitable[None]]) -> None:
    """Process items, at most `lanes` of them at the same time."""
    left = list(todo)

    async def lane() -> None:
        """Process one item after the other."""
        while left:
            await work(left.pop(0))

    await asyncio.gather(*(lane() for _ in range(lanes)))


def summary(whole: dict[str, Any], rows: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Return the result: the tests under the whole roles, the failures without each right, and what is wrong."""
    broken = [f"{test}: {failure_text}" for test, found in whole.items() for failure_text in found["wrong"]]
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
    """Merge the result of some rights or tests into the kept one, and drop rights and tests that no longer exist."""
    rows = {**before.get("rows", {}), **now["rows"]}
    whole = {**before.get("whole", {}), **now["whole"]}
    rights = [str(one) for one in wanted()]
    found = summary(
        {test: found for test, found in whole.items() if test in TESTS},
        {right: row for right, row in rows.items() if right in rights},
    )
    return {**found, "broken": [*found["broken"], *(f"{one}: not tried yet" for one in rights if one not in rows)]}


def wrong(ran: Ran) -> list[str]:
    """Return what is wrong with a test under the whole roles: it failed, or a request of the engine was denied."""
    denied = [one for one in ran.denied if one.resource not in UNASKED]
    found = [f"denied: {', '.join(map(str, sorted(denied)))}"] if denied else []
    return found + ([f"fails under the roles as they are: {ran.failure}"] if ran.code else [])


def main() -> int:
    """Read the arguments, run the trial, keep the result, and return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--results", type=Path, default=RESULTS, help="the folder in which to write the result")
    parser.add_argument(
        "--only", nargs="*", default=[], help="remove only these rights, in the form that the tool prints"
    )
    parser.add_argument(
        "--left", action="store_true", help="remove only the rights without which no test has failed yet"
    )
    parser.add_argument("--minutes", type=float, default=120.0, help="after so many minutes, start no further right")
    parser.add_argument("--tests", nargs="*", default=list(TESTS), help="run only these tests")
    parser.add_argument("--lanes", type=int, default=2, help="the number of tests that run at the same time")
    parser.add_argument("--running", type=Path, help="the directory of a running sandbox; default: start one")
    args = parser.parse_args()
    before = kept_before(args.results, NAME)
    rights = [parse_right(one) for one in args.only] or wanted()
    if args.left:
        rights = [one for one in rights if not before.get("rows", {}).get(str(one), {}).get("breaks")]

    is_part = args.only or args.left or args.tests != list(TESTS)

    def note(result: dict[str, Any]) -> Path:
        """Keep the result so far, so that a trial that is interrupted loses nothing."""
        return keep(args.results, NAME, CONTROL_PLANE.version, joined(before if is_part else {}, result))

    async def scenario(sandbox: Sandbox, scratch: Path) -> dict[str, Any]:
        """Run the trial on a sandbox."""
        measure = Measure(args.lanes, 60 * args.minutes)
        return await trial_of(Trial(sandbox, scratch), rights, args.tests, measure, note)

    _, result = on_clusters(scenario, args.running, Options())
    path = note(result)
    return verdict("rights", kept_before(args.results, NAME)["broken"], path)


if __name__ == "__main__":
    sys.exit(main())
