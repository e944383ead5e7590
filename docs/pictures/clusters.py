"""Draws clusters.svg, the picture of the README: an upper cluster, its virtual nodes, and the clusters behind them.

.venv/bin/python -m docs.pictures.clusters
"""

import sys
from html import escape
from pathlib import Path

from docs.pictures.drawing import MONO, SANS, document

PICTURE = Path(__file__).with_suffix(".svg")
WIDTH, HEIGHT = 880, 470
LOWERS = {"lower-a": ("a data centre", 3, 3), "lower-b": ("a cloud", 2, 2), "lower-c": ("an edge site", 1, 1)}
"""The lower clusters: where each is, how many real nodes it has, and how many pods of the upper cluster."""
MARGIN, GAP, POD = 24, 16, 14
LEFT, RIGHT = MARGIN + 196, WIDTH - MARGIN - GAP
"""Where the columns of the lower clusters begin and end; left of them are the people and the topology."""
COLUMN = (RIGHT - LEFT - 2 * GAP) // 3
STYLE = f"""
text {{ font: 14px {SANS}; fill: var(--ink); }}
.page {{ fill: var(--page); stroke: var(--line); }}
.head {{ font-weight: 600; font-size: 15px; }}
.soft {{ fill: var(--soft); font-size: 13px; }}
.code {{ font: 12.5px {MONO}; white-space: pre; }}
.box {{ fill: var(--box); stroke: var(--line); }}
.tile {{ fill: var(--tile); stroke: var(--line); }}
.virtual {{ fill: var(--tile); stroke: var(--mark); stroke-width: 1.5; stroke-dasharray: 5 4; }}
.engine {{ fill: var(--tile); stroke: var(--mark); stroke-width: 1.5; }}
.pod {{ fill: var(--down); }}
.copy {{ fill: none; stroke: var(--down); stroke-width: 2; }}
.down, .up, .reads {{ fill: none; stroke-width: 2; }}
.down {{ stroke: var(--down); marker-end: url(#down); }}
.up {{ stroke: var(--up); marker-end: url(#up); }}
.reads {{ stroke: var(--mark); marker-end: url(#reads); }}
.tip-down {{ fill: var(--down); }} .tip-up {{ fill: var(--up); }} .tip-reads {{ fill: var(--mark); }}
.of-down {{ fill: var(--down); }} .of-up {{ fill: var(--up); }}
"""
TOPOLOGY = ("kind: Topology", "lowers:", "- name: lower-a", "- name: lower-b", "- name: lower-c")


def box(kind: str, x: float, y: float, width: float, height: float) -> str:
    """Return a rectangle of a class, by its upper left corner and its size."""
    return f'<rect class="{kind}" x="{x}" y="{y}" width="{width}" height="{height}" rx="6"/>'


def words(x: float, y: float, text: str, kind: str = "", anchor: str = "start") -> str:
    """Return a line of text that begins, has its middle, or ends at x."""
    return f'<text class="{kind}" x="{x}" y="{y}" text-anchor="{anchor}" xml:space="preserve">{escape(text)}</text>'


def pods(kind: str, middle: float, y: float, count: int) -> str:
    """Return some pods in a row around its middle."""
    begin = middle - (count * (POD + 6) - 6) / 2
    squares = (
        f'<rect class="{kind}" x="{begin + place * (POD + 6):g}" y="{y}" width="{POD}" height="{POD}" rx="3"/>'
        for place in range(count)
    )
    return "".join(squares)


def arrow(kind: str, path: str) -> str:
    """Return a line with a tip at its end."""
    return f'<path class="{kind}" d="{path}"/>'


def tip(kind: str) -> str:
    """Return the tip of a kind of arrow."""
    return (
        f'<marker id="{kind}" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="7" markerHeight="7"'
        f' orient="auto"><path class="tip-{kind}" d="M0 0L10 5L0 10z"/></marker>'
    )


def upper() -> str:
    """Return the upper cluster, without its nodes."""
    return "\n".join([
        box("box", MARGIN, MARGIN, WIDTH - 2 * MARGIN, 132),
        words(MARGIN + 16, MARGIN + 26, "Upper cluster", "head"),
        words(MARGIN + 16, MARGIN + 52, "kubectl, Deployments,"),
        words(MARGIN + 16, MARGIN + 71, "Jobs: as with one cluster"),
        words(MARGIN + 16, MARGIN + 98, "its own scheduler binds", "soft"),
        words(MARGIN + 16, MARGIN + 116, "pods to virtual nodes", "soft"),
    ])  # fmt: skip


def engine(top: float) -> str:
    """Return the engine, with the file that it follows."""
    sheet = top - 34
    lines = [words(MARGIN + 14, sheet + 24 + 17 * place, text, "code") for place, text in enumerate(TOPOLOGY)]
    return "\n".join([
        words(MARGIN, sheet - 8, "topology.yaml, in Git", "head"),
        box("tile", MARGIN, sheet, 158, 106),
        *lines,
        box("engine", LEFT, top, RIGHT - LEFT, 38),
        words((LEFT + RIGHT) / 2, top + 24, "tensile: one process, or replicas", "head", "middle"),
        arrow("reads", f"M{MARGIN + 160} {top + 19}H{LEFT - 3}"),
    ])  # fmt: skip


def column(place: int, name: str, top: float) -> str:
    """Return a lower cluster, its virtual node, and what goes between them by the engine."""
    where, nodes, count = LOWERS[name]
    left = LEFT + place * (COLUMN + GAP)
    middle = left + COLUMN / 2
    down, up, virtual_bottom = middle - 34, middle + 34, MARGIN + 116
    real = (COLUMN - 24 - (nodes - 1) * 8) / nodes
    spread = [count // nodes + (number < count % nodes) for number in range(nodes)]
    return "\n".join([
        box("virtual", left, MARGIN + 16, COLUMN, 100),
        words(middle, MARGIN + 40, f"node {name}", "head", "middle"),
        words(middle, MARGIN + 60, "virtual node", "soft", "middle"),
        pods("copy", middle, MARGIN + 80, count),
        *(arrow("down", f"M{down} {begin}V{end}") for begin, end in ((virtual_bottom, 225), (269, top - 3))),
        *(arrow("up", f"M{up} {begin}V{end}") for begin, end in ((top, 271), (227, virtual_bottom + 3))),
        box("box", left, top, COLUMN, 122),
        words(middle, top + 26, name, "head", "middle"),
        words(middle, top + 45, where, "soft", "middle"),
        *(
            box("tile", left + 12 + number * (real + 8), top + 60, real, 50)
            + pods("pod", left + 12 + number * (real + 8) + real / 2, top + 72, spread[number])
            + words(left + 12 + number * (real + 8) + real / 2, top + 103, "node", "soft", "middle")
            for number in range(nodes)
        ),
    ])  # fmt: skip


def legend(top: float) -> str:
    """Return what the arrows mean."""
    return "\n".join([
        words(MARGIN, top + 26, "Down", "head of-down"),
        words(MARGIN, top + 46, "pods, with ConfigMaps,"),
        words(MARGIN, top + 64, "Secrets, claims, Services"),
        words(MARGIN, top + 92, "Up", "head of-up"),
        words(MARGIN, top + 112, "status, logs, exec, events,"),
        words(MARGIN, top + 130, "metrics, capacity"),
    ])  # fmt: skip


def drawn() -> str:
    """Return the picture."""
    top = 324.0
    return document(
        WIDTH,
        HEIGHT,
        "How tensile joins clusters",
        "An upper cluster has a virtual node for each of three lower clusters. The engine follows topology.yaml. It "
        "creates the pods of a virtual node in the lower cluster behind it, with what they need, and brings their "
        "status and logs back.",
        style=STYLE,
        body="\n".join([
            f"<defs>{tip('down')}{tip('up')}{tip('reads')}</defs>",
            upper(),
            engine(228),
            *(column(place, name, top) for place, name in enumerate(LOWERS)),
            legend(top),
        ]),
    )  # fmt: skip


def main() -> int:
    """Draw the picture."""
    PICTURE.write_text(drawn())
    return 0


if __name__ == "__main__":
    sys.exit(main())
