"""How pages are read: fences, what comments say of them, anchors, links, calls; and how shown output is compared."""

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


def test_a_fence_has_its_text_and_its_line() -> None:
    """In order, without the indentation of the list that it stands in."""
    found = fences("page.md", PAGE)
    assert [one.text for one in found] == ["one\n", "two\n  indented\n", "shown\n"]
    assert [one.language for one in found] == ["sh", "sh", ""]
    assert [one.place for one in found] == ["page.md:4", "page.md:12", "page.md:16"]


def test_comments_right_above_belong_to_a_fence() -> None:
    """In the order in which they stand, where one stands several times."""
    first, second, third = fences("page.md", PAGE)
    assert first.said == {"not run": "needs a cluster"}
    assert second.said == {"given": "first\nsecond", "ends with": "2"}
    assert third.said == {}


def test_a_comment_further_above_says_nothing_of_it() -> None:
    """A line between them parts them."""
    (found,) = fences("page.md", "<!-- not run: needs a cluster -->\n\n```sh\none\n```\n")
    assert found.said == {}


@pytest.mark.parametrize("text", ["```sh\none\n", "  ```sh\n  one\n```\n"])
def test_a_fence_without_an_end_is_an_error(text: str) -> None:
    """What follows would be taken for commands."""
    with pytest.raises(ValueError, match="the fence has no end"):
        fences("page.md", text)


def test_a_comment_that_is_not_known_is_an_error() -> None:
    """A slip in it would have a block run that should not be, or pass for a reason."""
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
def test_anchors_are_made_as_github_makes_them(title: str, anchor: str) -> None:
    """Lower case, without what is neither letter nor digit, with hyphens for spaces."""
    assert slug(title) == anchor


def test_headings_and_links_in_fences_are_none() -> None:
    """A comment of a shell begins like a heading."""
    text = "# One\n[a](b.md#c) [out](https://example.com)\n```sh\n# two\n[x](y)\n```\n## Three\n"
    assert anchors(text) == {"one", "three"}
    assert links(text) == ["b.md#c"]


def test_prose_between_backticks_is_found_over_the_end_of_a_line() -> None:
    """Text is wrapped there, too."""
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
def test_calls_of_the_program_are_found(text: str, found: list[str]) -> None:
    """At the beginning of a command, not where a namespace is called like it."""
    assert calls(text) == found


def test_shown_lines_have_to_be_printed() -> None:
    """Spaces count as one, … stands for anything, other lines may be printed between."""
    printed = "NAME      STATUS\nlower-a   Ready   12s\nother\nend\n"
    assert missing("NAME STATUS\nlower-a Ready …\n\nend", printed) == []
    assert missing("lower-b Ready …", printed) == ["lower-b Ready …"]
    assert missing("lower-a Ready", printed) == ["lower-a Ready"]
