"""What is wrong with a YAML text, in words that help to mend it.

The reader's own words ("did not find expected key") name what its grammar lacks; people look for the bracket, the quote
or the indentation that they got wrong, and for the line where it began.
"""

from typing import NamedTuple


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
