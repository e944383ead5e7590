"""What is said of Kubernetes' own suite is what its reports say: which tests passed where, and why others did not."""

import io
import json
import tarfile
from pathlib import Path
from typing import Any

import orjson
import pytest

from bench.conformance import judging, report
from bench.conformance.clusters import untainted
from bench.conformance.document import PAGE, page
from bench.conformance.images import Files, archive, listed
from bench.conformance.judging import UNEXPLAINED, UNKNOWN, Reasons
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
    """Return what a report says of one test."""
    failure = {"Message": message, "Location": {"FileName": "k8s.io/x@v1/test/e2e/apps/job.go", "LineNumber": 7}}
    own = {"Failure": failure} if message else {}
    texts = {"ContainerHierarchyTexts": ["[sig-apps] Job"], "LeafNodeText": leaf, "LeafNodeType": "It"}
    return {**texts, "State": state, "RunTime": 1_250_000_000, **own, **more}


def read(*specs: dict[str, Any]) -> list[Outcome]:
    """Read a report of these tests."""
    return outcomes(orjson.dumps([{"SpecReports": [*specs]}, {"SpecReports": None}]))


def ran(name: str, direct: str, through: str, sig: str = "sig-node") -> Case:
    """Return a test with an outcome for each run of a side: `p` passed, `f` failed, `s` left itself out."""
    states = {"p": "passed", "f": "failed", "s": "skipped"}
    sides = [
        tuple(Outcome(name, sig, states[one], 1.0, "" if one == "p" else "words", "") for one in runs)
        for runs in (direct, through)
    ]
    return Case(name, sig, *sides)


def test_a_report_is_read_test_by_test() -> None:
    """The whole name, the sig, the seconds; what failed on one line, with where in the suite's sources."""
    (failed, passed) = read(spec("works"), spec("ends", "failed", "Timed out:\n  pod is\tnot there"))
    assert passed == Outcome("[sig-apps] Job works", "sig-apps", "passed", 1.2)
    assert failed.message == "Timed out: pod is not there"
    assert failed.where == "e2e/apps/job.go:7"


def test_tests_that_were_not_chosen_are_none() -> None:
    """They are skipped without a word; one that leaves itself out says why; what is set up around tests is none."""
    found = read(
        spec("other", "skipped"), spec("two nodes", "skipped", "needs 2 nodes"), spec("", LeafNodeType="BeforeSuite")
    )
    assert [(one.name, one.message) for one in found] == [("[sig-apps] Job two nodes", "needs 2 nodes")]


def test_what_differs_from_run_to_run_is_no_part_of_a_message() -> None:
    """UIDs, namespaces and addresses of memory are replaced, and what is long is cut."""
    (one,) = read(spec("ends", "failed", f"pods-7592/web {UID} at <*v1.Pod | 0x15eadfc6d908>: {'long ' * 100}"))
    assert one.message.startswith("NAMESPACE/web UID at <*v1.Pod | ADDRESS>: long")
    assert len(one.message) == 240


def test_runs_are_joined_by_name() -> None:
    """Each test has its outcome of every run of either side, and none where it was not run."""
    first, second = read(spec("works")), read(spec("works", "failed", "no"), spec("new"))
    found = {test.name: test for test in joined([first, second], [first])}
    assert [one.state for one in found["[sig-apps] Job works"].direct] == ["passed", "failed"]
    assert found["[sig-apps] Job new"].through == ()


def test_the_table_counts_by_sig() -> None:
    """A test passes where every run passed; one that leaves itself out everywhere is not counted."""
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


def test_a_difference_without_a_reason_is_a_defect() -> None:
    """One that has a reason is not; what fails on the real node too says nothing of the virtual one."""
    tests = [ran("lost", "p", "f"), ran("known [Conformance]", "p", "f"), ran("both", "f", "f"), ran("fine", "p", "p")]
    known = Reasons({}, {"known": "by decision"})
    assert [(one.name, one.why) for one in judging.failing_through(tests, known)] == [
        ("lost", UNKNOWN),
        ("known [Conformance]", "by decision"),
    ]
    assert [(one.name, one.why) for one in judging.failing_directly(tests, known)] == [("both", UNEXPLAINED)]
    assert judging.broken(tests, known)[0] == f"lost: {UNKNOWN} (: words)"


def test_too_few_break_it_whatever_the_reasons() -> None:
    """99 of 100 are enough, 98 are not."""
    known = Reasons({}, {"n": "by decision"})
    fine = [ran(f"fine {number}", "p", "p") for number in range(98)]
    assert judging.broken([*fine, ran("n1", "p", "f"), ran("x", "p", "p")], known) == []
    assert judging.broken([*fine, ran("n1", "p", "f"), ran("n2", "p", "f")], known) == [
        "98.00% of what passes directly passes through, less than 99%"
    ]
    assert judging.broken([ran("n1", "p", "f")], known, whole=False) == []


def test_runs_that_differ_break_it() -> None:
    """A list that changes from run to run is none that one can rely on."""
    assert judging.unsteady([ran("a", "pf", "p"), ran("b", "ff", "pp")]) == ["a"]
    assert "a: not the same in every run" in judging.broken([ran("a", "p", "pf")], Reasons({}, {"a": "known"}))


def test_what_went_otherwise_before_is_told() -> None:
    """Whether two runs give the same list, whatever time each test took; a first result has nothing before it."""
    before = {"tests": {"a": {"direct": ["passed 1 s"], "through": ["failed 1 s"]}, "b": {"direct": ["passed 1 s"]}}}
    after = {"tests": {"a": {"direct": ["passed 2 s"], "through": ["passed 1 s"]}, "b": {"direct": ["passed 3 s"]}}}
    assert judging.changed(before, after) == ["a"]
    assert judging.changed({}, after) == []


def test_a_reason_that_nothing_needs_is_told() -> None:
    """So that it goes when what it was for is repaired."""
    known = Reasons({"both": "no DNS"}, {"lost": "why", "mended": "why", "not run": "why"})
    assert judging.unneeded([ran("lost", "p", "f"), ran("mended", "p", "p"), ran("both", "f", "f")], known) == [
        "mended"
    ]


def test_the_reasons_can_be_read() -> None:
    """Each is a sentence of its own for one test."""
    known = judging.reasons(judging.REASONS.read_text())
    assert all(part and why.strip() for side in known for part, why in side.items())


def test_only_conformance_tests_of_the_four_sigs_are_run() -> None:
    """Those that want the cluster for themselves, or are slow, only when they are asked for."""
    assert Selection().labels == "Conformance && (sig-apps || sig-cli || sig-node || sig-storage) && !Serial && !Slow"
    assert "Serial" not in Selection(serial=True).labels


def test_the_command_line_names_the_cluster(tmp_path: Path) -> None:
    """Ginkgo's own arguments before the suite's; a focus only where there is one."""
    programs = Programs(*(Path(f"/bin/{name}") for name in Programs._fields))
    side = Side("through", tmp_path / "upper.kubeconfig", "/bin/kubectl", tmp_path, "identity")
    line = command(programs, Selection("Job.*works"), side, 3)
    place = line.index("--")
    assert line[0] == "/bin/ginkgo"
    assert line[place - 1] == "/bin/suite"
    assert {"--procs=3", "--focus=Job.*works", f"--output-dir={tmp_path}"} <= {*line[:place]}
    assert {f"--kubeconfig={tmp_path}/upper.kubeconfig", "--kubectl-path=/bin/kubectl"} <= {*line[place:]}
    assert not any(word.startswith("--focus") for word in command(programs, Selection(), side, 3))


def test_the_virtual_node_has_no_taints() -> None:
    """The sandbox's own topology, with a node that takes any pod."""
    topology = parse(untainted(apiserver.topology(["lower-a"], 10350, 9095)))
    assert topology.lowers[0].node.taints == ()


def images(*names: str) -> dict[str, dict[str, Any]]:
    """Return the configuration of each image that is made of a list, by its name, with the files of its layers."""
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
    """All versions of a name are one image; what is not made here, and what must not be there, is in no archive."""
    made = images("here/e2e/busybox:1", "here/e2e/busybox:2", "here/authenticated/agnhost:1", "here/perl:5")
    assert set(made) == {"here/e2e/busybox:1", "here/e2e/busybox:2"}


def test_images_hold_what_their_tests_look_for() -> None:
    """A shell of the search path and one at its path; the right to be another user; pages; a user of its own."""
    made = images("a/busybox:1", "a/agnhost:1", "a/nonewprivs:1", "a/nginx:1", "a/nonroot:1", "a/kitten:1")
    assert {"usr/local/bin/sh", "bin/sh"} <= set(made["a/busybox:1"]["files"])
    assert {"agnhost", "agnhost-2", "bin/curl", "localhost.crt"} <= set(made["a/agnhost:1"]["files"])
    assert made["a/nonewprivs:1"]["files"]["usr/local/bin/nnp"] == 0o4755
    assert "usr/share/nginx/html/index.html" in made["a/nginx:1"]["files"]
    assert made["a/nonroot:1"]["User"] == "1234"
    assert "data.json" in made["a/kitten:1"]["files"]


def kept(**more: Any) -> dict[str, Any]:
    """Return a result as it is kept."""
    tests = [ran("passes", "p", "p"), ran("differs", "p", "f"), ran("asks for a | pipe", "f", "f")]
    known = Reasons({"pipe": "no way <out>"}, {})
    versions = {"tensile": "1", "cluster": "v1.36.3", "python": "3.11"}
    made = {"date": "2026-01-31T12:00:00Z", "versions": versions, "run": {"procs": 6, "runs": 1}}
    return {**made, **judging.result(tests, known), **more}


def test_the_page_has_the_table_and_the_reasons() -> None:
    """What a reader asks first: how many, which ones not, why, and with what it was made."""
    text = page(kept())
    assert "| sig-node | 3 | 2 | 1 | 1 |\n| all | 3 | 2 | 1 | 1 |" in text
    assert f"| differs | {UNKNOWN} |" in text
    assert "| asks for a \\| pipe | no way &lt;out> |" in text
    assert "50.0% of the tests that pass on the real node pass through" in text
    assert (
        "with tensile 1, Kubernetes v1.36.3 and Python 3.11, by\n`python -m bench.conformance`: 6 processes, once,"
        in text
    )


def test_the_page_says_when_nothing_differs() -> None:
    """And when there were several runs, whether they agree."""
    text = page(kept(failing_through=[], failing_directly=[], run={"procs": 2, "runs": 2}))
    assert "only through the virtual node\nNone.\n" in text
    assert "Failures on the real node" not in text
    assert "bench.conformance --runs 2`: 2 processes, 2 times, with the same outcome each time" in text
    assert "2 times, and 1 tests differ" in page(kept(unsteady=["a"], run={"procs": 2, "runs": 2}))


def test_the_page_is_made_of_the_last_result() -> None:
    """docs/conformance.md is as `python -m bench.conformance --document` writes it."""
    assert PAGE.read_text() == page(kept_before(KEPT, RESULT))


def test_what_fails_without_a_reason_is_run_again_by_itself() -> None:
    """The second try is what counts, and it is told of which tests there was one."""
    run = read(spec("passes"), spec("is known", "failed", "words"), spec("comes too late", "failed", "words"))
    failed = judging.unexplained(run, {"is known": "no way"})
    assert failed == ["[sig-apps] Job comes too late"]
    again = report.repeated(run, read(spec("comes too late")))
    assert [(one.state, one.was_repeated) for one in again] == [("passed", True), ("failed", False), ("passed", False)]
    tests = joined([again], [run])
    assert judging.result(tests, NONE)["repeated"] == failed
    assert "the repetition counts: [sig-apps] Job comes too late." in page(kept(repeated=failed))
    assert "No test was run a second time." in page(kept())


def test_tests_are_named_exactly_as_go_understands_it() -> None:
    """A blank is no sign that can be escaped there."""
    assert by_names(["[a] b *not* c", "d"]) == r"\[a\] b \*not\* c|d"
