"""Tests of the sources of the documentation site: navigation, links, pictures, and the conversion of Markdown.

test_site_built.py builds the site and opens it in a browser.
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
"""Headings of the troubleshooting page that are messages of Kubernetes, or the form of a message."""


@cache
def text_of(page: str) -> str:
    """Return a page of the site as MkDocs gets it from the hooks, before the conversion of Markdown."""
    place = PLACES.get(page, f"docs/{page}")
    found: str = SITE.relinked(SITE.shown(place, (ROOT / place).read_text()), place)
    return found


def prose(text: str) -> str:
    """Return the text of a page without its fences."""
    return re.sub(r"^ *```.*?^ *```$", "", text, flags=re.DOTALL | re.MULTILINE)


def test_every_page_is_in_the_navigation_once() -> None:
    """A page that is left out could only be found by search, and an entry without a page would fail the build."""
    assert sorted(navigation()) == sorted(SHOWN)


def test_the_navigation_lists_the_decisions_in_the_order_of_their_index() -> None:
    """The navigation and the index page then show the same order."""
    index = [f"decisions/{link}" for link in links((DOCS / "decisions/README.md").read_text())]
    assert [page for page in navigation() if page.startswith("decisions/")] == ["decisions/README.md", *index]


@pytest.mark.parametrize("page", SHOWN)
def test_links_lead_to_pages_and_headings_of_the_site(page: str) -> None:
    """This includes links that lead to files outside of docs/ in the repository."""
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
def test_pages_have_no_reference_links_and_no_html_links(page: str) -> None:
    """Such links would not be checked."""
    text = re.sub(r"`[^`]*`", "", prose(text_of(page)))
    assert re.findall(r"^\[[^\]]+\]: .*|\]\[[^\]]*\]|<(?:a|img) .*", text, re.MULTILINE) == []


@pytest.mark.parametrize("page", [page for page in SHOWN if page != "changelog.md"])
def test_headings_of_a_page_have_unique_anchors(page: str) -> None:
    """GitHub and MkDocs number duplicates differently.

    The changelog is exempt, because its releases have the same headings.
    """
    counted = Counter(slug(title) for title in re.findall(r"^#+ +(.*?) *$", prose(text_of(page)), re.MULTILINE))
    assert [one for one, times in counted.items() if times > 1] == []


def test_every_page_can_be_reached_from_the_readme_by_links() -> None:
    """The links are followed in the repository."""
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
def test_a_picture_has_a_title_and_needs_no_other_file(picture: Path) -> None:
    """The title is for readers who cannot see the picture."""
    text = picture.read_text()
    assert ET.fromstring(text).findtext("{http://www.w3.org/2000/svg}title")
    assert re.findall(r"(?:href|src)=[\"'](?!#)|@import|url\((?!#)|<script", text) == []


def test_every_picture_is_shown_with_an_alternative_text() -> None:
    """It is on a page or in the README."""
    texts = [(ROOT / page).read_text() for page in pages()]
    shown = {name for text in texts for name in re.findall(r"!\[[^\]]+\]\(\S*?([\w-]+\.svg)\)", text)}
    assert shown >= {path.name for path in PICTURES} != set()


def test_the_site_is_configured_to_load_nothing_from_other_hosts() -> None:
    """Otherwise each reader would fetch fonts or repository statistics from them."""
    settings = config()
    assert settings["theme"]["font"] is False
    assert not {"repo_url", "extra_javascript"} & set(settings)
    assert all("://" not in path for path in settings["extra_css"])
    assert settings["strict"] is True


def test_the_sections_for_conditions_and_reasons_are_up_to_date() -> None:
    """They are made from the constants in the code."""
    text = troubleshootingpage.DOCUMENT.read_text()
    assert troubleshootingpage.rewritten(text) == text


def test_messages_in_troubleshooting_headings_exist_in_the_code() -> None:
    """Messages of Kubernetes must be in the list above."""
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
def test_github_markdown_is_converted_to_python_markdown(text: str, changed: str) -> None:
    """Content of items is indented by four spaces.

    Lists, tables and fences get an empty line before them, and comments are removed.
    """
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
def test_links_of_the_repository_are_converted_to_links_of_the_site(page: str, text: str, changed: str) -> None:
    """Some files outside of docs/ are pages of the site."""
    assert SITE.relinked(text, page) == changed


def test_a_file_becomes_a_page_with_a_heading_and_a_fence() -> None:
    """The page names the place of the file in the repository; a Markdown file is used as it is."""
    shown = SITE.shown("topology.example.yaml", "name: a\n")
    assert shown == "# Example with every field\n\n`topology.example.yaml`:\n\n```yaml\nname: a\n```\n"
    assert SITE.shown("SECURITY.md", "# Security\n") == "# Security\n"
