"""The last part of the troubleshooting page: a section for each condition and reason that requires an action.

Users search for the word that they see, and a search of the site leads to sections, not to rows of a table. So this
page repeats the words of the reference of conditions, each with its own heading.

Write it with `PYTHONPATH=tests/kit .venv/bin/python -m troubleshootingpage`.
"""

from collections.abc import Iterator
from itertools import groupby

from conditionspage import DOCUMENT as REFERENCE
from conditionspage import DocumentedConstant, cased, documented_constants

DOCUMENT = REFERENCE.parents[1] / "troubleshooting.md"
BEGIN, END = "<!-- words -->", "<!-- end of words -->"
NOTHING = "nothing."
"""The remedy of a word that reports no trouble."""


def sections() -> str:
    """Return a section for each word, in alphabetical order, with a paragraph for each of its meanings."""
    troubling = sorted((one for one in documented_constants() if one.remedy != NOTHING), key=_order)
    return "\n".join(line for value, same in groupby(troubling, _value) for line in _section(value, list(same)))


def _order(word: DocumentedConstant) -> tuple[str, str, str]:
    return word.value.rpartition("/")[2].lower(), word.value, word.meaning


def _value(word: DocumentedConstant) -> str:
    return word.value


def _section(value: str, same: list[DocumentedConstant]) -> Iterator[str]:
    yield f"### `{value}`"
    for one in same:
        yield f"{_here(one.meaning)}\n"
        yield f"**Remedy:** {_here(cased(one.remedy))}\n"


def _here(text: str) -> str:
    """Return a text of the reference with links relative to the folder of this page."""
    return text.replace("](../", "](")


def rewritten(text: str) -> str:
    """Return a text with the sections between its marks."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{sections()}{END}{after}"


if __name__ == "__main__":
    DOCUMENT.write_text(rewritten(DOCUMENT.read_text()))
