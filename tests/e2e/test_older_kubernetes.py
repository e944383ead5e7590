"""Tests of the main job on the previous release of Kubernetes, in the upper and the lower clusters.

That release has no MutatingAdmissionPolicy by default, so the engine sets the tolerations of pods there.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tensile.sandbox import binaries
from tensile.sandbox.binaries import CONTROL_PLANE, VERSION_VARIABLE
from tensile.sandbox.sandbox import Sandbox
from tensile.sandbox.state import Options

pytestmark = pytest.mark.real

OLDER = "v1.35.4"
"""`make test-all` has it built before the tests."""
MAIN_JOB = Path(__file__).with_name("test_main_job.py")
LEFT_OUT = "not quiet_engine"
"""An engine that starts tries to register its policy, which that apiserver does not know: a write each time."""
LIMIT = 600.0
LAST = 8_000


@pytest.fixture(scope="module")
def older(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sandbox]:
    """Start clusters of that release, if its programs have been built."""
    wanted = binaries.of_version(CONTROL_PLANE, {VERSION_VARIABLE: OLDER})
    if not binaries.is_cached(wanted, os.environ):
        pytest.skip(f"not built: {VERSION_VARIABLE}={OLDER} tensile sandbox prepare")
    with Sandbox.start(tmp_path_factory.mktemp("older"), Options(kubernetes=OLDER)) as started:
        yield started


def test_every_cluster_runs_the_older_release(older: Sandbox) -> None:
    """This holds for its apiserver and for the nodes of lower clusters."""
    for name in older.clusters:
        shown = json.loads(older.kubectl("get", "--raw", "/version", cluster=name).stdout)
        nodes = json.loads(older.kubectl("get", "nodes", "-o", "json", cluster=name).stdout)["items"]
        assert shown["gitVersion"] == OLDER
        assert {one["status"]["nodeInfo"]["kubeletVersion"] for one in nodes} <= {OLDER}


def test_the_main_job_passes_on_the_older_release(older: Sandbox) -> None:
    """All tests of the main job pass; the test that a quiet engine repeats no write is left out."""
    variables = {
        key: value for key, value in os.environ.items() if not key.startswith(("PYTEST_XDIST", "PYTEST_CURRENT"))
    }
    command = [sys.executable, "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider", "-k", LEFT_OUT, str(MAIN_JOB)]
    done = subprocess.run(
        command,
        env={**variables, "TENSILE_SANDBOX": str(older.directory)},
        cwd=MAIN_JOB.parents[2],
        capture_output=True,
        text=True,
        check=False,
        timeout=LIMIT,
    )
    assert done.returncode == 0, done.stdout[-LAST:]
