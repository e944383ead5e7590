"""The HTML that all pages of the status page consist of: the frame, links, tables and bars.

Text of clusters becomes HTML in one place, `text`: escaped, shortened, without control characters. The
Content-Security-Policy allows no other style and script than these two, and no connection to another host, whatever a
name contains. It also forbids style attributes, so bars are SVG, whose geometry is no style.

The script does not replace the content when a new one arrives. It changes the elements that differ, so that the
keyboard focus, a selection and the position in a scrolled table stay.
"""

import base64
import hashlib
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from html import escape
from urllib.parse import quote, urlencode

from tensile import __version__
from tensile.kubelet.node.capacity import ResourceShare
from tensile.resources import is_binary, readable, render
from tensile.text import clean

MAX_TEXT_LENGTH = 300
"""Maximum characters of a text of a cluster on a page."""
_MAX_UNBROKEN = 40
"""Maximum characters of a cell that is not broken within a word."""
_TWO_DECIMALS_BELOW = 10_000
"""Milli-units below which an amount has two decimals."""
_BAR_PARTS = ("ours", "others", "reserved")
LEGEND = {"ours": "our pods", "others": "other pods", "reserved": "held back", "free": "free"}

_STYLE = """
:root{color-scheme:light dark;--line:#8886;--soft:#8881;--bad:#b3261e;--good:#1b6e3c;--link:#1a56c4;--quiet:#555
;--back:#fff;--ink:#1b1b1b;--ours:#2f6fdb;--others:#8a63c9;--reserved:#b7791f;--free:#dfe3e8;--edge:#7a828c}
@media(prefers-color-scheme:dark){:root{--bad:#ff8a80;--good:#7ddc9f;--link:#8ab4ff;--quiet:#b3b3b3
;--back:#121417;--ink:#e8e8e8;--ours:#5b93f5;--others:#b794f6;--reserved:#e0a84a;--free:#33383f;--edge:#8b939d}}
html{background:var(--back);color:var(--ink)}
*{box-sizing:border-box}body{font:15px/1.5 system-ui,sans-serif;margin:0 auto;max-width:80rem;padding:0 1rem 2rem}
h1{font-size:1.5rem;margin:1rem 0 .2rem;overflow-wrap:anywhere}h2{font-size:1.15rem;margin:1.8rem 0 .5rem}
h3{font-size:1rem;margin:0;overflow-wrap:anywhere}
p{margin:.3rem 0}a{color:var(--link)}.bad{color:var(--bad)}.good{color:var(--good)}.soft{color:var(--quiet)}
.skip{position:absolute;left:-99rem}.skip:focus{left:1rem;top:.3rem;background:var(--back);padding:.3rem .6rem}
.top{display:flex;flex-wrap:wrap;gap:.4rem 1.2rem;align-items:center;padding:.6rem 0
;border-bottom:1px solid var(--line)}
.top form{margin-left:auto;display:flex;gap:.4rem;align-items:center}
input,button,textarea{font:inherit;color:inherit;background:var(--back);border:1px solid var(--edge);border-radius:.3rem
;padding:.25rem .5rem}button{background:var(--soft);cursor:pointer}input{min-width:0;width:14rem}
textarea{width:100%;font:13px/1.45 ui-monospace,monospace}
.cards{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(100%,18.5rem),1fr));gap:.8rem}
.cards,.legend,.links{list-style:none;padding:0;margin:0}
.legend,.links{display:flex;flex-wrap:wrap;gap:.2rem 1rem;margin:.3rem 0 .8rem}
.legend svg{width:.8rem;height:.8rem;vertical-align:-.05rem;margin-right:.35rem}
.card{border:1px solid var(--line);border-radius:.5rem;padding:.8rem}
.card header{display:flex;justify-content:space-between;gap:.5rem;flex-wrap:wrap}
.cards dl{grid-template-columns:auto 1fr auto}
dl{display:grid;grid-template-columns:auto 1fr;gap:.15rem .7rem;margin:.5rem 0 0;align-items:center}
dt,dd{margin:0;overflow-wrap:anywhere}dt{color:var(--quiet)}dd.n{text-align:right}
.bar{display:block;width:100%;min-width:3rem;height:.8rem;border:1px solid var(--edge);border-radius:.2rem}
.bar,.free{background:var(--free);fill:var(--free)}.ours{fill:var(--ours)}.others{fill:var(--others)}
.reserved{fill:var(--reserved)}
.sides{margin-top:1rem;display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,24rem),1fr));gap:.8rem}
.sides h2{margin-top:0}.sides h3{margin-top:1rem}
.wide{overflow-x:auto}table{border-collapse:collapse;width:100%}
th,td{text-align:left;vertical-align:top;padding:.25rem .8rem .25rem 0;border-bottom:1px solid var(--line)}
td{min-width:7rem}td.long{overflow-wrap:anywhere;min-width:14rem}td .bar{width:10rem
;margin-top:.3rem}footer{margin-top:2rem}
code,pre{background:var(--soft);padding:.1rem .3rem;border-radius:.2rem;overflow-wrap:anywhere;white-space:pre-wrap}
a:focus-visible,button:focus-visible,input:focus-visible,textarea:focus-visible,[tabindex]:focus-visible
{outline:2px solid var(--link);outline-offset:2px}
"""
_SCRIPT = """
const state=document.getElementById('live'),main=document.querySelector('main');let source;
function follow(old,now){
if(old.isEqualNode(now))return;
if(old.nodeName!==now.nodeName||old.id!==now.id){old.replaceWith(now);return}
if(old.nodeType!==1){old.nodeValue=now.nodeValue;return}
for(const one of [...old.attributes])if(!now.hasAttribute(one.name))old.removeAttribute(one.name);
for(const one of now.attributes)if(old.getAttribute(one.name)!==one.value)old.setAttribute(one.name,one.value);
const next=[...now.childNodes],last=[...old.childNodes];
next.forEach((one,place)=>{place<last.length?follow(last[place],one):old.append(one)});
last.slice(next.length).forEach(one=>one.remove())}
function open(){source=new EventSource('/events');
source.onopen=()=>{state.textContent='live'};
source.onerror=()=>{state.textContent='connection lost, trying again'};
source.onmessage=event=>{const now=main.cloneNode(false);now.innerHTML=JSON.parse(event.data);follow(main,now)}}
document.onvisibilitychange=()=>{source.close();if(!document.hidden)open()};
open();
"""


def _hash(text: str) -> str:
    return "'sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() + "'"


HEADERS: Mapping[str, str] = {
    "Content-Security-Policy": (
        f"default-src 'none'; style-src {_hash(_STYLE)}; script-src {_hash(_SCRIPT)}; connect-src 'self'; "
        "img-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
"""Headers of every page and of the events. With the policy "no-referrer", browsers would hide the origin of a form."""


class Markup(str):
    """Text that is HTML already."""

    __slots__ = ()


def text(value: object, max_length: int = MAX_TEXT_LENGTH) -> Markup:
    """Return a text as HTML, shortened, without control characters; HTML stays as it is."""
    if isinstance(value, Markup):
        return value
    shown = clean(str(value))
    return Markup(escape(shown if len(shown) <= max_length else shown[: max_length - 3] + "..."))


def link(label: object, *path: str, **query: object) -> Markup:
    """Return a link to a page of this server, by the segments of its path and its query, whatever these contain."""
    url = "/" + "/".join(quote(part[:MAX_TEXT_LENGTH], safe="", errors="replace") for part in path)
    parameters = {name: str(value)[:MAX_TEXT_LENGTH] for name, value in query.items() if value}
    url += f"?{urlencode(parameters, errors='replace')}" if parameters else ""
    return Markup(f'<a href="{escape(url)}">{text(label)}</a>')


def code(command: str) -> Markup:
    """Return a command."""
    return Markup(f"<code>{text(command)}</code>")


def document(title: str, main: str, *, is_live: bool = False, search_text: str = "") -> str:
    """Return a whole page; a live one updates itself. `search_text` is in the search field."""
    refresh = '<noscript><meta http-equiv="refresh" content="10"></noscript>' if is_live else ""
    live = '<p><span id="live" role="status"></span></p>' if is_live else ""
    script = f"<script>{_SCRIPT}</script>" if is_live else ""
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>{text(title)} - tensile</title><style>{_STYLE}</style>{refresh}</head>"
        '<body><a class="skip" href="#main">Skip to the content</a><header class="top"><nav aria-label="Pages">'
        f"{link('Overview', '')} &middot; {link('Check a topology', 'topology')}</nav>"
        '<form action="/search" role="search"><label for="q">Find</label>'
        f'<input id="q" name="q" type="search" maxlength="253" placeholder="pod or lower cluster" '
        f'value="{text(search_text)}"><button>Search</button></form></header><main id="main">{main}</main>'
        f'<footer class="soft">{live}<p>'
        f'tensile {text(__version__)} &middot; <a href="/status">status as JSON</a> &middot; '
        f'<a href="/metrics">metrics</a></p></footer>{script}</body></html>\n'
    )


def table(caption: str, head: tuple[str, ...], rows: Iterable[tuple[object, ...]]) -> Iterator[str]:
    """Yield a table that scrolls by itself where it is wider than the screen, with the keyboard too."""
    yield f'<div class="wide" tabindex="0" role="region" aria-label="{text(caption)}"><table><thead><tr>'
    yield "".join(f'<th scope="col">{text(cell)}</th>' for cell in head)
    yield "</tr></thead><tbody>"
    for row in rows:
        yield f"<tr>{''.join(map(_cell, row))}</tr>"
    yield "</tbody></table></div>"


def _cell(value: object) -> str:
    """Return a cell: a long text is broken anywhere, while a word such as a reason stays whole."""
    is_long = len(str(value)) > (_MAX_UNBROKEN if not isinstance(value, Markup) else MAX_TEXT_LENGTH)
    return f'<td class="long">{text(value)}</td>' if is_long else f"<td>{text(value)}</td>"


def pairs(rows: Iterable[tuple[str, object]]) -> Iterator[str]:
    """Yield a list of terms with their values; empty ones are left out."""
    yield "<dl>"
    yield from (f"<dt>{text(term)}</dt><dd>{text(value)}</dd>" for term, value in rows if value not in ("", None))
    yield "</dl>"


def legend() -> str:
    """Return what the parts of a bar mean."""
    swatch = '<svg viewBox="0 0 1 1" aria-hidden="true"><rect class="{}" width="1" height="1"/></svg>'
    items = (f"<li>{swatch.format(part)}{label}</li>" for part, label in LEGEND.items())
    return f'<ul class="legend">{"".join(items)}</ul>'


def amount(milli: int, resource: str) -> str:
    """Return an amount in milli-units so that people can compare two: bytes with a suffix, anything else without."""
    if is_binary(resource):
        return readable(render(milli, binary=True), "memory")
    return f"{milli / 1000:.{1 if milli > _TWO_DECIMALS_BELOW else 2}f}".rstrip("0").removesuffix(".")


@lru_cache(maxsize=1024)
def bar(resource: str, share: ResourceShare) -> Markup:
    """Return how a resource is used, as a bar with the same in words."""
    description = ", ".join(f"{amount(getattr(share, part), resource)} {name}" for part, name in LEGEND.items())
    label = f"{resource}: {description}, of {amount(share.total, resource)}"
    drawn, start = [], 0.0
    for part in _BAR_PARTS:
        width = min(100.0 * getattr(share, part) / share.total, 100.0 - start) if share.total else 0.0
        if width > 0:
            drawn.append(f'<rect class="{part}" x="{start:.4g}" width="{width:.4g}" height="1"/>')
        start += width
    return Markup(
        f'<svg class="bar" viewBox="0 0 100 1" preserveAspectRatio="none" role="img" aria-label="{text(label)}">'
        f"{''.join(drawn)}</svg>"
    )
