"""Draws demo.svg: twenty seconds of a recorded run of `tensile demo`, as an animation.

    .venv/bin/python -m docs.pictures.demo

The recording (demo.cast, by `docs/pictures/record.py`) is of a whole run, and too long and too fast to be read. So the
picture shows SHOWN, in order, with what each command really printed; it leaves the rest out, and the time between two
commands is for reading. The title bar says so.
"""

import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from html import escape
from itertools import accumulate
from pathlib import Path

import orjson

from docs.pictures.drawing import MONO, document

CAST = Path(__file__).with_name("demo.cast")
PICTURE = CAST.with_suffix(".svg")
SHOWN = (
    "kubectl get nodes -L clusterID",
    "kubectl apply -f workload.yaml",
    "kubectl -n shop logs -l app=web --prefix",
    "grep -A 4 'name: lower-b' edited.yaml",
    "tensile plan -f edited.yaml",
    "cp edited.yaml topology.yaml",
    "kubectl get nodes -L clusterID,zone",
)
"""The commands of the tour that the picture shows."""
LENGTH = 20.0
"""Seconds of the animation."""
NAME = f"tensile demo: a recorded run, shortened to {LENGTH:.0f} seconds"
"""What the title bar says."""
ROWS = 22
"""The rows of text that are seen at once."""
FONT, ROW, MARGIN, BAR = 13, 19, 16, 36
"""Pixels: the size of the font, the height of a row, the space around the text, the height of the title bar."""
ADVANCE = 0.602
"""The width of a character of common fixed-width fonts, as a part of their size."""
ANSWER, PER_BLOCK, PER_ROW, LAST = 0.4, 0.7, 0.15, 2.0
"""Parts of the time: until a command's output comes; for reading a block, and each of its rows; after the last one."""
STYLES = {"": "", "0": "", "1": "b", "2": "d", "31": "r", "32": "g", "33": "y", "36": "c"}
"""The classes of the text attributes (SGR) that the demo uses."""
_TOKEN = re.compile(r"\x1b\[([0-9]*)m|(\n)|([^\x1b\n]+)")
TITLE, PROMPT = ("b", "# "), ("c", "$ ")
"""How the rows of a scene's title and of a command begin: in which style, and with what."""

Spans = list[tuple[str, str]]
"""A row: its parts, each a class and a text."""


@dataclass
class Block:
    """A command with its output, and the title of its scene if it is the scene's first.

    Attributes:
        command: the row of the prompt.
        title: the row before it, or None.
        output: the rows after it.
    """

    command: Spans
    title: Spans | None = None
    output: list[Spans] = field(default_factory=list)


@dataclass(frozen=True)
class Step:
    """Rows that appear together.

    Attributes:
        at: seconds from the beginning.
        rows: the rows.
        seen: how many rows there are with them.
    """

    at: float
    rows: list[Spans]
    seen: int


def text_of(row: Spans) -> str:
    """Return a row without its styles."""
    return "".join(text for _, text in row)


def rows(cast: bytes) -> list[Spans]:
    """Return the rows that a recording wrote.

    Raises:
        ValueError: it has something other than text, ends of lines and the attributes in STYLES.
    """
    _, *events = map(orjson.loads, cast.splitlines())
    written = "".join(text for _, kind, text in events if kind == "o").replace("\r", "")
    found: list[Spans] = [[]]
    style, place = "", 0
    while place < len(written):
        token = _TOKEN.match(written, place)
        if token is None or (token[1] or "") not in STYLES:
            raise ValueError(f"the recording has {written[place : place + 8]!r}, which this program cannot draw")
        place = token.end()
        if token[2]:
            found.append([])
        elif token[3]:
            found[-1].append((style, token[3]))
        else:
            style = STYLES[token[1]]
    return found


def blocks(found: list[Spans]) -> Iterator[Block]:
    """Yield the commands of a recording's rows; words between a title and its first command are left out."""
    title: Spans | None = None
    block: Block | None = None
    for row in found:
        style, text = row[0] if row else ("", "")
        if (style, text[:2]) in (TITLE, PROMPT):
            if block:
                yield block
            block = Block(row, title) if style == PROMPT[0] else None
            title = None if block else row
        elif block:
            block.output.append(row)
    if block:
        yield block


def shown(found: list[Spans]) -> list[Block]:
    """Return the blocks of SHOWN, in order, each with the title of its scene where a scene begins.

    Raises:
        ValueError: the recording does not have one of them.
    """
    chosen: list[Block] = []
    wanted = iter(SHOWN)
    command, title = next(wanted), None
    for block in blocks(found):
        title = block.title or title
        if text_of(block.command) == PROMPT[1] + command:
            chosen.append(Block(block.command, title, _trimmed(block.output)))
            command, title = next(wanted, ""), None
    if command:
        raise ValueError(f"the recording does not have `{command}` where SHOWN has it: record the demo again")
    return chosen


def _trimmed(output: list[Spans]) -> list[Spans]:
    """Leave out empty rows at the end."""
    while output and not text_of(output[-1]):
        output = output[:-1]
    return output


def steps(chosen: list[Block]) -> list[Step]:
    """Return when which rows appear, so that all of them take LENGTH."""
    parts: list[tuple[float, list[Spans]]] = []
    for block in chosen:
        before = [[], block.title] if block.title else [[]]
        parts.append((ANSWER, [*before, block.command] if parts else [*before[1:], block.command]))
        parts.append((PER_BLOCK + PER_ROW * len(block.output), block.output))
    parts[-1] = (parts[-1][0] + LAST, parts[-1][1])
    scale = LENGTH / sum(duration for duration, _ in parts)
    begins = accumulate((duration * scale for duration, _ in parts), initial=0.0)
    seen = accumulate(len(rows) for _, rows in parts)
    return [Step(round(at, 2), rows, count) for at, (_, rows), count in zip(begins, parts, seen, strict=False)]


def drawn(cast: bytes) -> str:
    """Return the picture of a recording."""
    played = steps(shown(rows(cast)))
    columns = max(len(text_of(row)) for step in played for row in step.rows)
    width = round(columns * FONT * ADVANCE) + 2 * MARGIN
    height = BAR + ROWS * ROW + MARGIN
    body = "\n".join(_group(number, step) for number, step in enumerate(played))
    return document(
        width,
        height,
        "A run of tensile demo",
        "A terminal. " + " ".join(f"{command}." for command in SHOWN),
        style=_style(played),
        body=f'<path class="bar" d="M0.5 {BAR}h{width - 1}"/>\n'
        f'<text class="name" x="{MARGIN}" y="23">{NAME}</text>\n'
        f'<svg y="{BAR + 6}" width="{width}" height="{ROWS * ROW}"><g class="roll">\n{body}\n</g></svg>',
    )


def _group(number: int, step: Step) -> str:
    """Return the rows of a step as elements."""
    first = step.seen - len(step.rows)
    texts = [
        f'<text x="{MARGIN}" y="{(first + place) * ROW + 14}" xml:space="preserve">{_parts(row)}</text>'
        for place, row in enumerate(step.rows)
        if row
    ]
    return "\n".join([f'<g class="s{number}">', *texts, "</g>"])


def _parts(row: Spans) -> str:
    return "".join(f'<tspan class="{style}">{escape(text)}</tspan>' if style else escape(text) for style, text in row)


def _style(played: list[Step]) -> str:
    """Return the CSS: each step appears at its time, and the text scrolls to its last rows; then it starts again.

    Without animations, for who has turned them off, the end is seen.
    """
    rolls = [(step.at, max(0, step.seen - ROWS) * ROW) for step in played]
    frames = " ".join(f"{_percent(at)} {{ transform: translateY(-{up}px); }}" for at, up in rolls)
    appear = "\n".join(
        f"@keyframes s{number} {{ 0% {{ opacity: 0; }} {_percent(step.at)} {{ opacity: 1; }} }}\n"
        f".s{number} {{ animation: s{number} {LENGTH:.0f}s step-end infinite; }}"
        for number, step in enumerate(played)
        if step.at
    )
    return f"""
text {{ font: {FONT}px {MONO}; fill: var(--ink); white-space: pre; }}
.page {{ fill: var(--box); stroke: var(--line); }}
.bar {{ stroke: var(--line); }}
.name {{ fill: var(--soft); }}
.b {{ font-weight: bold; }} .d {{ fill: var(--soft); }}
.c {{ fill: var(--down); }} .g {{ fill: var(--up); }} .y {{ fill: var(--mark); }} .r {{ fill: var(--mark); }}
.roll {{ transform: translateY(-{rolls[-1][1]}px); animation: roll {LENGTH:.0f}s step-end infinite; }}
@keyframes roll {{ {frames} }}
{appear}
@media (prefers-reduced-motion: reduce) {{ * {{ animation: none !important; }} }}
"""


def _percent(at: float) -> str:
    return f"{at / LENGTH * 100:.2f}%"


def main() -> int:
    """Draw the picture."""
    PICTURE.write_text(drawn(CAST.read_bytes()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
