"""The fences of the documentation as data: the content of each, and the directives in comments before it.

Directives hold what a reader need not see. They are on the line before a fence, or before each other:

    <!-- not run: REASON -->        of sh: it cannot run on the sandbox
    <!-- runs on until: COMMAND --> of sh: continues in the background; the next fence waits until COMMAND succeeds
    <!-- ends with: CODE -->        of sh: with this exit code, not with 0
    <!-- given: COMMAND -->         of sh: what the reader has already; runs before it; may occur several times
    <!-- file: NAME -->             of any: is written to that file before the next fence runs
    <!-- printed -->                of any: each line was printed by the sh before it; … matches any text
    <!-- as it is: REASON -->       of yaml: neither a file, nor a topology, nor objects that can be tried
    <!-- recorded: FILE -->         of any: the same text is in that file, which tests compare; a line … skips some
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import yaml

from tensile.topology import TopologyFile

ROOT = Path(__file__).resolve().parents[2]
OF_SH = {"not run", "runs on until", "ends with", "given"}
DIRECTIVES = OF_SH | {"file", "printed", "as it is", "recorded"}
TOPIC = re.compile(r"<!-- (the engine runs) -->")
"""A page with this comment anywhere has an engine on its topology.yaml from its beginning."""

_COMMENT = re.compile(r"<!-- (?P<name>[a-z ]+?)(?:: (?P<value>.*?))? -->")


class Fence(NamedTuple):
    """A fence: its page relative to the repository, its line, its language ("" for none), its text, its directives."""

    page: str
    line: int
    language: str
    text: str
    directives: dict[str, str]

    @property
    def place(self) -> str:
        """The page and the line of the fence, for error messages."""
        return f"{self.page}:{self.line}"


def pages() -> list[str]:
    """Return every page for users, by its path in the repository."""
    found = sorted(str(path.relative_to(ROOT)) for path in (ROOT / "docs").rglob("*.md"))
    return [*found, "README.md"]


def fences(page: str, text: str) -> list[Fence]:
    """Return the fences of a page's text; raise ValueError if one has no end or an unknown directive."""
    return list(_fences(page, text.splitlines()))


def _fences(page: str, lines: list[str]) -> Iterator[Fence]:
    place = 0
    while place < len(lines):
        opening = re.match(r"( *)```(\S*)", lines[place])
        if opening is None:
            place += 1
            continue
        indent, language = opening.groups()
        closing = next((at for at in range(place + 1, len(lines)) if lines[at] == f"{indent}```"), None)
        if closing is None:
            raise ValueError(f"{page}:{place + 1}: the fence has no end")
        text = "".join(f"{line.removeprefix(indent)}\n" for line in lines[place + 1 : closing])
        directives = dict[str, str]()
        for name, value in _directives(page, lines, place):
            directives[name] = f"{value}\n{directives[name]}" if name in directives else value
        yield Fence(page, place + 1, language, text, directives)
        place = closing + 1


def _directives(page: str, lines: list[str], place: int) -> Iterator[tuple[str, str]]:
    """Yield the directives directly before a line, the last one first."""
    while place and (found := _COMMENT.fullmatch(lines[place - 1].strip())):
        if found["name"] not in DIRECTIVES:
            raise ValueError(f"{page}:{place}: {found['name']!r} is no comment that fences have")
        yield found["name"], found["value"] or ""
        place -= 1


def anchors(text: str) -> set[str]:
    """Return the anchors of a page's headings, as GitHub makes them."""
    inside = re.sub(r"^ *```.*?^ *```$", "", text, flags=re.DOTALL | re.MULTILINE)
    titles = re.findall(r"^#+ +(.*?) *$", inside, re.MULTILINE)
    return {slug(title) for title in titles}


def slug(title: str) -> str:
    """Make a heading's anchor."""
    return re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")


def links(text: str) -> list[str]:
    """Return the targets of a page's links that lead into the repository."""
    inside = re.sub(r"^ *```.*?^ *```$", "", text, flags=re.DOTALL | re.MULTILINE)
    return [link for link in re.findall(r"\]\(([^)\s]+)\)", inside) if "://" not in link]


def inline(text: str) -> list[str]:
    """Return the texts in single backticks in a page's prose."""
    inside = re.sub(r"^ *```.*?^ *```$", "", text, flags=re.DOTALL | re.MULTILINE)
    return re.findall(r"(?<!`)`([^`\n]+(?:\n[^`\n]+)?)`(?!`)", inside)


def calls(text: str) -> list[str]:
    """Return the calls of the program in a shell text or in prose, each from its name to the end of the command."""
    whole = text.replace("\\\n", " ")
    found = re.findall(r"(?:^|[|;&(`]|\.venv/bin/) *tensile ([^`\n|;&#>)]*)", whole, re.MULTILINE)
    return [" ".join(one.split()) for one in found]


def is_object(fence: Fence) -> bool:
    """Report whether a fence shows Kubernetes objects."""
    return fence.language == "yaml" and "as it is" not in fence.directives and not is_topology(fence)


def is_topology(fence: Fence) -> bool:
    """Report whether a fence shows a topology or a part of one."""
    found = list(yaml.safe_load_all(fence.text)) if fence.language == "yaml" else []
    if len(found) != 1 or not isinstance(found[0], dict):
        return False
    keys = {str(field.alias) for field in TopologyFile.model_fields.values()}
    return found[0].get("kind") == "Topology" or ("kind" not in found[0] and set(found[0]) <= keys)
