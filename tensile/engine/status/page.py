"""The status page: the state of the engine as HTML, for people who look once and for those who keep it open.

The page is rendered here and not in the browser, so that it can be read without JavaScript, by screen readers, and as
one text. The script only replaces the content when the server sends another one. Text of clusters is escaped once,
where it becomes HTML. The Content-Security-Policy allows no other script, style, image or connection, whatever a name
contains.
"""

import base64
import hashlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from html import escape
from typing import NamedTuple

from tensile import __version__
from tensile.engine.status.report import AMOUNTS, LowerRow, StatusReport
from tensile.objects import timestamp
from tensile.reconcile.plan import Step
from tensile.reconcile.world import Key, Problem
from tensile.resources import parse, readable
from tensile.text import clean

_MOST = 50
"""Maximum of problems and of changes on the page; the log and `tensile plan` have all of them."""
_LONGEST = 300
_WELL = frozenset(("Ready", "Cordoned", "Drained"))
_MINUTE, _HOUR = 60, 3600
_VERBS = {"create": "created", "patch": "changed", "delete": "deleted"}

_STYLE = """
:root{color-scheme:light dark;--line:#8885;--soft:#8881;--bad:#b3261e;--good:#1b6e3c;--bar:#3b74d1}
@media(prefers-color-scheme:dark){:root{--bad:#ff8a80;--good:#7ddc9f;--bar:#82aaff}}
*{box-sizing:border-box}body{font:15px/1.5 system-ui,sans-serif;margin:0 auto;max-width:75rem;padding:1rem}
h1{font-size:1.4rem;margin:0}h2{font-size:1.1rem;margin:1.6rem 0 .5rem}h3{font-size:1rem;margin:0}
p{margin:.3rem 0}.bad{color:var(--bad)}.good{color:var(--good)}.soft{opacity:.75}
.cards{display:grid;grid-template-columns:repeat(auto-fill,minmax(17rem,1fr));gap:.8rem;list-style:none;padding:0;margin:0}
.card{border:1px solid var(--line);border-radius:.5rem;padding:.8rem}
.card header{display:flex;justify-content:space-between;gap:.5rem;flex-wrap:wrap}
dl{display:grid;grid-template-columns:auto 1fr auto;gap:.15rem .6rem;margin:.5rem 0 0;align-items:center}
dt,dd{margin:0}meter{width:100%;min-width:3rem;height:.8rem}
.wide{overflow-x:auto}table{border-collapse:collapse;width:100%}
th,td{text-align:left;vertical-align:top;padding:.25rem .8rem .25rem 0;border-bottom:1px solid var(--line)}
td{overflow-wrap:anywhere;min-width:7rem}footer{margin-top:1.5rem}
code{background:var(--soft);padding:.1rem .3rem;border-radius:.2rem;overflow-wrap:anywhere}
a:focus-visible,[tabindex]:focus-visible{outline:2px solid var(--bar);outline-offset:2px}
"""
_SCRIPT = """
const state=document.getElementById('live'),main=document.querySelector('main');
const source=new EventSource('events');
source.onopen=()=>{state.textContent='live'};
source.onerror=()=>{state.textContent='connection lost, trying again'};
source.onmessage=event=>{main.innerHTML=JSON.parse(event.data)};
"""


def _hash(text: str) -> str:
    return "'sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() + "'"


HEADERS: Mapping[str, str] = {
    "Content-Security-Policy": (
        f"default-src 'none'; style-src {_hash(_STYLE)}; script-src {_hash(_SCRIPT)}; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}
"""Headers of the page and of its events."""


class RecentChange(NamedTuple):
    """A step that was carried out: when, in which cluster, what became of which object, and why."""

    time: datetime
    cluster: str
    action: str
    kind: str
    name: str
    reason: str


class RecentChanges:
    """The last changes that a person decides about; status, heartbeats and events are none. `now` returns UTC."""

    def __init__(self, now: Callable[[], datetime]) -> None:
        self._now = now
        self._kept: deque[RecentChange] = deque(maxlen=_MOST)

    def add(self, step: Step) -> None:
        """Keep a step that was carried out."""
        ref = step.ref
        name = f"{ref.namespace}/{ref.name}" if ref.namespace else ref.name
        action = _VERBS.get(step.verb, step.verb)
        self._kept.append(RecentChange(self._now(), ref.cluster or "upper", action, ref.kind.name, name, step.reason))

    def __iter__(self) -> Iterator[RecentChange]:
        """Yield the changes, the latest first."""
        return reversed(self._kept)


class PageView(NamedTuple):
    """What the page shows. `leads` is whether this replica is the leader; the others know nothing of lower clusters."""

    report: StatusReport
    leads: bool
    problems: tuple[tuple[Key, Problem], ...] = ()
    changes: tuple[RecentChange, ...] = ()


def page(view: PageView) -> str:
    """Return the whole page."""
    title = _text(view.report.topology or "no topology")
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>{title} - tensile</title><style>{_STYLE}</style>"
        '<noscript><meta http-equiv="refresh" content="10"></noscript></head>'
        f'<body><main>{content(view)}</main><footer class="soft"><p><span id="live" role="status"></span></p><p>'
        f'tensile {_text(__version__)} - <a href="status">status as JSON</a> - <a href="metrics">metrics</a></p>'
        f"</footer><script>{_SCRIPT}</script></body></html>\n"
    )


def content(view: PageView) -> str:
    """Return what changes on the page: everything but head and foot."""
    parts = (_head(view), _attention(view), _lowers(view.report.lowers), _changes(view.changes))
    return "".join(part for block in parts for part in block)


def _head(view: PageView) -> Iterator[str]:
    report, document = view.report, view.report.verdict.document()
    role = "leader" if view.leads else "replica, waits to lead"
    yield f"<h1>{_text(report.topology or 'No topology')}</h1><p>Engine: {role}. "
    accepted, rejected = document.get("accepted"), document.get("rejected")
    yield f"Topology in force since {_text(accepted['time'])}.</p>" if accepted else "No topology is in force yet.</p>"
    if report.waits:
        yield f'<p class="bad">Not ready: {_text(report.waits)}</p>'
    if rejected:
        yield f'<p class="bad">Refused at {_text(rejected["time"])}: {_text(rejected["error"])}</p>'
    for field, words in (("restartNeeded", "Needs a restart"), ("pending", "Not active yet")):
        for one in (accepted or {}).get(field, ()):
            yield f"<p>{words}: {_text(one)}</p>"


def _attention(view: PageView) -> Iterator[str]:
    """Yield the problems, each with the command that tells more."""
    yield '<h2 id="attention">Needs attention</h2>'
    unwell = [row for row in view.report.lowers or () if row.message]
    if not unwell and not view.problems:
        yield '<p class="good">Nothing.</p>'
        return
    rows: list[tuple[str, ...]] = [(row.name, row.state, row.message, "tensile doctor") for row in unwell]
    rows += [_problem(key, problem) for key, problem in view.problems[:_MOST]]
    head = ("Where", "Reason", "Message", "Command")
    yield from _table("What is blocked, and the command that tells more", head, rows)
    if len(view.problems) > _MOST:
        yield f"<p>And {len(view.problems) - _MOST} more, in the log.</p>"


def _problem(key: Key, problem: Problem) -> tuple[str, str, str, str]:
    name = f"{key.namespace}/{key.name}" if key.namespace else key.name
    command = f"tensile explain pod {name}" if key.rule == "pod" and key.namespace else "tensile plan"
    return f"{key.lower} {name}".strip(), problem.reason, problem.message, command


def _lowers(rows: Iterable[LowerRow] | None) -> Iterator[str]:
    yield '<h2 id="lowers">Lower clusters</h2>'
    if rows is None:
        yield "<p>Not known yet.</p>"
        return
    yield '<p class="soft">Bars: what the virtual node offers, of what the Ready nodes of the lower cluster have.</p>'
    cards = [f'<li class="card">{"".join(_card(row))}</li>' for row in rows]
    yield f'<ul class="cards">{"".join(cards)}</ul>' if cards else "<p>The topology has none.</p>"


def _card(row: LowerRow) -> Iterator[str]:
    tone = "good" if row.state in _WELL else "bad"
    away = f" {_age(row.lag)}" if row.lag else ""
    yield f'<header><h3>{_text(row.name)}</h3><strong class="{tone}">{_text(row.state)}{away}</strong></header>'
    yield f'<p class="soft">Node {_text(row.node)}, {row.pods} pods</p><dl>'
    for resource in AMOUNTS:
        yield from _bar(resource, row.advertised.get(resource, ""), row.real.get(resource, ""))
    yield "</dl>"


def _bar(resource: str, advertised: str, real: str) -> Iterator[str]:
    """Yield how much of what the cluster has its node offers."""
    offered, whole = (parse(text) if text else 0 for text in (advertised, real))
    words = f"{readable(advertised, resource)} of {readable(real, resource)}"
    label = f"{resource} advertised: {words}"
    share = min(offered / whole, 1.0) if whole else 0.0
    yield f'<dt>{resource}</dt><dd><meter min="0" max="1" value="{share:.3f}" aria-label="{_text(label)}"></meter></dd>'
    yield f"<dd>{_text(words)}</dd>"


def _changes(changes: Iterable[RecentChange]) -> Iterator[str]:
    yield '<h2 id="changes">Last changes</h2>'
    rows = [(timestamp(one.time), one.cluster, f"{one.kind} {one.name} {one.action}", one.reason) for one in changes]
    if rows:
        yield from _table("The last changes of this engine", ("Time", "Cluster", "Change", "Why"), rows)
    else:
        yield "<p>None since the engine started.</p>"


def _table(caption: str, head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> Iterator[str]:
    """Yield a table that scrolls by itself where it is wider than the screen, with the keyboard too."""
    yield f'<div class="wide" tabindex="0" role="region" aria-label="{caption}"><table><thead><tr>'
    yield "".join(f'<th scope="col">{cell}</th>' for cell in head)
    yield "</tr></thead><tbody>"
    for row in rows:
        yield f"<tr>{''.join(f'<td>{_text(cell)}</td>' for cell in row)}</tr>"
    yield "</tbody></table></div>"


def _age(seconds: int) -> str:
    if seconds < _MINUTE:
        return f"{seconds}s"
    if seconds < _HOUR:
        return f"{seconds // _MINUTE}m{seconds % _MINUTE}s"
    return f"{seconds // _HOUR}h{seconds % _HOUR // _MINUTE}m"


def _text(value: object) -> str:
    """Return a text as HTML, shortened, without control characters."""
    text = clean(str(value))
    return escape(text if len(text) <= _LONGEST else text[: _LONGEST - 3] + "...")
