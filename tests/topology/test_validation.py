"""Tests that each kind of invalid file is rejected with the right position, the right key and a helpful message."""

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
    """Parse an invalid file, once, and return its errors."""
    with pytest.raises(TopologyErrors) as caught:
        parse(bad.text, configmap_mode=bad.configmap)
    return caught.value


def position_of(problem: TopologyProblem) -> tuple[int, int, str]:
    """Return line, column and path of a problem."""
    return *problem.position, show_path(problem.path)


@pytest.mark.parametrize("bad", ALL, ids=lambda bad: bad.kind)
def test_the_error_for_an_invalid_file_has_line_column_key_and_message(bad: Bad) -> None:
    """If the file has only one mistake, there is only one error."""
    problems = refusal(bad).problems
    here = (bad.line, bad.column, bad.path)
    reported = [(position_of(problem), problem.text) for problem in problems]
    assert any(where == here and bad.message in text for where, text in reported), reported[:5]
    assert not bad.alone or len(problems) == 1


@pytest.mark.parametrize("bad", ALL, ids=lambda bad: bad.kind)
def test_each_error_is_one_printable_line_of_limited_length(bad: Bad) -> None:
    """Its form is FILE:LINE:COLUMN: KEY: MESSAGE."""
    for line in str(refusal(bad)).split("\n"):
        assert LINE.match(line)
        assert line.isprintable()
        assert len(line) < 500


def test_the_corpus_has_enough_distinct_kinds_of_invalid_files() -> None:
    """No kind is counted twice."""
    kinds = {bad.kind for bad in ALL}
    assert len(kinds) == len(ALL)
    assert len(kinds) >= KINDS


@pytest.mark.parametrize("text", [EMPTY, ONE], ids=["no lowers", "one lower"])
def test_the_base_files_of_the_corpus_are_valid(text: str) -> None:
    """So each file of the corpus is invalid only because of its change."""
    assert parse(text).name == "demo"


def test_all_errors_of_a_file_are_reported_in_the_order_of_the_file() -> None:
    """YAML errors, wrong types, unknown keys and conflicts are reported together."""
    text = (
        HEAD
        + "lowers:\n- {name: a, kubeconfig: 5}\n- {name: a, kubeconfig: k, qps: fast}\n"
        + "colour: red\nkubelet: {port: 0, tlsCertFile: a}\nguard: {}\nguard: {}\n"
    )
    with pytest.raises(TopologyErrors) as caught:
        parse(text)
    assert [position_of(problem) for problem in caught.value.problems] == [
        (5, 25, "lowers[0].kubeconfig"),
        (6, 10, "lowers[1].name"),
        (6, 33, "lowers[1].qps"),
        (7, 1, "colour"),
        (8, 17, "kubelet.port"),
        (8, 33, "kubelet.tlsCertFile"),
        (10, 1, "guard"),
    ]


def test_errors_start_with_the_name_of_the_file_as_given() -> None:
    """The name may be a relative path."""
    with pytest.raises(TopologyErrors) as caught:
        parse(HEAD, name="clusters/eu.yaml")
    assert str(caught.value) == "clusters/eu.yaml:1:1: lowers: required key is missing"


def test_only_the_first_200_errors_are_printed() -> None:
    """The last line has the number of the others."""
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
def test_values_that_may_be_secrets_are_not_in_the_error(text: str) -> None:
    """These are paths, URLs, long texts and values of unknown keys."""
    with pytest.raises(TopologyErrors) as caught:
        parse(text)
    assert "s3cr3t" not in str(caught.value)
