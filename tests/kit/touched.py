"""The tests left out of `make test` that a change requires: `make touched` runs what this prints.

Run it with `.venv/bin/python tests/kit/touched.py`.

A change is everything since $BASE, a revision; without it, since this branch left origin/main. A shallow clone has
neither: then only the tools of bench/ are tested, which no other target of CI does, and the rest is left to the nightly
run.
"""

import os
import subprocess
import sys
from collections.abc import Iterable
from fnmatch import fnmatch
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BENCH = "tests/bench"
RULES: tuple[tuple[tuple[str, ...], tuple[str, ...]], ...] = (
    (("bench/",), (BENCH,)),
    (("docs/", "README.md", "topology.example.yaml", "tensile/cli/"), ("tests/docs/test_run.py",)),
    (
        ("docs/", "mkdocs.yml", "CONTRIBUTING.md", "SECURITY.md", "topology.example.yaml"),
        ("tests/docs/test_site_built.py",),
    ),
    (
        (
            ".github/workflows/",
            "Dockerfile",
            "Makefile",
            "bench/packaging/",
            "pyproject.toml",
            "requirements",
            "tensile/sandbox/binaries.py",
        ),
        ("tests/packaging",),
    ),
    (("docs/versions.md", "tensile/sandbox/binaries.py", "tensile/kube/"), ("tests/e2e/test_older_kubernetes.py",)),
    (
        ("tensile/sandbox/",),
        (
            "tests/sandbox/test_demo.py",
            "tests/sandbox/test_addons_real.py",
            "tests/sandbox/test_faults_real.py",
            "tests/sandbox/test_lifecycle_real.py",
            "tests/sandbox/test_real_node_real.py",
        ),
    ),
    (
        ("manifests/", "tensile/deploy/", "tensile/engine/permissions.py"),
        ("tests/e2e/test_manifests_e2e.py", "tests/e2e/test_rights_e2e.py", "tests/faults/test_rights_real.py"),
    ),
    (("manifests/monitoring/", "tensile/engine/metrics.py"), ("tests/packaging/test_promtool.py",)),
    (
        ("tensile/engine/leader_election.py", "tensile/engine/run.py"),
        ("tests/e2e/test_replicas.py", "tests/faults/test_twins.py"),
    ),
    (
        ("tensile/engine/approval.py", "tensile/engine/history.py", "tensile/cli/rollback.py"),
        ("tests/e2e/test_approval_e2e.py",),
    ),
    (("tensile/engine/status/",), ("tests/engine/status/test_page_seen.py",)),
    (("tensile/diagnostics/doctor/",), ("tests/faults/test_diagnoses_real.py",)),
    (("tensile/diagnostics/", "tensile/cli/", "tensile/engine/status/"), ("tests/e2e/test_mistakes.py",)),
    (
        ("tensile/policy/webhook/", "tensile/policy/tls_port.py"),
        (
            "tests/e2e/test_webhook_e2e.py",
            "tests/faults/test_replaced_real.py",
            "tests/faults/test_webhook_cost_real.py",
        ),
    ),
    (
        ("tensile/policy/extender/", "tensile/policy/placement/"),
        (
            "tests/e2e/test_extender_e2e.py",
            "tests/e2e/test_spread_e2e.py",
            "tests/policy/placement/test_placement_real.py",
        ),
    ),
    (
        ("tensile/policy/descheduler/",),
        ("tests/e2e/test_bare_e2e.py", "tests/e2e/test_descheduler_e2e.py", "tests/e2e/test_predictions_e2e.py"),
    ),
    (
        ("tensile/kube/",),
        (
            "tests/faults/test_credentials_real.py",
            "tests/faults/test_faults_real.py",
            "tests/faults/test_watches_real.py",
            "tests/kube/test_fleet_real.py",
        ),
    ),
    (
        ("tensile/kubelet/api/",),
        ("tests/e2e/test_streams.py", "tests/faults/test_kubectl_real.py", "tests/kubelet/api/test_auth_real.py"),
    ),
    (
        ("tensile/kubelet/node/", "tensile/kubelet/pods/"),
        ("tests/e2e/test_restored_e2e.py", "tests/faults/test_away_real.py"),
    ),
    (
        ("tensile/kubelet/pods/", "tensile/reconcile/"),
        (
            "tests/faults/test_denials.py",
            "tests/faults/test_everywrite_real.py",
            "tests/faults/test_hostility.py",
            "tests/faults/test_hostility_real.py",
            "tests/faults/test_pairs.py",
            "tests/faults/test_races.py",
            "tests/faults/test_sequences.py",
            "tests/faults/test_sequences_real.py",
            "tests/faults/test_strangers.py",
        ),
    ),
    (
        ("tensile/reconcile/dryrun/",),
        ("tests/faults/test_likeness.py", "tests/reconcile/dryrun/test_cluster_deletion.py"),
    ),
)
"""Beginnings of paths, and the tests that a change there requires."""


def touched(changed: Iterable[str]) -> list[str]:
    """Return the tests that a change of these paths requires; a changed test module requires itself."""
    paths = list(changed)
    found = {test for begins, tests in RULES if any(path.startswith(begins) for path in paths) for test in tests}
    return sorted(found | {path for path in paths if fnmatch(path, "tests/*test_*.py")})


def base() -> str:
    """Return the revision at which the change began, "" if it is not known."""
    return os.environ.get("BASE", "") or _git("merge-base", "HEAD", "origin/main").strip()


def changed_since(revision: str) -> list[str]:
    """Return the paths that differ from a revision, with those that git does not track yet."""
    return f"{_git('diff', '--name-only', revision)}{_git('ls-files', '--others', '--exclude-standard')}".split()


def _git(*arguments: str) -> str:
    """Run git in the repository; return "" if it fails."""
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout if done.returncode == 0 else ""


def main() -> int:
    """Print the tests, in one line."""
    revision = base()
    if not revision:
        print("touched: no base to compare with; set BASE to a revision", file=sys.stderr)  # noqa: T201 - this is the program's output
    found = touched(changed_since(revision)) if revision else [BENCH]
    print(*(path for path in found if (ROOT / path).exists()))  # noqa: T201
    return 0


if __name__ == "__main__":
    sys.exit(main())
