"""Tests that messages of the program are short sentences in the words of the Kubernetes documentation.

They cover all texts of four words or more in the code, and the pages that are made from docstrings.
"""

import ast
import re
from collections.abc import Iterator

import pytest
from conditionspage import nodes
from fences import ROOT

MOST_WORDS = 25
"""The most words of a sentence. A part that ends with a colon or semicolon counts as one: `problem: advice`."""
FEWEST_WORDS = 4
"""The fewest words of a text that counts as a sentence."""
STRANGE = re.compile(
    r"\b(?:nobody|somebody|whoever|whomever|anew|tells?|told|hears?|heard|likewise|thereby|"
    r"(?:host|member|parent|sub|master|client) clusters?)\b",
    re.IGNORECASE,
)
"""Words that messages must not use: literary ones, and synonyms of terms in the glossary."""
REFERENCES = (
    "docs/commands.md",
    "docs/reference/conditions.md",
    "docs/reference/permissions.md",
    "docs/topology.md",
)
"""Made from docstrings: help, conditions, reasons, metrics, permissions, fields of the topology."""
NO_SENTENCES = ("tensile.engine.status.html", "tensile.sandbox.demo_script")
"""Modules whose long texts are style sheets and command lines."""


def texts() -> Iterator[tuple[str, str]]:
    """Yield each text in the code with its place; X replaces each formatted value."""
    for module, every in nodes().items():
        if module.startswith(NO_SENTENCES):
            continue
        formatted = [node for node in every if isinstance(node, ast.JoinedStr)]
        parts = {id(part) for node in formatted for part in ast.walk(node)} - {id(node) for node in formatted}
        docstrings = {id(node.value) for node in every if isinstance(node, ast.Expr)}
        for node in every:
            if id(node) not in parts | docstrings and (text := written(node)):
                yield f"{module}:{getattr(node, 'lineno', 0)}", text


def written(node: ast.AST) -> str:
    """Return the text of a literal with enough words, "" for any other node."""
    match node:
        case ast.Constant(value=str(text)):
            pass
        case ast.JoinedStr(values=values):
            text = "".join(str(one.value) if isinstance(one, ast.Constant) else "X" for one in values)
        case _:
            return ""
    return text if len(text.split()) >= FEWEST_WORDS else ""


def cells(page: str) -> Iterator[tuple[str, str]]:
    """Yield each line of a page, or each cell of its tables, with its place."""
    for number, line in enumerate((ROOT / page).read_text().splitlines(), 1):
        yield from ((f"{page}:{number}", cell) for cell in (line.split(" | ") if line.startswith("|") else [line]))


def flaws(text: str) -> list[str]:
    """Return the sentences of a text that are too long, and the words that are not plain."""
    sentences = re.split(r"(?<=[.!?;:])\s", text)
    long = [sentence for sentence in sentences if len(sentence.split()) > MOST_WORDS]
    return long + STRANGE.findall(text)


def test_messages_are_short_and_plain() -> None:
    """They are all texts in the code, such as errors, hints, reasons, findings and log lines."""
    found = list(texts())
    assert len(found) > 1500
    assert [(place, flaw) for place, text in found for flaw in flaws(text)] == []


@pytest.mark.parametrize("page", REFERENCES)
def test_docstrings_that_users_read_are_short_and_plain(page: str) -> None:
    """They are checked on the reference pages that are made from them."""
    assert [(place, flaw) for place, text in cells(page) for flaw in flaws(text)] == []


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("topology.yaml: no such file: name another with -f", 0),
        ("no lower cluster tells its version", 1),
        ("intelligible in the member cluster", 1),
        (" ".join(["word"] * 25), 0),
        (" ".join(["word"] * 26), 1),
        (f"{' '.join(['word'] * 20)}: {' '.join(['word'] * 20)}", 0),
    ],
)
def test_long_sentences_and_banned_words_are_found(text: str, count: int) -> None:
    """A sentence of more than 25 words is too long, and only whole words count as banned."""
    assert len(flaws(text)) == count
