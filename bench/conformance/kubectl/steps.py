"""What a command is: its words, what is said to it, and how its answer is compared.

Plain data, so that the list of commands can be read as one.
"""

from dataclasses import dataclass

TREE = "tree"
"""The form of an answer that is one YAML or JSON document: compared value by value."""
LINES = "lines"
"""That of lines in any order."""
EVENTS = "events"
"""That of a text that ends with a table of events, whose order is that of their seconds."""


@dataclass(frozen=True)
class Step:
    """One command; `words` are kubectl's arguments as a shell takes them.

    Attributes:
        stdin: what is piped in.
        held: the pipe stays open until this is in the answer: with its input, a stream may end too early.
        spdy: whether kubectl speaks SPDY and no WebSocket.
        form: how the answer is compared: "", TREE, LINES or EVENTS.
        typed: what is typed after what is shown, on a terminal; None: there is no terminal.
        fetched: of a port-forward: which of its ports are called, by their place.
        until: a wait: given again until this regular expression is found in the answer, and not compared.
    """

    words: str
    stdin: str = ""
    held: str = ""
    spdy: bool = False
    form: str = ""
    typed: tuple[tuple[str, str], ...] | None = None
    fetched: tuple[int, ...] = ()
    until: str = ""

    @property
    def title(self) -> str:
        """What it is called in results."""
        return f"{self.words} (SPDY)" if self.spdy else self.words
