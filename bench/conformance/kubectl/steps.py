"""Defines a command: its arguments, its input, and how its answer is compared.

It is plain data, so that all commands can be read as one list.
"""

from dataclasses import dataclass

TREE = "tree"
"""The form of an answer that is one YAML or JSON document: compared value by value."""
LINES = "lines"
"""The form of an answer whose lines may have any order."""
EVENTS = "events"
"""The form of a text that ends with a table of events, whose order depends on the second of each event."""


@dataclass(frozen=True)
class Step:
    """One command; `arguments_text` has kubectl's arguments in shell syntax.

    Attributes:
        stdin: the input of the pipe.
        held: the pipe stays open until this is in the output: a stream may end too early with its input.
        spdy: whether kubectl uses SPDY instead of WebSockets.
        form: how the answer is compared: "", TREE, LINES or EVENTS.
        typed: pairs of a text to wait for on a terminal and the input to type after it; None for no terminal.
        fetched: for a port-forward, the indexes of the ports to which requests are sent.
        until: for a wait, the regular expression that the output has to match; the answer is not compared.
    """

    arguments_text: str
    stdin: str = ""
    held: str = ""
    spdy: bool = False
    form: str = ""
    typed: tuple[tuple[str, str], ...] | None = None
    fetched: tuple[int, ...] = ()
    until: str = ""

    @property
    def title(self) -> str:
        """The name of the command in results."""
        return f"{self.arguments_text} (SPDY)" if self.spdy else self.arguments_text
