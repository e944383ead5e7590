"""Markdown as GitHub reads it, changed into what Python-Markdown reads in the same way.

The pages are written for GitHub, whose dialect is CommonMark with tables. MkDocs has Python-Markdown, which asks for
four spaces before what belongs to an item of a list, and for an empty line before a list, a table and a fence. The
comments above fences are for tests, and links to files of the repository have to lead to a page of the site.
"""

import posixpath
import re
from collections.abc import Iterator
from itertools import takewhile

FENCE = re.compile(r"(`{3,})")
ITEM = re.compile(r"(?:[-*+]|\d+[.)]) +")
CODE = re.compile(r"`[^`]+`")
COMMENT = re.compile(r"<!--.*-->")
LINK = re.compile(r"\]\(([^)#\s]+)((?:#[^)\s]*)?)\)")
MOVED = {
    "README.md": "index.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "reporting.md",
    "topology.example.yaml": "reference/example.md",
    "manifests/scheduler-extender.yaml": "reference/scheduler-extender.md",
}
"""Files of the repository by their page in the site; the README's is one of its own in docs/."""
TITLES = {
    "topology.example.yaml": "Example with every field",
    "manifests/scheduler-extender.yaml": "Scheduler configuration for the extender",
}
"""Headings of the pages that show a file."""


def for_python_markdown(text: str) -> str:
    """Return a page in the dialect of Python-Markdown, without its comments."""
    return "\n".join(_lines(text.splitlines())) + "\n"


def _lines(lines: list[str]) -> Iterator[str]:
    offsets: list[int] = []
    """Where the text of each open item begins, the outermost first."""
    fence = before = first = ""
    """The end of an open fence; the line before; the first line since the last empty one."""
    for line in lines:
        text = line.lstrip(" ")
        if fence:
            yield _indented(line, offsets)
            if text == fence:
                yield ""
                fence = first = ""
        elif not text or COMMENT.fullmatch(text):
            yield (first := "")
        else:
            indent = len(line) - len(text)
            offsets = list(takewhile(indent.__ge__, offsets))
            if first and _is_block(text, before, first):
                yield (first := "")
            first, before = first or text, text
            yield CODE.sub(_unescaped, _indented(line, offsets)) if text.startswith("|") else _indented(line, offsets)
            fence = found[1] if (found := FENCE.match(text)) else ""
            offsets += [indent + len(found[0])] if (found := ITEM.match(text)) else []


def _indented(line: str, offsets: list[int]) -> str:
    """Return a line of an item with four spaces for each item that it stands in."""
    return f"{'    ' * len(offsets)}{line[offsets[-1] if offsets else 0 :]}".rstrip()


def _unescaped(code: re.Match[str]) -> str:
    """Return code in a table without the backslashes that GitHub wants before its bars."""
    return code[0].replace("\\|", "|")


def _is_block(text: str, before: str, first: str) -> bool:
    """Report whether a line needs an empty one before it, to be a fence, a table or an item of a list."""
    is_item = ITEM.match(text) and not ITEM.match(first)
    is_table = text.startswith("|") and not before.startswith("|")
    return bool(FENCE.match(text) or is_table or is_item)


def shown(place: str, text: str) -> str:
    """Return the page that shows a file of the repository: a page as it is, anything else in a fence."""
    return f"# {TITLES[place]}\n\n`{place}`:\n\n```yaml\n{text}```\n" if place in TITLES else text


def relinked(text: str, page: str) -> str:
    """Change the links of a page, by its place in the repository, into those of the site; fences stay as they are."""
    here = posixpath.dirname(_in_site(page))

    def target(found: re.Match[str]) -> str:
        if ":" in found[1]:
            return found[0]
        place = posixpath.normpath(posixpath.join(posixpath.dirname(page), found[1]))
        return f"]({posixpath.relpath(_in_site(place), here or '.')}{found[2]})"

    parts = re.split(r"(^ *```.*?^ *```$)", text, flags=re.DOTALL | re.MULTILINE)
    return "".join(part if number % 2 else LINK.sub(target, part) for number, part in enumerate(parts))


def _in_site(place: str) -> str:
    return MOVED.get(place, place.removeprefix("docs/"))
