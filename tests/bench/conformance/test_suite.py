"""Tests of how reports of Kubernetes' conformance suite are read: which tests passed where, and why others did not."""

import io
import json
import tarfile
from pathlib import Path
from typing import Any

import orjson
import pytest

from bench.conformance import evaluation, report
from bench.conformance.clusters import untainted
from bench.conformance.document import PAGE, page
from bench.conformance.evaluation import UNEXPLAINED, UNKNOWN, Reasons
from bench.conformance.images import Files, archive, listed
from bench.conformance.programs import Programs
from bench.conformance.report import Case, Outcome, Row, joined, outcomes, rows, share
from bench.conformance.suite import Selection, Side, by_names, command
from bench.kit.reporting import KEPT, kept_before
from tensile.sandbox import apiserver
from tensile.topology import parse

RESULT = "conformance"
UID = "11111111-2222-4333-8444-555555555555"
NONE = Reasons({}, {})


def spec(leaf: str, state: str = "passed", message: str = "", **more: Any) -> dict[str, Any]:
    """Return a report's entry of one test."""
    failure = {"Message": message, "Location": {"FileName": "k8s.io/x@v1/test/e2e/apps/job.go", "LineNumber": 7}}
    own = {"Failure": failure} if message else {}
    texts = {"ContainerHierarchyTexts": ["[sig-apps] Job"], "LeafNodeText": leaf, "LeafNodeType": "It"}
    return {**texts, "State": state, "RunTime": 1_250_000_000, **own, **more}


def read(*specs: dict[str, Any]) -> list[Outcome]:
    """Read a report of these tests."""
    return outcomes(orjson.dumps([{"SpecReports": [*specs]}, {"SpecReports": None}]))


def ran(name: str, direct: str, through: str, sig: str = "sig-node") -> Case:
    """Return a test with an outcome for each run of a side: `p` passed, `f` failed, `s` skipped itself."""
    states = {"p": "passed", "f": "failed", "s": "skipped"}
    sides = [
        tuple(Outcome(name, sig, states[one], 1.0, "" if one == "p" else "words", "") for one in runs)
        for runs in (direct, through)
    ]
    return Case(name, sig, *sides)


def test_a_report_has_an_outcome_for_each_test() -> None:
    """It has the full name, the sig, the seconds, and the failure on one line with its source position."""
    (failed, passed) = read(spec("works"), spec("ends", "failed", "Timed out:\n  pod is\tnot there"))
    assert passed == Outcome("[sig-apps] Job works", "sig-apps", "passed", 1.2)
    assert failed.message == "Timed out: pod is not there"
    assert failed.where == "e2e/apps/job.go:7"


def test_tests_that_were_not_selected_are_left_out() -> None:
    """They are skipped without a message; a test that skips itself has one, and setup nodes are no tests."""
    found = read(
        spec("other", "skipped"), spec("two nodes", "skipped", "needs 2 nodes"), spec("", LeafNodeType="BeforeSuite")
    )
    assert [(one.name, one.message) for one in found] == [("[sig-apps] Job two nodes", "needs 2 nodes")]


def test_variable_parts_of_a_message_are_replaced() -> None:
    """These are UIDs, namespaces and memory addresses; long messages are truncated."""
    (one,) = read(spec("ends", "failed", f"pods-7592/web {UID} at <*v1.Pod | 0x15eadfc6d908>: {'long ' * 100}"))
    assert one.message.startswith("NAMESPACE/web UID at <*v1.Pod | ADDRESS>: long")
    assert len(one.message) == 240


def test_runs_are_joined_by_test_name() -> None:
    """Each test has an outcome for every run of either side, and none for runs without it."""
    first, second = read(spec("works")), read(spec("works", "failed", "no"), spec("new"))
    found = {test.name: test for test in joined([first, second], [first])}
    assert [one.state for one in found["[sig-apps] Job works"].direct] == ["passed", "failed"]
    assert found["[sig-apps] Job new"].through == ()


def test_the_table_counts_tests_by_sig() -> None:
    """A test passes if every run passed, and is not counted if all runs skipped it."""
    tests = [
        ran("a", "pp", "pp"),
        ran("b", "pp", "pf"),
        ran("c", "ff", "pp"),
        ran("d", "ss", "ss"),
        ran("e", "pp", "pp", "sig-cli"),
    ]
    assert rows(tests) == [Row("sig-cli", 1, 1, 1, 1), Row("sig-node", 3, 2, 2, 1), Row("all", 4, 3, 3, 2)]
    assert share(tests) == pytest.approx(2 / 3)
    assert share([]) == 1.0


def test_a_failure_through_the_virtual_node_without_a_reason_is_a_defect() -> None:
    """A test that fails on the real node too proves nothing about the virtual one."""
    tests = [ran("lost", "p", "f"), ran("known [Conformance]", "p", "f"), ran("both", "f", "f"), ran("fine", "p", "p")]
    known = Reasons({}, {"known": "by decision"})
    assert [(one.name, one.why) for one in evaluation.failing_through(tests, known)] == [
        ("lost", UNKNOWN),
        ("known [Conformance]", "by decision"),
    ]
    assert [(one.name, one.why) for one in evaluation.failing_directly(tests, known)] == [("both", UNEXPLAINED)]
    assert evaluation.broken(tests, known)[0] == f"lost: {UNKNOWN} (: words)"


def test_a_share_of_less_than_99_percent_breaks_the_result() -> None:
    """Known reasons do not change that: 99 of 100 are enough, 98 are not."""
    known = Reasons({}, {"n": "by decision"})
    fine = [ran(f"fine {number}", "p", "p") for number in range(98)]
    assert evaluation.broken([*fine, ran("n1", "p", "f"), ran("x", "p", "p")], known) == []
    assert evaluation.broken([*fine, ran("n1", "p", "f"), ran("n2", "p", "f")], known) == [
        "98.00% of what passes directly passes through, less than 99%"
    ]
    assert evaluation.broken([ran("n1", "p", "f")], known, whole=False) == []


def test_runs_with_different_outcomes_break_the_result() -> None:
    """A list that changes from run to run is not reliable."""
    assert evaluation.unsteady([ran("a", "pf", "p"), ran("b", "ff", "pp")]) == ["a"]
    assert "a: not the same in every run" in evaluation.broken([ran("a", "p", "pf")], Reasons({}, {"a": "known"}))


def test_tests_with_another_outcome_than_in_the_previous_result_are_listed() -> None:
    """The time of a test does not matter, and a first result has no predecessor."""
    before = {"tests": {"a": {"direct": ["passed 1 s"], "through": ["failed 1 s"]}, "b": {"direct": ["passed 1 s"]}}}
    after = {"tests": {"a": {"direct": ["passed 2 s"], "through": ["passed 1 s"]}, "b": {"direct": ["passed 3 s"]}}}
    assert evaluation.changed(before, after) == ["a"]
    assert evaluation.changed({}, after) == []


def test_a_reason_for_a_test_that_passes_is_listed() -> None:
    """It has to be removed when its cause is fixed."""
    known = Reasons({"both": "no DNS"}, {"lost": "why", "mended": "why", "not run": "why"})
    assert evaluation.unneeded([ran("lost", "p", "f"), ran("mended", "p", "p"), ran("both", "f", "f")], known) == [
        "mended"
    ]


def test_the_file_of_reasons_is_valid() -> None:
    """Each test and each reason has a text."""
    known = evaluation.reasons(evaluation.REASONS.read_text())
    assert all(part and why.strip() for side in known for part, why in side.items())


def test_only_conformance_tests_of_four_sigs_are_selected() -> None:
    """Serial and slow tests are selected only on request."""
    assert Selection().labels == "Conformance && (sig-apps || sig-cli || sig-node || sig-storage) && !Serial && !Slow"
    assert "Serial" not in Selection(serial=True).labels


def test_the_command_line_contains_the_cluster(tmp_path: Path) -> None:
    """The arguments of ginkgo precede those of the suite, and a focus is passed only if it is set."""
    programs = Programs(*(Path(f"/bin/{name}") for name in Programs._fields))
    side = Side("through", tmp_path / "upper.kubeconfig", "/bin/kubectl", tmp_path, "identity")
    line = command(programs, Selection("Job.*works"), side, 3)
    place = line.index("--")
    assert line[0] == "/bin/ginkgo"
    assert line[place - 1] == "/bin/suite"
    assert {"--procs=3", "--focus=Job.*works", f"--output-dir={tmp_path}"} <= {*line[:place]}
    assert {f"--kubeconfig={tmp_path}/upper.kubeconfig", "--kubectl-path=/bin/kubectl"} <= {*line[place:]}
    assert not any(word.startswith("--focus") for word in command(programs, Selection(), side, 3))


def test_the_virtual_node_of_the_suite_has_no_taints() -> None:
    """The topology is the sandbox's own, but its node accepts any pod."""
    topology = parse(untainted(apiserver.topology(["lower-a"], 10350, 9095)))
    assert topology.lowers[0].node.taints == ()


def images(*names: str) -> dict[str, dict[str, Any]]:
    """Return the configuration of each image that is built from a list, by its name, with the files of its layers."""
    whole = archive(
        listed("\n".join(names)),
        Files(("sh", "httpd"), b"busybox", b"bash", b"agnhost", b"nnp", b"certificate", b"key"),
    )
    with tarfile.open(fileobj=io.BytesIO(whole)) as tar:
        files = {entry.name: file.read() for entry in tar if (file := tar.extractfile(entry))}
    found = {}
    for entry in json.loads(files["manifest.json"]):
        config = json.loads(files[entry["Config"]])["config"]
        for tag in entry["RepoTags"]:
            found[tag] = {**config, "files": _names([files[layer] for layer in entry["Layers"]])}
    return found


def _names(layers: list[bytes]) -> dict[str, int]:
    """Return the mode of each file of an image's layers."""
    every: dict[str, int] = {}
    for layer in layers:
        with tarfile.open(fileobj=io.BytesIO(layer)) as tar:
            every |= {entry.name: entry.mode for entry in tar}
    return every


def test_images_have_the_names_of_the_list() -> None:
    """All versions of a name share an image.

    Images that are not built here, and images that must not exist, are in no archive.
    """
    made = images("here/e2e/busybox:1", "here/e2e/busybox:2", "here/authenticated/agnhost:1", "here/perl:5")
    assert set(made) == {"here/e2e/busybox:1", "here/e2e/busybox:2"}


def test_images_contain_the_files_and_users_that_their_tests_need() -> None:
    """They include shells, a setuid program, pages, and a user of its own."""
    made = images("a/busybox:1", "a/agnhost:1", "a/nonewprivs:1", "a/nginx:1", "a/nonroot:1", "a/kitten:1")
    assert {"usr/local/bin/sh", "bin/sh"} <= set(made["a/busybox:1"]["files"])
    assert {"agnhost", "agnhost-2", "bin/curl", "localhost.crt"} <= set(made["a/agnhost:1"]["files"])
    assert made["a/nonewprivs:1"]["files"]["usr/local/bin/nnp"] == 0o4755
    assert "usr/share/nginx/html/index.html" in made["a/nginx:1"]["files"]
    assert made["a/nonroot:1"]["User"] == "1234"
    assert "data.json" in made["a/kitten:1"]["files"]


def kept(**more: Any) -> dict[str, Any]:
    """Return a result as it is stored."""
    tests = [ran("passes", "p", "p"), ran("differs", "p", "f"), ran("asks for a | pipe", "f", "f")]
    known = Reasons({"pipe": "no way <out>"}, {})
    versions = {"tensile": "1", "cluster": "v1.36.3", "python": "3.11"}
    made = {"date": "2026-01-31T12:00:00Z", "versions": versions, "run": {"procs": 6, "runs": 1}}
    return {**made, **evaluation.result(tests, known), **more}


def test_the_page_contains_the_table_and_the_reasons() -> None:
    """It answers how many tests pass, which ones fail and why, and with which versions the result was made."""
    text = page(kept())
    assert "| sig-node | 3 | 2 | 1 | 1 |\n| all | 3 | 2 | 1 | 1 |" in text
    assert f"| differs | {UNKNOWN} |" in text
    assert "| asks for a \\| pipe | no way &lt;out> |" in text
    assert "50.0% of the tests that pass on the real node pass through" in text
    assert (
        "with tensile 1, Kubernetes v1.36.3 and Python 3.11, by\n`python -m bench.conformance`: 6 processes, once,"
        in text
    )


def test_the_page_reports_that_no_test_differs() -> None:
    """If there were several runs, it reports whether they agree."""
    text = page(kept(failing_through=[], failing_directly=[], run={"procs": 2, "runs": 2}))
    assert "only through the virtual node\nNone.\n" in text
    assert "Failures on the real node" not in text
    assert "bench.conformance --runs 2`: 2 processes, 2 times, with the same outcome each time" in text
    assert "2 times, and 1 tests differ" in page(kept(unsteady=["a"], run={"procs": 2, "runs": 2}))


def test_the_page_is_generated_from_the_last_result() -> None:
    """docs/conformance.md is the output of `python -m bench.conformance --document`."""
    assert PAGE.read_text() == page(kept_before(KEPT, RESULT))


def test_a_failure_without_a_reason_is_repeated_and_the_repetition_counts() -> None:
    """The page lists the tests that were repeated."""
    run = read(spec("passes"), spec("is known", "failed", "words"), spec("comes too late", "failed", "words"))
    failed = evaluation.unexplained(run, {"is known": "no way"})
    assert failed == ["[sig-apps] Job comes too late"]
    again = report.repeated(run, read(spec("comes too late")))
    assert [(one.state, one.was_repeated) for one in again] == [("passed", True), ("failed", False), ("passed", False)]
    tests = joined([again], [run])
    assert evaluation.result(tests, NONE)["repeated"] == failed
    assert "the repetition counts: [sig-apps] Job comes too late." in page(kept(repeated=failed))
    assert "No test was run a second time." in page(kept())


def test_tests_are_selected_by_names_that_are_escaped_for_go() -> None:
    """Go does not allow to escape a blank."""
    assert by_names(["[a] b *not* c", "d"]) == r"\[a\] b \*not\* c|d"
