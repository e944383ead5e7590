"""Tests of YAML output: text remains text for every YAML parser, and there are no aliases."""

import subprocess
from typing import Any

import orjson
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from tensile.sandbox.sandbox import Sandbox
from tensile.yaml_document import compose, document, flow, is_plainly_text, plain

_WORDS = """
    y Y yes n N no on OFF True 1e3 12e4567 12e45 1E5 0x1F -0x1f 0X1f 0b11 -0b11 0B11 0o17 0O17 017 089 1_000 1_0.5
    1_e3 0x_1F 12:30 1:30.5 -1:30 2026-1-2 2026-01-02 2026-1-2T1:2:3Z .5 5. +.5 .inf -.Inf .nan ~ null Null = << +1 -1
    1.e3 1e-3 9223372036854775808 99999999999999999999 - ? : # & * ! | > ' % @ `
"""
MISTAKEN = _WORDS.split()
"""Texts that some parser reads as another type, or as no YAML, without quotes."""
TRICKY = st.text("yYnNoOeE0123456789+-._:xXbBT ~#'\"\\\n\t\u00e9\u2603\U0001f600", max_size=12)


def read_by_us(text: str) -> Any:
    """Parse a document by the rules of YAML 1.2."""
    found = compose(text)
    assert not found.flaws
    return plain(found.root or pytest.fail("no document"))


@pytest.mark.parametrize("word", [*MISTAKEN, "", " ", "a b", "a: b", "line\n", "\nline", "  two\n lines\n\n", "x\ty\n"])
def test_text_remains_text_for_parsers_of_yaml_1_1_and_1_2(word: str) -> None:
    """This applies to values, keys and items of lists, and to the one-line form."""
    for value in ({"k": word, word: "v"}, {"list": [word, {"k": [word]}]}):
        text = document(value)
        assert yaml.safe_load(text) == value
        assert orjson.dumps(read_by_us(text)) == orjson.dumps(value)
        assert yaml.safe_load(flow(value)) == value


@given(TRICKY)
def test_any_text_is_parsed_as_the_same_text(word: str) -> None:
    """Parsers of YAML 1.1 and of YAML 1.2 both return it unchanged."""
    value = {"k": word, "list": [word]}
    text = document(value)
    assert yaml.safe_load(text) == value
    assert orjson.dumps(read_by_us(text)) == orjson.dumps(value)


@pytest.mark.real
def test_kubectl_parses_every_ambiguous_text_as_text(sandbox: Sandbox) -> None:
    """Without quotes, kubectl reads texts such as `y`, `12e45` or `0O17` as other types than PyYAML does."""
    data = {f"k{place}": word for place, word in enumerate(MISTAKEN)}
    labels = dict.fromkeys(MISTAKEN, "x")
    given = {"apiVersion": "example.io/v1", "kind": "Thing", "metadata": {"name": "y"}, "data": data, "more": labels}
    command = sandbox.kubectl_command("annotate", "--local", "-o", "json", "-f", "-", "a=b")
    done = subprocess.run(command, input=document(given).encode(), capture_output=True, timeout=60, check=True)
    read = orjson.loads(done.stdout)
    assert (read["metadata"]["name"], read["data"], read["more"]) == ("y", data, labels)


@pytest.mark.parametrize("word", ["web", "500m", "10Gi", "1.2.3", "10.0.0.1", "app:1", "v1", "+5m", "yellow", "a-1e3"])
def test_unambiguous_text_is_written_without_quotes(word: str) -> None:
    """The output is easier to read without them."""
    assert is_plainly_text(word)
    assert document({"k": word}) == f"k: {word}\n"


@pytest.mark.parametrize("word", MISTAKEN)
def test_text_that_some_parser_misreads_is_quoted(word: str) -> None:
    """Some texts are misread only by kubectl, and others only by PyYAML."""
    assert document({"k": word}).strip()[-1] in "'\""


def test_shared_values_are_written_in_full_without_aliases() -> None:
    """Each place has the whole value."""
    shared = {"a": ["b"]}
    assert document({"one": shared, "two": shared}) == "one:\n  a:\n  - b\ntwo:\n  a:\n  - b\n"


def test_text_of_several_lines_is_written_as_a_block() -> None:
    """A script in a ConfigMap remains readable."""
    assert document({"k": "one\ntwo\n"}) == "k: |\n  one\n  two\n"
