"""Every kind of bad file is refused at the right place, under the right key, with words that help."""

import re
from functools import cache

import pytest
from corpus import ALL
from corpus_form import EMPTY, HEAD, ONE, Bad

from tensile.topology import TopologyErrors, TopologyProblem, parse
from tensile.yaml_document import show_path

KINDS = 300
LINE = re.compile(r"topology\.yaml:[0-9]+:[0-9]+: \S.*: \S")


@cache
def refusal(bad: Bad) -> TopologyErrors:
    """Read a bad file, once, and give its refusal."""
    with pytest.raises(TopologyErrors) as caught:
        parse(bad.text, configmap_mode=bad.configmap)
    return caught.value


def place(problem: TopologyProblem) -> tuple[int, int, str]:
    """Return line, column and path of a problem."""
    return *problem.position, show_path(problem.path)


@pytest.mark.parametrize("bad", ALL, ids=lambda bad: bad.kind)
def test_a_bad_file_is_refused_where_it_is_bad(bad: Bad) -> None:
    """The error has the line, the column and the key of the mistake, and says what is wrong."""
    problems = refusal(bad).problems
    here = (bad.line, bad.column, bad.path)
    told = [(place(problem), problem.text) for problem in problems]
    assert any(where == here and bad.words in text for where, text in told), told[:5]
    assert not bad.alone or len(problems) == 1


@pytest.mark.parametrize("bad", ALL, ids=lambda bad: bad.kind)
def test_a_refusal_is_printable_lines_of_one_form(bad: Bad) -> None:
    """Each line is FILE:LINE:COLUMN: key: words, of printable characters, and not endless."""
    for line in str(refusal(bad)).split("\n"):
        assert LINE.match(line)
        assert line.isprintable()
        assert len(line) < 500


def test_the_corpus_is_large_and_its_kinds_are_distinct() -> None:
    """No kind of bad file is counted twice."""
    kinds = {bad.kind for bad in ALL}
    assert len(kinds) == len(ALL)
    assert len(kinds) >= KINDS


@pytest.mark.parametrize("text", [EMPTY, ONE], ids=["no lowers", "one lower"])
def test_the_files_that_the_corpus_starts_from_are_valid(text: str) -> None:
    """So a bad file is bad by what it adds."""
    assert parse(text).name == "demo"


def test_all_errors_are_told_at_once_in_the_order_of_the_file() -> None:
    """YAML's flaws, wrong types, unknown keys and clashes of one file come together."""
    text = (
        HEAD
        + "lowers:\n- {name: a, kubeconfig: 5}\n- {name: a, kubeconfig: k, qps: fast}\n"
        + "colour: red\nkubelet: {port: 0, tlsCertFile: a}\nguard: {}\nguard: {}\n"
    )
    with pytest.raises(TopologyErrors) as caught:
        parse(text)
    assert [place(problem) for problem in caught.value.problems] == [
        (5, 25, "lowers[0].kubeconfig"),
        (6, 10, "lowers[1].name"),
        (6, 33, "lowers[1].qps"),
        (7, 1, "colour"),
        (8, 17, "kubelet.port"),
        (8, 33, "kubelet.tlsCertFile"),
        (10, 1, "guard"),
    ]


def test_the_file_is_named_as_it_was_given() -> None:
    """The name stands at the start of each line."""
    with pytest.raises(TopologyErrors) as caught:
        parse(HEAD, name="clusters/eu.yaml")
    assert str(caught.value) == "clusters/eu.yaml:1:1: lowers: required key is missing"


def test_a_file_of_errors_is_told_in_part() -> None:
    """After 200 errors comes the number of those that are not shown."""
    text = EMPTY + "".join(f"k{number}: v\n" for number in range(250)) + "kind2: v\nguard: 1\n"
    with pytest.raises(TopologyErrors) as caught:
        parse(text)
    lines = str(caught.value).split("\n")
    assert len(caught.value.problems) == 252
    assert len(lines) == 201
    assert lines[199].startswith("topology.yaml:204:1: k199: unknown key; known keys: apiVersion")
    assert lines[200] == "topology.yaml: and 52 more errors"


@pytest.mark.parametrize(
    "text",
    [
        HEAD + 'lowers: [{name: a, kubeconfig: "apiVersion: v1\\ntoken: s3cr3t"}]\n',
        EMPTY + "upper: {advertiseURL: 'https://admin:s3cr3t@upper:6443'}\n",
        EMPTY + "webhook: {url: 'https://admin:s3cr3t@upper/x'}\n",
        EMPTY + "token: s3cr3t\n",
        EMPTY + "upper: {token: {password: s3cr3t}}\n",
        HEAD + "lowers: [{name: a, kubeconfig: {users: [{token: s3cr3t}]}}]\n",
        EMPTY + "onConflict: '" + "s3cr3t" * 10 + "'\n",
    ],
)
def test_what_may_be_a_secret_is_not_repeated(text: str) -> None:
    """Paths, URLs, long texts and what stands under unknown keys are not in the message."""
    with pytest.raises(TopologyErrors) as caught:
        parse(text)
    assert "s3cr3t" not in str(caught.value)
