"""YAML text to a tree of nodes that know their place, within limits and with every flaw named.

A configuration comes from people and from other programs, so nothing in it is trusted: events are counted before
anything is built, because a few hundred bytes of aliases stand for megabytes and a few thousand brackets end the
process in the usual loaders. What YAML lets pass and people did not mean (a key twice, a second document, merge keys,
tags) is a flaw too.

What is wrong with a YAML text, in words that help to mend it.

The reader's own words ("did not find expected key") name what its grammar lacks; people look for the bracket, the quote
or the indentation that they got wrong, and for the line where it began.

What a YAML text says, with the place of everything in it: nodes, scalars of YAML 1.2, paths.

The standard loaders forget lines and read `no` as False and `012` as 10, which is how mistakes in a configuration pass
unseen; here a scalar is what YAML 1.2's core schema says, and every error can point at its cause.

YAML as people read it and every program understands it: nothing stands for something elsewhere, and text stays text.

What is written is read again by kubectl and PyYAML, which follow YAML 1.1 each in its own way, and by us (1.2). A text
that any of them would take for something else (`y`, `no`, `1e3`, `0x1F`, `12:30`, `2026-1-2`) stands in quotes.
"""

import json
import re
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import yaml


class Advice(NamedTuple):
    """What to tell about a syntax error.

    `opened` says that the mistake is where the reader's context began (an open bracket), not where it noticed.
    """

    words: str
    opened: bool = False


_UNCLOSED = Advice("a bracket that is not closed, or a comma missing in it", opened=True)
_QUOTES = Advice("quotes that are not closed", opened=True)
_TABLE = (
    (
        "mapping values are not allowed",
        Advice(
            'a ":" where no key can be; look for wrong indentation here or a missing ":" in the line '
            "before, or quote the text"
        ),
    ),
    ("could not find expected ':'", Advice('a key without its ":"; write KEY: VALUE', opened=True)),
    (
        "did not find expected key",
        Advice("indentation that fits no line above, or a bracket or quote too many"),
    ),
    (
        "did not find expected '-' indicator",
        Advice('a list item must start with "- " at the indentation of the others'),
    ),
    (
        "block sequence entries are not allowed",
        Advice('a "- " where no list can be; put it on a line of its own'),
    ),
    ("did not find expected ',' or", _UNCLOSED),
    ("expected ',' or", _UNCLOSED),
    ("found unexpected end of stream", _QUOTES),
    ("found unexpected document", _QUOTES),
    (
        "found unknown escape character",
        Advice("an escape that double quotes do not have; use single quotes, or two backslashes"),
    ),
    (
        "found character",
        Advice("a value cannot start with this character; put the text in quotes"),
    ),
    (
        "did not find expected alphabetic",
        Advice("an anchor or alias without a name; put a value that starts with & or * in quotes"),
    ),
    (
        "did not find expected node content",
        Advice("a value is missing here, or a bracket is closed that was not opened"),
    ),
    (
        "did not find expected <document start>",
        Advice("something follows the document; look at the indentation of this line"),
    ),
)


def advise(problem: str) -> Advice:
    """Find the words for a problem that the reader reports; its own, without what it quotes, where there are none."""
    for start, advice in _TABLE:
        if problem.startswith(start):
            return advice
    return Advice(problem.partition("'")[0].strip())


Path = tuple[str | int, ...]
"""Where in a document: keys of mappings and places in lists, from the top."""

_WORDS: dict[str, bool | None] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL"), None),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}
_INTEGER = re.compile(r"[-+]?[0-9]+")
_OTHER_BASE = re.compile(r"0o[0-7]+|0x[0-9a-fA-F]+")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_NOT_FINITE = re.compile(r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")
_NUMBER_START = frozenset("+-.0123456789")
_MOST_DIGITS = 40
_BARE_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")
_LONGEST_KEY = 63


class Position(NamedTuple):
    """A place in a text: line and column, both counted from 1, columns in characters."""

    line: int
    column: int


@dataclass(slots=True)
class Node:
    """One value of a document and where it starts.

    `value` is a scalar (str, int, float, bool, None), a list of nodes, or a dict of nodes by key; `keys` says where
    each key of a dict stands. `size` and `height` count the nodes in it and its levels, aliases followed.
    """

    start: Position
    value: Any
    keys: dict[str, Position] = field(default_factory=dict)
    size: int = 1
    height: int = 1

    def grow(self, content: "Node") -> None:
        """Count a node that is now inside this one."""
        self.size += content.size
        self.height = max(self.height, content.height + 1)


def scalar(text: str) -> Any:
    """Read a plain (unquoted) scalar by the core schema of YAML 1.2: null, bool, int, float or text.

    An integer of more than 40 digits is given as a float: nothing that it could be meant for is that large.
    """
    if text in _WORDS:
        return _WORDS[text]
    if text[0] not in _NUMBER_START:
        return text
    if _INTEGER.fullmatch(text) and len(text) <= _MOST_DIGITS:
        return int(text)
    if _OTHER_BASE.fullmatch(text) and len(text) <= _MOST_DIGITS:
        return int(text, 0)
    if _FLOAT.fullmatch(text):
        return float(text)
    return float(text.replace(".", "")) if _NOT_FINITE.fullmatch(text) else text


def plain(node: Node) -> Any:
    """Return the data alone: dicts, tuples for lists, and scalars."""
    if isinstance(node.value, dict):
        return {key: plain(content) for key, content in node.value.items()}
    if isinstance(node.value, list):
        return tuple(plain(content) for content in node.value)
    return node.value


def _inside(node: Node, step: str | int) -> tuple[Position, Node] | None:
    """Go one step down: where it starts, which is a mapping's key or a list's item, and what is there."""
    if isinstance(node.value, dict) and isinstance(step, str) and step in node.value:
        return node.keys[step], node.value[step]
    if isinstance(node.value, list) and isinstance(step, int) and step < len(node.value):
        return node.value[step].start, node.value[step]
    return None


def locate(root: Node, path: Path, *, key: bool = False) -> Position:
    """Find where a path is written, or the nearest thing around it that is.

    A value that stands on its key's line is pointed at itself, any other by its key; `key` asks for the key always.
    """
    here, node = root.start, root
    for step in path:
        found = _inside(node, step)
        if found is None:
            return here
        here, node = found
    return node.start if not key and node.start.line == here.line else here


def find(root: Node, path: Path) -> Node | None:
    """Return the node at a path, None when nothing is written there."""
    node = root
    for step in path:
        found = _inside(node, step)
        if found is None:
            return None
        node = found[1]
    return node


def show_key(key: str) -> str:
    """Write a key for people: bare where that is clear, else quoted; control characters escaped, and not too long."""
    short = key if len(key) <= _LONGEST_KEY else key[: _LONGEST_KEY - 3] + "..."
    return short if _BARE_KEY.fullmatch(short) else json.dumps(short)


def show_path(path: Path) -> str:
    """Write a path for people, such as lowers[0].capacity.limit["nvidia.com/gpu"]; "(file)" for the whole."""
    parts: list[str] = []
    for step in path:
        shown = f"[{step}]" if isinstance(step, int) else show_key(step)
        parts.append(shown if isinstance(step, int) else f"[{shown}]" if shown[0] == '"' else "." + shown)
    return "".join(parts).removeprefix(".") or "(file)"


MAX_BYTES = 1 << 20
"""Size of a text: far above any real topology, and what a ConfigMap can hold at most."""

MAX_DEPTH = 32
"""Levels of nesting, aliases followed; the topology needs 7."""

MAX_NODES = 10_000
"""Keys and values in a document, the values under aliases counted each time: 1,000 lowers with what each must have."""

MAX_ENTRIES = 1_000
"""Entries of one mapping or list: more lower clusters than anybody joins, each with watches of its own."""

MAX_ALIASES = 100
"""Uses of anchors in a document."""

_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_FORBIDDEN = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]|[\ud800-\udfff]|\u2028|\u2029|\ufeff|\ufffe|\uffff")

_PAIR = re.compile(r"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}")
_ESCAPE = re.compile(rf"{_PAIR.pattern}|\\.")


class Flaw(NamedTuple):
    """Something wrong at a place of a text: where, under which keys, and in words what and what would be right."""

    position: Position
    path: Path
    text: str


class Document(NamedTuple):
    """What a text says and what is wrong with it; `root` is None when it cannot be read to its end."""

    root: Node | None
    flaws: tuple[Flaw, ...]


class _Stop(Exception):
    """Reading cannot go on past this flaw."""

    def __init__(self, position: Position, text: str) -> None:
        super().__init__(text)
        self.position = position
        self.text = text


_TOP = Position(1, 1)


@dataclass(slots=True)
class _Frame:
    """A mapping or list that is being read; `key` is the one whose value comes next, `drop` says to forget it."""

    node: Node
    anchor: str | None
    is_mapping: bool
    key: str | None = None
    key_start: Position = _TOP
    has_key: bool = False
    entries: int = 0
    drop: bool = False

    def step(self) -> Path:
        """Return the part of the path that this frame adds."""
        if not self.is_mapping:
            return (len(self.node.value),)
        return (self.key,) if self.key is not None else ()


def _at(mark: Any) -> Position:
    """Turn the reader's mark, which counts from 0, into a position."""
    return Position(mark.line + 1, mark.column + 1) if mark else _TOP


@dataclass(slots=True)
class _Composer:
    """Builds the tree from the events of one text, and collects its flaws."""

    what: str
    frames: list[_Frame] = field(default_factory=list)
    anchors: dict[str, Node | None] = field(default_factory=dict)
    flaws: list[Flaw] = field(default_factory=list)
    root: Node | None = None
    nodes: int = 0
    aliases: int = 0
    documents: int = 0

    def path(self, end: Position | None = None) -> Path:
        """Return the keys and places that are open, down to the value that starts at `end` if one does."""
        steps: list[str | int] = []
        for frame in self.frames:
            if frame.node.start == end:
                break
            steps.extend(frame.step())
        return tuple(steps)

    def flaw(self, position: Position, text: str) -> None:
        """Note something wrong that does not keep the rest from being read."""
        self.flaws.append(Flaw(position, self.path(), text))

    def feed(self, event: yaml.Event) -> None:
        """Take the next event."""
        start = _at(event.start_mark)
        if isinstance(event, yaml.ScalarEvent):  # most are
            self.scalar(event, start)
        elif isinstance(event, yaml.CollectionStartEvent):
            self.open(event, start)
        elif isinstance(event, yaml.CollectionEndEvent):
            self.close()
        elif isinstance(event, yaml.AliasEvent):
            self.alias(str(event.anchor), start)
        elif isinstance(event, yaml.DocumentStartEvent):
            self.open_document(event, start)

    def open_document(self, event: yaml.DocumentStartEvent, start: Position) -> None:
        """Begin the document, of which there may be one."""
        self.documents += 1
        if self.documents > 1:
            raise _Stop(start, f"a second document; put one {self.what} in one file")
        if event.version and tuple(event.version) != (1, 2):
            self.flaw(start, "an old version of YAML; remove the %YAML line, or write %YAML 1.2")

    def count(self, position: Position, size: int, height: int) -> None:
        """Count values and levels before they are built."""
        self.nodes += size
        if self.nodes > MAX_NODES:
            raise _Stop(position, f"more than {MAX_NODES} values (aliases followed); make it smaller")
        if len(self.frames) + height > MAX_DEPTH:
            raise _Stop(position, f"nested deeper than {MAX_DEPTH} levels; make it flatter")

    def refuse_tag(self, tag: str | None, start: Position) -> None:
        """Refuse an explicit tag: types follow from how a value is written."""
        if tag not in (None, "!"):
            self.flaw(start, "a tag; remove it, and quote a value that is meant as text")

    def scalar(self, event: yaml.ScalarEvent, start: Position) -> None:
        """Take a scalar, as a key or as a value."""
        self.count(start, 1, 1)
        self.refuse_tag(event.tag, start)
        is_plain = event.style is None or event.style == ""
        value = scalar(event.value) if is_plain and event.tag is None else event.value
        frame = self.frames[-1] if self.frames else None
        if frame and frame.is_mapping and not frame.has_key:
            self.set_anchor(event.anchor, Node(start, value))
            self.key(frame, event.value, start, is_text=isinstance(value, str), is_plain=is_plain)
        else:
            self.add(Node(start, value), event.anchor, start)

    def key(self, frame: _Frame, text: str, start: Position, *, is_text: bool, is_plain: bool) -> None:
        """Take the key of a mapping."""
        first = frame.node.keys.get(text)
        frame.key, frame.key_start, frame.has_key = text, start, True
        frame.drop = bool(first) or (text == "<<" and is_plain)
        if first:
            self.flaw(start, f"the same key twice (first in line {first.line}); remove one of them")
        elif frame.drop:
            instead = ", or use lowerDefaults" if self.what == "topology" else ""
            self.flaw(start, f"a merge key; write the fields out{instead}")
        elif not is_text:
            self.flaw(start, "a key that is not text; put it in quotes")

    def set_anchor(self, anchor: str | None, node: Node | None) -> None:
        """Remember a node by its anchor; None while it is still being read."""
        if anchor:
            self.anchors[anchor] = node

    def open(self, event: yaml.CollectionStartEvent, start: Position) -> None:
        """Begin a mapping or a list."""
        self.count(start, 1, 1)
        self.refuse_tag(event.tag, start)
        self.set_anchor(event.anchor, None)
        is_mapping = isinstance(event, yaml.MappingStartEvent)
        node = Node(start, {}, {}) if is_mapping else Node(start, [])
        self.frames.append(_Frame(node, event.anchor, is_mapping))

    def close(self) -> None:
        """End a mapping or list and hand it to what it stands in."""
        frame = self.frames.pop()
        self.add(frame.node, frame.anchor, frame.node.start)

    def alias(self, name: str, start: Position) -> None:
        """Take an alias: the anchored node itself, counted as if written out."""
        node = self.anchors.get(name)
        if node is None:
            why = "stands inside its own anchor" if name in self.anchors else "has no anchor before it"
            named = f"the alias *{name[:40]}" if self.what == "topology" else "an alias that"
            raise _Stop(start, f"{named} {why}; write the value out")
        self.aliases += 1
        if self.aliases > MAX_ALIASES:
            raise _Stop(start, f"more than {MAX_ALIASES} aliases; write the values out")
        self.count(start, node.size, node.height)
        self.add(node, None, start)

    def add(self, node: Node, anchor: str | None, start: Position) -> None:
        """Put a value where it belongs: at the top, in a list, or under the key before it."""
        self.set_anchor(anchor, node)
        if not self.frames:
            self.root = node
            return
        frame = self.frames[-1]
        if not frame.is_mapping:
            frame.node.value.append(node)
        elif not frame.has_key:
            self.flaw(start, "a key that is not text (a template must be rendered before)")
            frame.has_key, frame.drop = True, True
            return
        elif not frame.drop and frame.key is not None:
            frame.node.value[frame.key] = node
            frame.node.keys[frame.key] = frame.key_start
        frame.node.grow(node)
        frame.entries += 1
        if frame.entries > MAX_ENTRIES:
            raise _Stop(start, f"more than {MAX_ENTRIES} entries; look whether it is the right file")
        frame.key, frame.has_key, frame.drop = None, False, False


def _syntax(text: str, error: Exception) -> _Stop:
    """Turn the reader's error into ours, at the place where a person would mend it."""
    problem = str(getattr(error, "problem", None) or error)
    advice = advise(problem)
    noticed = _within(text, _at(getattr(error, "problem_mark", None)))
    if _text_at(text, noticed) == "\t":
        return _Stop(noticed, "not valid YAML: a tab where indentation is meant; indent with spaces")
    opened = getattr(error, "context_mark", None)
    if not advice.opened or opened is None:
        return _Stop(noticed, f"not valid YAML: {advice.words}")
    return _Stop(_at(opened), f"not valid YAML: {advice.words} (noticed in line {noticed.line})")


def _within(text: str, position: Position) -> Position:
    """Bring a position behind the end of the text back to its last character."""
    lines = text.splitlines() or [""]
    return position if position.line <= len(lines) else Position(len(lines), max(len(lines[-1]), 1))


def _text_at(text: str, position: Position) -> str:
    """Return the character at a position, "" where there is none."""
    lines = text.splitlines()
    return lines[position.line - 1][position.column - 1 : position.column] if lines else ""


def _forbidden(text: str) -> tuple[Flaw, ...]:
    """Find the first character that may not stand in YAML as it is."""
    match = _FORBIDDEN.search(text)
    if match is None:
        return ()
    line = text.count("\n", 0, match.start())
    column = match.start() - text.rfind("\n", 0, match.start())
    words = (
        f"the character U+{ord(match[0]):04X} cannot stand here; remove it, or write it as an escape in double quotes"
    )
    return (Flaw(Position(line + 1, column), (), words),)


def _without_pairs(text: str) -> str:
    """Write the characters that JSON has as two escapes, which YAML does not know; a text that is no JSON stays."""
    if not _PAIR.search(text):
        return text
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return text
    return _ESCAPE.sub(lambda found: json.loads(f'"{found[0]}"') if _PAIR.fullmatch(found[0]) else found[0], text)


def _read(text: str, composer: _Composer, loader: Any) -> None:
    """Feed all events of a text; raises _Stop at the first flaw that ends the reading."""
    try:
        for event in yaml.parse(text, Loader=loader):
            composer.feed(event)
    except (yaml.YAMLError, ValueError, OverflowError) as error:  # the last two: escapes, without libyaml
        raise _syntax(text, error) from None


def compose(text: str, *, what: str = "topology", loader: Any = _LOADER) -> Document:
    """Read one document: never raises for what the text says, returns its flaws in the order of their finding.

    A byte order mark at the start is no part of the text. An empty text has a root of null. `what` the document is to
    be is said in its flaws, which quote a topology and nothing else. `loader` is PyYAML's reader, the one in C where
    there is one.
    """
    text = text.removeprefix("\ufeff")
    if len(text.encode(errors="replace")) > MAX_BYTES:
        return Document(None, (Flaw(_TOP, (), f"larger than {MAX_BYTES} bytes; make it smaller"),))
    text = _without_pairs(text)
    flaws = _forbidden(text)
    if flaws:
        return Document(None, flaws)
    composer = _Composer(what)
    try:
        _read(text, composer, loader)
    except _Stop as stop:
        last = Flaw(stop.position, composer.path(stop.position), stop.text)
        return Document(None, (*composer.flaws, last))
    return Document(composer.root or Node(_TOP, None), tuple(composer.flaws))


_WORDS_OF_1_1 = frozenset(("y", "Y", "n", "N"))
"""True and false for kubectl, though not for PyYAML, which finds the other words of YAML 1.1 itself."""
_OTHER_BASE_OF_1_1 = re.compile(r"[-+]?0([bB][01]+|[oO][0-7]+|[xX][0-9a-fA-F]+)")
_DATE = re.compile(r"[0-9]{4}-[0-9]{1,2}-[0-9]{1,2}")


class FullDumper(yaml.SafeDumper):
    """Writes in full what several places share, and text of several lines as a block."""

    def ignore_aliases(self, _data: Any) -> bool:
        """Have nothing written as an alias."""
        return True


def is_plainly_text(text: str) -> bool:
    """Report whether every reader takes a text for one where it stands without quotes, as far as PyYAML does."""
    digits = text.replace("_", "")
    return not (
        text in _WORDS_OF_1_1
        or scalar(text) != text
        or scalar(digits) != digits
        or _OTHER_BASE_OF_1_1.fullmatch(digits)
        or _DATE.match(text)
    )


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    style = "|" if "\n" in text else None if is_plainly_text(text) else '"'
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


FullDumper.add_representer(str, _text)


def document(data: Any, width: float = 120) -> str:
    """Write one value, such as an object; its keys in the order that they have."""
    return yaml.dump(data, Dumper=FullDumper, sort_keys=False, allow_unicode=True, width=width)


def flow(value: Any) -> str:
    """Write one value on one line."""
    return yaml.dump(
        [value], Dumper=FullDumper, sort_keys=False, allow_unicode=True, default_flow_style=True, width=1e9
    )[1:-2]
