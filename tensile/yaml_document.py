"""Read and write YAML documents: nodes with positions, strict limits, helpful error messages, unambiguous output.

Configuration comes from people and other programs, so it is not trusted. Values are counted before they are built: a
few hundred bytes of aliases expand to megabytes, and a few thousand brackets crash the usual loaders. What YAML allows
and people do not intend (duplicate keys, a second document, merge keys, tags) is an error.

The standard loaders drop positions and read `no` as False and `012` as 10, so here scalars follow the core schema of
YAML 1.2. The parser's messages ("did not find expected key") are replaced by what people look for: the bracket, quote
or indentation that is wrong. Output is read by kubectl and PyYAML (YAML 1.1, each differently) and by us (1.2). A text
that any of them takes for another type (`y`, `no`, `1e3`, `0x1F`, `12:30`, `2026-1-2`) is quoted.
"""

import json
import re
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import yaml

Path = tuple[str | int, ...]
"""A path in a document from the root: keys of mappings and indexes of lists."""
MAX_BYTES = 1 << 20
"""The most bytes of a text: far above any real topology, and the most that a ConfigMap can hold."""

MAX_DEPTH = 32
"""The most levels of nesting, with aliases expanded. The topology needs 7."""

MAX_NODES = 10_000
"""The most keys and values in a document, with aliases expanded: 1,000 lowers with their required fields."""

MAX_ENTRIES = 1_000
"""The most entries of one mapping or list: more lower clusters, each with its own watches, than are realistic."""

MAX_ALIASES = 100
"""The most uses of anchors in a document."""

MAX_DOCUMENTS = 100
"""The most documents of a text, where it may have several."""

_CONSTANTS: dict[str, bool | None] = {
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

_START = re.compile(r"^---(?=[ \t\r\n]|\Z)", re.MULTILINE)
_CONTENT = re.compile(r"^(?!---\s*$|\.\.\.\s*$|\s*$|\s*#|%)", re.MULTILINE)
"""Where a line begins that is neither blank nor a comment, a directive or a marker."""
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_FORBIDDEN = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]|[\ud800-\udfff]|\u2028|\u2029|\ufeff|\ufffe|\uffff")

_PAIR = re.compile(r"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}")
_ESCAPE = re.compile(rf"{_PAIR.pattern}|\\.")
_BOOLEANS_OF_1_1 = frozenset(("y", "Y", "n", "N"))
"""True and false for kubectl, but not for PyYAML, which quotes the other words of YAML 1.1 itself."""
_OTHER_BASE_OF_1_1 = re.compile(r"[-+]?0([bB][01]+|[oO][0-7]+|[xX][0-9a-fA-F]+)")
_DATE = re.compile(r"[0-9]{4}-[0-9]{1,2}-[0-9]{1,2}")


class Position(NamedTuple):
    """A position in a text: line and column, both counted from 1, columns in characters."""

    line: int
    column: int


@dataclass(slots=True)
class YAMLNode:
    """One value of a document and its position.

    `value` is a scalar (str, int, float, bool, None), a list of nodes, or a dict of nodes by key. `keys` holds the
    position of each key of a dict. `size` and `height` count the nodes and levels in it, with aliases expanded.
    """

    start: Position
    value: Any
    keys: dict[str, Position] = field(default_factory=dict)
    size: int = 1
    height: int = 1

    def grow(self, content: "YAMLNode") -> None:
        """Count a node that was added inside this one."""
        self.size += content.size
        self.height = max(self.height, content.height + 1)


class Flaw(NamedTuple):
    """An error at a position: where, at which path, and a message with what is wrong and what would be right."""

    position: Position
    path: Path
    text: str


class YAMLDocument(NamedTuple):
    """A parsed text and its errors. `root` is None when it could not be read to its end."""

    root: YAMLNode | None
    flaws: tuple[Flaw, ...]


def scalar(text: str) -> Any:
    """Parse a plain (unquoted) scalar by the core schema of YAML 1.2: null, bool, int, float or text.

    An integer of more than 40 digits becomes a float: no field takes a number that large.
    """
    if text in _CONSTANTS:
        return _CONSTANTS[text]
    if text[0] not in _NUMBER_START:
        return text
    if _INTEGER.fullmatch(text) and len(text) <= _MOST_DIGITS:
        return int(text)
    if _OTHER_BASE.fullmatch(text) and len(text) <= _MOST_DIGITS:
        return int(text, 0)
    if _FLOAT.fullmatch(text):
        return float(text)
    return float(text.replace(".", "")) if _NOT_FINITE.fullmatch(text) else text


def plain(node: YAMLNode) -> Any:
    """Return the data without positions: dicts, tuples for lists, and scalars."""
    if isinstance(node.value, dict):
        return {key: plain(content) for key, content in node.value.items()}
    if isinstance(node.value, list):
        return tuple(plain(content) for content in node.value)
    return node.value


def _inside(node: YAMLNode, step: str | int) -> tuple[Position, YAMLNode] | None:
    """Return the position and node one step down (the position of a mapping's key or of a list item), None for none."""
    if isinstance(node.value, dict) and isinstance(step, str) and step in node.value:
        return node.keys[step], node.value[step]
    if isinstance(node.value, list) and isinstance(step, int) and step < len(node.value):
        return node.value[step].start, node.value[step]
    return None


def locate(root: YAMLNode, path: Path, *, key: bool = False) -> Position:
    """Return the position of a path, or of its nearest existing parent.

    A value on the same line as its key is located itself, any other value by its key. `key` always locates the key.
    """
    position, node = root.start, root
    for step in path:
        found = _inside(node, step)
        if found is None:
            return position
        position, node = found
    return node.start if not key and node.start.line == position.line else position


def find(root: YAMLNode, path: Path) -> YAMLNode | None:
    """Return the node at a path, None when the document has none."""
    node = root
    for step in path:
        found = _inside(node, step)
        if found is None:
            return None
        node = found[1]
    return node


def show_key(key: str) -> str:
    """Format a key for messages: quoted unless it is a bare word, control characters escaped, truncated."""
    short = key if len(key) <= _LONGEST_KEY else key[: _LONGEST_KEY - 3] + "..."
    return short if _BARE_KEY.fullmatch(short) else json.dumps(short)


def show_path(path: Path) -> str:
    """Format a path for messages, such as lowers[0].capacity.limit["nvidia.com/gpu"]; "(file)" for the root."""
    parts: list[str] = []
    for step in path:
        shown = f"[{step}]" if isinstance(step, int) else show_key(step)
        parts.append(shown if isinstance(step, int) else f"[{shown}]" if shown[0] == '"' else "." + shown)
    return "".join(parts).removeprefix(".") or "(file)"


class _Stop(Exception):
    """Parsing cannot continue after this error."""

    def __init__(self, position: Position, text: str) -> None:
        super().__init__(text)
        self.position = position
        self.text = text


_TOP = Position(1, 1)


@dataclass(slots=True)
class _Frame:
    """A mapping or list that is being read. `key` is the key of the next value, `drop` discards that value."""

    node: YAMLNode
    anchor: str | None
    is_mapping: bool
    key: str | None = None
    key_start: Position = _TOP
    has_key: bool = False
    entries: int = 0
    drop: bool = False

    def step(self) -> Path:
        """Return this frame's part of the path."""
        if not self.is_mapping:
            return (len(self.node.value),)
        return (self.key,) if self.key is not None else ()


def _at(mark: Any) -> Position:
    """Convert the parser's mark, which counts from 0, to a position."""
    return Position(mark.line + 1, mark.column + 1) if mark else _TOP


@dataclass(slots=True)
class _Composer:
    """Builds the tree from the parser's events and collects errors."""

    what: str
    frames: list[_Frame] = field(default_factory=list)
    anchors: dict[str, YAMLNode | None] = field(default_factory=dict)
    flaws: list[Flaw] = field(default_factory=list)
    root: YAMLNode | None = None
    nodes: int = 0
    aliases: int = 0
    documents: int = 0

    def path(self, end: Position | None = None) -> Path:
        """Return the path of the open collections, down to the value that starts at `end` if one does."""
        steps: list[str | int] = []
        for frame in self.frames:
            if frame.node.start == end:
                break
            steps.extend(frame.step())
        return tuple(steps)

    def flaw(self, position: Position, text: str) -> None:
        """Record an error after which parsing continues."""
        self.flaws.append(Flaw(position, self.path(), text))

    def feed(self, event: yaml.Event) -> None:
        """Process the next event."""
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
        """Begin the document. Only one is allowed."""
        self.documents += 1
        if self.documents > 1:
            raise _Stop(start, f"a second document; put one {self.what} in one file")
        if event.version and tuple(event.version) != (1, 2):
            self.flaw(start, "an old version of YAML; remove the %YAML line, or write %YAML 1.2")

    def count(self, position: Position, size: int, height: int) -> None:
        """Check the limits of values and levels before they are built."""
        self.nodes += size
        if self.nodes > MAX_NODES:
            raise _Stop(position, f"more than {MAX_NODES} values (aliases followed); make it smaller")
        if len(self.frames) + height > MAX_DEPTH:
            raise _Stop(position, f"nested deeper than {MAX_DEPTH} levels; make it flatter")

    def refuse_tag(self, tag: str | None, start: Position) -> None:
        """Record an error for an explicit tag: types follow from how a value is written."""
        if tag not in (None, "!"):
            self.flaw(start, "a tag; remove it, and quote a value that is meant as text")

    def scalar(self, event: yaml.ScalarEvent, start: Position) -> None:
        """Process a scalar, as a key or as a value."""
        self.count(start, 1, 1)
        self.refuse_tag(event.tag, start)
        is_plain = event.style is None or event.style == ""
        value = scalar(event.value) if is_plain and event.tag is None else event.value
        frame = self.frames[-1] if self.frames else None
        if frame and frame.is_mapping and not frame.has_key:
            self.set_anchor(event.anchor, YAMLNode(start, value))
            self.key(frame, event.value, start, is_text=isinstance(value, str), is_plain=is_plain)
        else:
            self.add(YAMLNode(start, value), event.anchor, start)

    def key(self, frame: _Frame, text: str, start: Position, *, is_text: bool, is_plain: bool) -> None:
        """Process the key of a mapping."""
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

    def set_anchor(self, anchor: str | None, node: YAMLNode | None) -> None:
        """Store a node under its anchor; None while it is still being read."""
        if anchor:
            self.anchors[anchor] = node

    def open(self, event: yaml.CollectionStartEvent, start: Position) -> None:
        """Begin a mapping or a list."""
        self.count(start, 1, 1)
        self.refuse_tag(event.tag, start)
        self.set_anchor(event.anchor, None)
        is_mapping = isinstance(event, yaml.MappingStartEvent)
        node = YAMLNode(start, {}, {}) if is_mapping else YAMLNode(start, [])
        self.frames.append(_Frame(node, event.anchor, is_mapping))

    def close(self) -> None:
        """End a mapping or list and add it to its parent."""
        frame = self.frames.pop()
        self.add(frame.node, frame.anchor, frame.node.start)

    def alias(self, name: str, start: Position) -> None:
        """Process an alias: the anchored node itself, counted as if written out."""
        node = self.anchors.get(name)
        if node is None:
            reason = "is inside its own anchor" if name in self.anchors else "has no anchor before it"
            named = f"the alias *{name[:40]}" if self.what == "topology" else "an alias that"
            raise _Stop(start, f"{named} {reason}; write the value out")
        self.aliases += 1
        if self.aliases > MAX_ALIASES:
            raise _Stop(start, f"more than {MAX_ALIASES} aliases; write the values out")
        self.count(start, node.size, node.height)
        self.add(node, None, start)

    def add(self, node: YAMLNode, anchor: str | None, start: Position) -> None:
        """Add a value: as the root, to a list, or under the current key."""
        self.set_anchor(anchor, node)
        if not self.frames:
            self.root = node
            return
        frame = self.frames[-1]
        if not frame.is_mapping:
            frame.node.value.append(node)
        elif not frame.has_key:
            self.flaw(start, "a key that is not text (render templates first)")
            frame.has_key, frame.drop = True, True
            return
        elif not frame.drop and frame.key is not None:
            frame.node.value[frame.key] = node
            frame.node.keys[frame.key] = frame.key_start
        frame.node.grow(node)
        frame.entries += 1
        if frame.entries > MAX_ENTRIES:
            raise _Stop(start, f"more than {MAX_ENTRIES} entries; check that it is the right file")
        frame.key, frame.has_key, frame.drop = None, False, False


class Advice(NamedTuple):
    """The message for a syntax error.

    `opened`: the mistake is where the parser's context began (an open bracket), not where the parser noticed it.
    """

    message: str
    opened: bool = False


_UNCLOSED = Advice("an unclosed bracket, or a missing comma in it", opened=True)
_QUOTES = Advice("an unclosed quote", opened=True)
_NO_CONTENT = "did not find expected node content"
_OPENING = (yaml.FlowSequenceStartToken, yaml.FlowMappingStartToken)
_CLOSING = (yaml.FlowSequenceEndToken, yaml.FlowMappingEndToken)
_TABLE = (
    (
        "mapping values are not allowed",
        Advice(
            'a ":" where no key is allowed; check the indentation here, or add a missing ":" in the line '
            "before, or quote the text"
        ),
    ),
    ("could not find expected ':'", Advice('a key without its ":"; write KEY: VALUE', opened=True)),
    (
        "did not find expected key",
        Advice("indentation that matches no previous line, or an extra bracket or quote"),
    ),
    (
        "did not find expected '-' indicator",
        Advice('a list item must start with "- " at the indentation of the others'),
    ),
    (
        "block sequence entries are not allowed",
        Advice('a "- " where no list is allowed; put it on its own line'),
    ),
    ("did not find expected ',' or", _UNCLOSED),
    ("expected ',' or", _UNCLOSED),
    ("found unexpected end of stream", _QUOTES),
    ("found unexpected document", _QUOTES),
    (
        "found unknown escape character",
        Advice("an unknown escape in double quotes; use single quotes, or two backslashes"),
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
        _NO_CONTENT,
        Advice("a missing value, or a closing bracket without an opening one"),
    ),
    (
        "did not find expected <document start>",
        Advice("content after the end of the document; check the indentation of this line"),
    ),
)


def advise(problem: str) -> Advice:
    """Return the message for a problem that the parser reports.

    An unknown problem keeps the parser's text without what it quotes.
    """
    for start, advice in _TABLE:
        if problem.startswith(start):
            return advice
    return Advice(problem.partition("'")[0].strip())


def _syntax(text: str, error: Exception) -> _Stop:
    """Convert the parser's error, with the position where a person would correct it."""
    problem = str(getattr(error, "problem", None) or error)
    advice = advise(problem)
    reported = _at(getattr(error, "problem_mark", None))
    noticed = _within(text, reported)
    if _text_at(text, noticed) == "\t":
        return _Stop(noticed, "not valid YAML: a tab in the indentation; indent with spaces")
    opened = getattr(error, "context_mark", None)
    if problem.startswith(_NO_CONTENT) and _text_at(text, noticed) not in ("]", "}"):
        opened = _open_bracket(text, reported)
        advice = _UNCLOSED if opened else advice
    if not advice.opened or opened is None:
        return _Stop(noticed, f"not valid YAML: {advice.message}")
    return _Stop(_at(opened), f"not valid YAML: {advice.message} (detected in line {noticed.line})")


def _open_bracket(text: str, until: Position) -> yaml.Mark | None:
    """Return where the innermost bracket begins that is open at a position, None if none is."""
    found: list[yaml.Mark] = []
    with suppress(yaml.YAMLError, ValueError, OverflowError):
        for token in yaml.scan(text, Loader=_LOADER):
            if _at(token.start_mark) >= until:
                break
            if isinstance(token, _OPENING):
                found.append(token.start_mark)
            elif isinstance(token, _CLOSING) and found:
                found.pop()
    return found[-1] if found else None


def _within(text: str, position: Position) -> Position:
    """Move a position after the end of the text back to its last character."""
    lines = text.splitlines() or [""]
    return position if position.line <= len(lines) else Position(len(lines), max(len(lines[-1]), 1))


def _text_at(text: str, position: Position) -> str:
    """Return the character at a position, "" where there is none."""
    lines = text.splitlines()
    return lines[position.line - 1][position.column - 1 : position.column] if lines else ""


def _forbidden(text: str) -> tuple[Flaw, ...]:
    """Return the error for the first character that YAML does not allow unescaped, () for none."""
    match = _FORBIDDEN.search(text)
    if match is None:
        return ()
    line = text.count("\n", 0, match.start())
    column = match.start() - text.rfind("\n", 0, match.start())
    message = (
        f"the character U+{ord(match[0]):04X} is not allowed here; remove it, or write it as an escape in double quotes"
    )
    return (Flaw(Position(line + 1, column), (), message),)


def _without_pairs(text: str) -> str:
    """Replace JSON's surrogate-pair escapes, which YAML does not know. A text that is no JSON is unchanged."""
    if not _PAIR.search(text):
        return text
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return text
    return _ESCAPE.sub(lambda found: json.loads(f'"{found[0]}"') if _PAIR.fullmatch(found[0]) else found[0], text)


def _read(text: str, composer: _Composer, loader: Any) -> None:
    """Feed all events of a text to the composer. Raises _Stop at the first error that ends the parsing."""
    try:
        for event in yaml.parse(text, Loader=loader):
            composer.feed(event)
    except (yaml.YAMLError, ValueError, OverflowError) as error:  # the last two: escapes, without libyaml
        raise _syntax(text, error) from None


def compose(text: str, *, what: str = "topology", loader: Any = _LOADER) -> YAMLDocument:
    """Parse one document. It never raises for the text's content, but returns its errors in the order found.

    A byte order mark at the start is ignored. An empty text has a root of null. `what` names the kind of document in
    its errors; only errors of a topology quote its content. `loader` is PyYAML's loader, the one in C where available.
    """
    text = text.removeprefix("\ufeff")
    if len(text.encode(errors="replace")) > MAX_BYTES:
        return YAMLDocument(None, (Flaw(_TOP, (), f"larger than {MAX_BYTES} bytes; make it smaller"),))
    text = _without_pairs(text)
    flaws = _forbidden(text)
    if flaws:
        return YAMLDocument(None, flaws)
    composer = _Composer(what)
    try:
        _read(text, composer, loader)
    except _Stop as stop:
        last = Flaw(stop.position, composer.path(stop.position), stop.text)
        return YAMLDocument(None, (*composer.flaws, last))
    return YAMLDocument(composer.root or YAMLNode(_TOP, None), tuple(composer.flaws))


def documents(text: str) -> list[str]:
    """Split a text into its documents, at most one more than MAX_DOCUMENTS, and at least one.

    Each has blank lines for what comes before it, so that its positions are those of the text. Documents without
    content are left out.
    """
    starts = [match.start() for match in _START.finditer(text) if _CONTENT.search(text, 0, match.start())]
    spans = [span for span in zip([0, *starts], [*starts, len(text)], strict=True) if _CONTENT.search(text, *span)]
    parts = ["\n" * text.count("\n", 0, begin) + text[begin:end] for begin, end in spans[: MAX_DOCUMENTS + 1]]
    return parts if parts and len(text) <= MAX_BYTES else [text]


class FullDumper(yaml.SafeDumper):
    """Writes shared values in full instead of as aliases, and multi-line text as a block."""

    def ignore_aliases(self, _data: Any) -> bool:
        """Write no aliases."""
        return True


def is_plainly_text(text: str) -> bool:
    """Report whether every YAML reader takes the unquoted text as text, apart from PyYAML's own quoting."""
    digits = text.replace("_", "")
    return not (
        text in _BOOLEANS_OF_1_1
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
    """Write one value, such as an object. Keys keep their order."""
    return yaml.dump(data, Dumper=FullDumper, sort_keys=False, allow_unicode=True, width=width)


def flow(value: Any) -> str:
    """Write one value on one line."""
    return yaml.dump(
        [value], Dumper=FullDumper, sort_keys=False, allow_unicode=True, default_flow_style=True, width=1e9
    )[1:-2]
