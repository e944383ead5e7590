"""Runs Kubernetes' own conformance tests on a real node and through its virtual node: a difference is a defect.

    .venv/bin/python -m bench.conformance [--focus REGEX] [--only direct|through] [--serial] [--procs N] [--runs N]
                                          [--keep DIR] [--document]

The tests run first on the cluster of the real node (kubelet, containerd, runc), then, with an engine, on the upper
cluster whose only node is the virtual node. The suite is built once from Go modules into the user's cache. A complete
run writes conformance.json and docs/conformance.md; the result of a partial run is only printed. Exits with 1 if a test
that passes directly fails through the virtual node without a reason in reasons.yaml.

Several tests run at once, and on a small machine a probe of one may then be too late. A test that fails without a known
reason, on either side, is therefore run once more by itself; the result lists these tests.
"""

import argparse
import os
import re
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

from bench.conformance import evaluation, report
from bench.conformance.clusters import clusters, virtual_node
from bench.conformance.document import PAGE, page
from bench.conformance.kubectl.round import LOWER
from bench.conformance.programs import VERSION, Programs, found
from bench.conformance.report import Case, Outcome
from bench.conformance.suite import PROCESSES, Selection, Side, by_names, command, run
from bench.kit.reporting import RESULTS, keep, kept_before, verdict
from tensile.sandbox import real_node
from tensile.sandbox.binaries import cache_directory
from tensile.sandbox.sandbox import Sandbox
from tensile.sandbox.state import UPPER, SandboxError

NAME = "conformance"
DIRECT, THROUGH = "direct", "through"
CLUSTERS = {DIRECT: LOWER, THROUGH: UPPER}


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--focus", default="", help="run only tests whose names match this regular expression")
    parser.add_argument(
        "--only",
        choices=[DIRECT, THROUGH],
        help="run one side only: direct is the real node",
    )
    parser.add_argument("--serial", action="store_true", help="also run tests that are labelled Serial or Slow")
    parser.add_argument("--procs", type=int, default=PROCESSES, help="the number of tests that run at the same time")
    parser.add_argument("--runs", type=int, default=1, help="how many times to run each side")
    parser.add_argument("--keep", type=Path, help="the folder for Ginkgo's logs and reports; default: delete them")
    parser.add_argument("--document", action="store_true", help="only write docs/conformance.md, from the last result")
    parser.add_argument("--results", type=Path, default=RESULTS, help="the folder in which to write the result")
    return parser.parse_args()


def outcomes(
    sandbox: Sandbox, programs: Programs, wanted: argparse.Namespace, side: str, folder: Path
) -> list[list[Outcome]]:
    """Run one side the requested number of times, and return the outcomes of each run's tests."""
    state, chosen = sandbox.state(), Selection(wanted.focus, wanted.serial)
    assert state.binaries is not None
    place = Side(side, sandbox.clusters[CLUSTERS[side]].kubeconfig, state.binaries.kubectl, folder, state.identity)
    reasons = evaluation.reasons(evaluation.REASONS.read_text())
    known = reasons.direct if side == DIRECT else {**reasons.direct, **reasons.through}
    every: list[list[Outcome]] = []
    for number in range(1, wanted.runs + 1):
        place = place._replace(folder=folder / f"{side}-{number}")
        found = once(programs, chosen, place, wanted.procs)
        failed = evaluation.unexplained(found, known)
        if failed and wanted.procs > 1:
            place = place._replace(folder=folder / f"{side}-{number}-again")
            found = report.repeated(found, once(programs, chosen._replace(focus=by_names(failed)), place, 1))
        every.append(found)
        passed = sum(one.state == report.PASSED for one in found)
        print(f"{side}: {passed} of {len(found)} tests passed, {len(failed)} were run again by themselves")
    return every


def once(programs: Programs, chosen: Selection, place: Side, processes: int) -> list[Outcome]:
    """Run the tests once, a given number at a time."""
    return report.outcomes(run(command(programs, chosen, place, processes), place, print).read_bytes())


def tests(programs: Programs, wanted: argparse.Namespace, scratch: Path) -> list[Case]:
    """Run the requested tests on new clusters, and return them."""
    folder = wanted.keep.resolve() if wanted.keep else scratch
    direct: list[list[Outcome]] = []
    through: list[list[Outcome]] = []
    with clusters(scratch, programs) as sandbox:
        if wanted.only != THROUGH:
            direct = outcomes(sandbox, programs, wanted, DIRECT, folder)
        if wanted.only != DIRECT:
            with virtual_node(sandbox):
                through = outcomes(sandbox, programs, wanted, THROUGH, folder)
    return report.joined(direct, through)


def print_failures(every: list[Case]) -> None:
    """Print the failures, and the table."""
    for test in every:
        for side, runs in ((DIRECT, test.direct), (THROUGH, test.through)):
            failed = [one for one in runs if one.state not in (report.PASSED, report.SKIPPED)]
            for failure in dict.fromkeys(f"{one.where}: {one.message}" for one in failed):
                print(f"FAILED {side}: {test.name}: {failure}")
    for row in report.rows(every):
        print(f"{row.sig:12} {row.run:4} tests, {row.direct:4} directly, {row.through:4} through, {row.both:4} both")


def of_a_part(every: list[Case], known: evaluation.Reasons) -> int:
    """Print the defects in a part of the tests that ran on both sides, and return the exit code."""
    broken = evaluation.broken(every, known, whole=False)
    for failure in broken:
        print(f"{NAME}: BROKEN: {failure}", file=sys.stderr)
    return 1 if broken else 0


def of_the_whole(every: list[Case], known: evaluation.Reasons, wanted: argparse.Namespace) -> int:
    """Keep the result of all tests, write the page, print changes and defects, and return the exit code."""
    before = kept_before(wanted.results, NAME)
    run_as = {"procs": wanted.procs, "runs": wanted.runs}
    path = keep(wanted.results, NAME, VERSION, {"run": run_as, **evaluation.result(every, known)})
    after = kept_before(wanted.results, NAME)
    PAGE.write_text(page(after))
    for name in evaluation.changed(before, after):
        print(f"{NAME}: not as on {before['date']}: {name}")
    for part in evaluation.unneeded(every, known):
        print(f"{NAME}: has a reason to fail and does not: {part}")
    return verdict(NAME, evaluation.broken(every, known), path)


def main() -> int:
    """Read the arguments, run the tests, keep the result, and return the exit code."""
    wanted = arguments()
    if wanted.document:
        PAGE.write_text(page(kept_before(wanted.results, NAME)))
        return 0
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        why = real_node.obstacle((scratch, cache_directory(os.environ)), os.environ)
        if why:
            print(f"{NAME}: this machine cannot run a real node: {why}", file=sys.stderr)
            return 1
        try:
            re.compile(wanted.focus)
            every = tests(found(print), wanted, scratch)
        except (SandboxError, RuntimeError, re.error) as error:
            print(f"{NAME}: {error}", file=sys.stderr)
            return 1
        except KeyboardInterrupt:
            print(f"{NAME}: given up; everything that was started has ended", file=sys.stderr)
            return 130
    known = evaluation.reasons(evaluation.REASONS.read_text())
    print_failures(every)
    if wanted.only:
        return 0
    if wanted.focus or wanted.serial:
        return of_a_part(every, known)
    return of_the_whole(every, known, wanted)


if __name__ == "__main__":
    sys.exit(main())
