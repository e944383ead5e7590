"""Tests of reading pages: fences and their comments, anchors, links, calls, and the comparison of output."""

import pytest
from docsite import missing
from fences import anchors, calls, fences, inline, links, slug

PAGE = """\
# A page

<!-- not run: needs a cluster -->
```sh
one
```
- in a list

  <!-- given: first -->
  <!-- given: second -->
  <!-- ends with: 2 -->
  ```sh
  two
    indented
  ```
```
shown
```
"""


def test_fences_are_returned_in_order_with_text_language_and_line() -> None:
    """The indentation of a list around a fence is removed."""
    found = fences("page.md", PAGE)
    assert [one.text for one in found] == ["one\n", "two\n  indented\n", "shown\n"]
    assert [one.language for one in found] == ["sh", "sh", ""]
    assert [one.place for one in found] == ["page.md:4", "page.md:12", "page.md:16"]


def test_comments_directly_before_a_fence_belong_to_it() -> None:
    """Several comments of one kind are joined in their order."""
    first, second, third = fences("page.md", PAGE)
    assert first.directives == {"not run": "needs a cluster"}
    assert second.directives == {"given": "first\nsecond", "ends with": "2"}
    assert third.directives == {}


def test_a_comment_before_an_empty_line_does_not_belong_to_the_fence() -> None:
    """Any line between comment and fence separates them."""
    (found,) = fences("page.md", "<!-- not run: needs a cluster -->\n\n```sh\none\n```\n")
    assert found.directives == {}


@pytest.mark.parametrize("text", ["```sh\none\n", "  ```sh\n  one\n```\n"])
def test_a_fence_without_an_end_is_an_error(text: str) -> None:
    """Otherwise the text after it would be run as commands."""
    with pytest.raises(ValueError, match="the fence has no end"):
        fences("page.md", text)


def test_an_unknown_comment_before_a_fence_is_an_error() -> None:
    """A misspelled comment could let a block run that must not run."""
    with pytest.raises(ValueError, match=r"page\.md:1: 'not runn' is no comment that fences have"):
        fences("page.md", "<!-- not runn: needs a cluster -->\n```sh\none\n```\n")


@pytest.mark.parametrize(
    ("title", "anchor"),
    [
        ("What it does", "what-it-does"),
        ("`tensile status`", "tensile-status"),
        ("lowers.node.taints", "lowersnodetaints"),
        ("No new pods: cordon", "no-new-pods-cordon"),
        ("The engine's ports", "the-engines-ports"),
    ],
)
def test_anchors_have_the_form_of_github(title: str, anchor: str) -> None:
    """They are in lower case, with hyphens for spaces and without punctuation."""
    assert slug(title) == anchor


def test_headings_and_links_in_fences_are_ignored() -> None:
    """A shell comment looks like a heading."""
    text = "# One\n[a](b.md#c) [out](https://example.com)\n```sh\n# two\n[x](y)\n```\n## Three\n"
    assert anchors(text) == {"one", "three"}
    assert links(text) == ["b.md#c"]


def test_inline_code_may_span_the_end_of_a_line() -> None:
    """Text is wrapped inside of backticks too; code in fences is not inline code."""
    assert inline("a `b c` d `e\nf` g\n```sh\n`h`\n```\n") == ["b c", "e\nf"]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("tensile plan -f a.yaml", ["plan -f a.yaml"]),
        (".venv/bin/tensile run", ["run"]),
        ("tensile schema > x; tensile validate", ["schema", "validate"]),
        ("x=$(tensile schema)", ["schema"]),
        ("cat a | tensile validate -f -", ["validate -f -"]),
        ("tensile run \\\n  -f a", ["run -f a"]),
        ("`tensile run`", ["run"]),
        ("kubectl -n tensile get pods", []),
    ],
)
def test_calls_of_tensile_in_shell_text_are_found(text: str, found: list[str]) -> None:
    """The name must be at the start of a command, because a namespace has the same name."""
    assert calls(text) == found


def test_missing_returns_the_shown_lines_that_were_not_printed() -> None:
    """Several spaces count as one, … matches anything, and other lines may be printed in between."""
    printed = "NAME      STATUS\nlower-a   Ready   12s\nother\nend\n"
    assert missing("NAME STATUS\nlower-a Ready …\n\nend", printed) == []
    assert missing("lower-b Ready …", printed) == ["lower-b Ready …"]
    assert missing("lower-a Ready", printed) == ["lower-a Ready"]
