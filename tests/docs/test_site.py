"""The documentation site, as far as its sources show it: navigation, links, pictures, and the change of dialect.

test_site_built.py builds it and looks at it in a browser.
"""

import posixpath
import re
from collections import Counter
from functools import cache
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
import troubleshootingpage
from fences import ROOT, anchors, inline, links, pages, slug
from sitepages import config, dialect, navigation

DOCS = ROOT / "docs"
SITE = dialect()
PICTURES = sorted((DOCS / "pictures").glob("*.svg"))
SOURCES = sorted(path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md"))
SHOWN = [*SOURCES, *(page for page in SITE.MOVED.values() if page != "index.md")]
"""Every page of the site, relative to docs/."""
PLACES = {page: place for place, page in SITE.MOVED.items() if page != "index.md"}
OF_OTHERS = {
    "untolerated taint(s)",
    "untolerated taint tensile-kube.io/lower-unreachable",
    "didn't match Pod's node affinity/selector",
    "node(s) were unschedulable",
    "Insufficient cpu",
    "ErrImagePull",
    "ImagePullBackOff",
    "exceeded quota",
    "violates PodSecurity",
    "dial tcp … connect: connection refused",
    "i/o timeout",
    "x509: certificate signed by unknown authority",
    "error: Metrics API not available",
    "NodeStatusUnknown",
    "Kubelet stopped posting node status",
    "FILE:LINE:COLUMN: KEY: …",
}
"""Headings of the page for troubleshooting that are messages of Kubernetes, or the form of a message."""


@cache
def text_of(page: str) -> str:
    """Return a page of the site as MkDocs gets it from the hooks, before the change of dialect."""
    place = PLACES.get(page, f"docs/{page}")
    found: str = SITE.relinked(SITE.shown(place, (ROOT / place).read_text()), place)
    return found


def prose(text: str) -> str:
    """Return a page's text without its fences."""
    return re.sub(r"^ *```.*?^ *```$", "", text, flags=re.DOTALL | re.MULTILINE)


def test_every_page_is_in_the_navigation_once() -> None:
    """A page that is left out would be found by search only; one that is gone would be an error of the build."""
    assert sorted(navigation()) == sorted(SHOWN)


def test_the_decisions_stand_in_the_order_of_their_index() -> None:
    """So that the navigation and the page show them in the same way."""
    index = [f"decisions/{link}" for link in links((DOCS / "decisions/README.md").read_text())]
    assert [page for page in navigation() if page.startswith("decisions/")] == ["decisions/README.md", *index]


@pytest.mark.parametrize("page", SHOWN)
def test_links_lead_to_pages_of_the_site(page: str) -> None:
    """And to headings there; also those that lead out of docs/ in the repository."""
    found = links(text_of(page))
    assert [link for link in found if not leads(page, link)] == []


def leads(page: str, link: str) -> bool:
    """Report whether a link of a page leads to a page and a heading of the site, or to a picture."""
    path, _, anchor = link.partition("#")
    target = posixpath.normpath(posixpath.join(posixpath.dirname(page), path)) if path else page
    if (DOCS / target).suffix == ".svg":
        return (DOCS / target).exists() and not anchor
    return target in SHOWN and (not anchor or anchor in anchors(text_of(target)))


@pytest.mark.parametrize("page", SHOWN)
def test_links_have_the_one_form_that_is_checked(page: str) -> None:
    """Links by reference, and links in HTML, would not be checked."""
    text = re.sub(r"`[^`]*`", "", prose(text_of(page)))
    assert re.findall(r"^\[[^\]]+\]: .*|\]\[[^\]]*\]|<(?:a|img) .*", text, re.MULTILINE) == []


@pytest.mark.parametrize("page", [page for page in SHOWN if page != "changelog.md"])
def test_headings_of_a_page_have_anchors_of_their_own(page: str) -> None:
    """The second of two alike gets a number, which GitHub and MkDocs write differently. Releases have the same ones."""
    counted = Counter(slug(title) for title in re.findall(r"^#+ +(.*?) *$", prose(text_of(page)), re.MULTILINE))
    assert [one for one, times in counted.items() if times > 1] == []


def test_every_page_is_reached_from_the_readme() -> None:
    """By following links, in the repository."""
    seen: set[str] = set()
    waiting = ["README.md"]
    while waiting:
        page = waiting.pop()
        if page in seen or not page.endswith(".md"):
            continue
        seen.add(page)
        targets = (link.partition("#")[0] for link in links((ROOT / page).read_text()))
        waiting += [posixpath.normpath(posixpath.join(posixpath.dirname(page), one)) for one in targets if one]
    assert set(pages()) - seen == set()


@pytest.mark.parametrize("picture", PICTURES, ids=lambda path: path.name)
def test_a_picture_is_whole_and_has_a_title(picture: Path) -> None:
    """It needs nothing from elsewhere, and it has a description for readers who do not see it."""
    text = picture.read_text()
    assert ET.fromstring(text).findtext("{http://www.w3.org/2000/svg}title")
    assert re.findall(r"(?:href|src)=[\"'](?!#)|@import|url\((?!#)|<script", text) == []


def test_every_picture_is_shown() -> None:
    """On a page or in the README, with a text in its place."""
    texts = [(ROOT / page).read_text() for page in pages()]
    shown = {name for text in texts for name in re.findall(r"!\[[^\]]+\]\(\S*?([\w-]+\.svg)\)", text)}
    assert shown >= {path.name for path in PICTURES} != set()


def test_the_site_asks_no_other_host() -> None:
    """Fonts of others, and figures of a repository, would be fetched by each reader."""
    said = config()
    assert said["theme"]["font"] is False
    assert not {"repo_url", "extra_javascript"} & set(said)
    assert all("://" not in path for path in said["extra_css"])
    assert said["strict"] is True


def test_the_sections_for_conditions_and_reasons_are_as_they_would_be_made_now() -> None:
    """They are made from the constants in the code."""
    text = troubleshootingpage.DOCUMENT.read_text()
    assert troubleshootingpage.rewritten(text) == text


def test_messages_in_headings_for_troubleshooting_exist() -> None:
    """In the code, word for word; one of Kubernetes is listed above."""
    by_hand = troubleshootingpage.DOCUMENT.read_text().partition(troubleshootingpage.BEGIN)[0]
    titles = re.findall(r"^### (.*)$", by_hand, re.MULTILINE)
    quoted = {one for title in titles for one in inline(title)}
    code = "\n".join(path.read_text() for path in (ROOT / "tensile").rglob("*.py"))
    code = re.sub(r'"\s*\n\s*f?"', "", code)
    marks = {one for one in quoted if one.startswith("tensile-kube.io/")}
    ours = quoted - OF_OTHERS - marks
    assert len(ours) > 5
    assert {one for one in ours if not all(part in code for part in re.split(" ?… ?", one))} == set()
    assert OF_OTHERS - quoted == set()


@pytest.mark.parametrize(
    ("text", "changed"),
    [
        ("a\n- b\n  c\n", "a\n\n- b\n    c\n"),
        ("- a\n  - b\n    c\n- d\n", "- a\n    - b\n        c\n- d\n"),
        ("- a\n\n  b\n- c\n", "- a\n\n    b\n\n- c\n"),
        ("1. a\n   ```sh\n   b\n     c\n   ```\n   d\n", "1. a\n\n    ```sh\n    b\n      c\n    ```\n\n    d\n"),
        ("a\n| b |\n|---|\n", "a\n\n| b |\n|---|\n"),
        ("- a\n\n  | b |\n  |---|\n", "- a\n\n    | b |\n    |---|\n"),
        ("a\n<!-- not run: b -->\n```sh\n<!-- c -->\n```\n", "a\n\n```sh\n<!-- c -->\n```\n\n"),
        ("| `a \\| b` | c |\n", "| `a | b` | c |\n"),
        ("- a\n\nb\n\n    c\n", "- a\n\nb\n\n    c\n"),
        ("```\n- a\n  b\n```\n", "```\n- a\n  b\n```\n\n"),
    ],
)
def test_the_dialect_of_github_becomes_that_of_python_markdown(text: str, changed: str) -> None:
    """Four spaces for what belongs to an item, an empty line before a list, a table and a fence, and no comments."""
    assert SITE.for_python_markdown(text) == changed


@pytest.mark.parametrize(
    ("page", "text", "changed"),
    [
        ("docs/limits.md", "[a](topology.md#b)", "[a](topology.md#b)"),
        ("docs/versions.md", "[a](../CHANGELOG.md)", "[a](changelog.md)"),
        ("docs/howto/storage.md", "[a](../../SECURITY.md#b)", "[a](../reporting.md#b)"),
        ("docs/topology.md", "[a](../README.md#b)", "[a](index.md#b)"),
        ("docs/topology.md", "[a](../topology.example.yaml)", "[a](reference/example.md)"),
        (
            "CONTRIBUTING.md",
            "[a](docs/decisions/README.md) [b](SECURITY.md)",
            "[a](decisions/README.md) [b](reporting.md)",
        ),
        ("docs/limits.md", "[a](https://example.com/x) [b](#c)", "[a](https://example.com/x) [b](#c)"),
        ("docs/limits.md", "```\n[a](../CHANGELOG.md)\n```\n", "```\n[a](../CHANGELOG.md)\n```\n"),
    ],
)
def test_links_of_the_repository_become_links_of_the_site(page: str, text: str, changed: str) -> None:
    """Files outside of docs/ are pages there."""
    assert SITE.relinked(text, page) == changed


def test_a_file_is_shown_in_a_fence() -> None:
    """With a heading, and the place where it is in the repository."""
    shown = SITE.shown("topology.example.yaml", "name: a\n")
    assert shown == "# Example with every field\n\n`topology.example.yaml`:\n\n```yaml\nname: a\n```\n"
    assert SITE.shown("SECURITY.md", "# Security\n") == "# Security\n"
