"""The licenses of the packages that the program is installed with, written from the packages' own metadata.

Write it with `PYTHONPATH=tests/kit .venv/bin/python -m licencespage`.
"""

import re
from collections.abc import Iterator
from importlib.metadata import Distribution, distribution
from pathlib import Path
from typing import NamedTuple

from packaging.licenses import canonicalize_license_expression

ROOT = Path(__file__).resolve().parents[2]
DOCUMENT = ROOT / "docs" / "reference" / "licences.md"
LOCK = ROOT / "requirements.run.lock"
BEGIN, END = "<!-- licences -->", "<!-- end of licences -->"
IN_WORDS = {
    "3-Clause BSD License": "BSD-3-Clause",
    "Apache 2.0": "Apache-2.0",
    "Apache License 2.0": "Apache-2.0",
    "ISC License": "ISC",
    "MIT License": "MIT",
}
"""SPDX identifiers of licenses that packages name differently."""
CLASSIFIED = {
    "License :: OSI Approved :: BSD License": "BSD-3-Clause",
    "License :: OSI Approved :: MIT License": "MIT",
}
"""SPDX identifiers of classifiers, for packages with no other metadata. A test checks their license texts."""


class Package(NamedTuple):
    """A package of the lock file: its name there, its version, its license as an SPDX expression."""

    name: str
    version: str
    licence: str


def packages() -> list[Package]:
    """Return the packages of `requirements.run.lock`, by name; raise LookupError if one has no known license."""
    names = re.findall(r"^([\w.-]+)==", LOCK.read_text(), re.MULTILINE)
    found = [(name, distribution(name)) for name in sorted(names)]
    return [Package(name, one.version, licence(one)) for name, one in found]


def licence(package: Distribution) -> str:
    """Return the license of an installed package as an SPDX expression; raise LookupError if it is not known."""
    metadata = package.metadata
    if expression := metadata.get("License-Expression") or metadata.get("License"):
        return canonicalize_license_expression(IN_WORDS.get(expression, expression))
    for classifier in metadata.get_all("Classifier", []):
        if classifier in CLASSIFIED:
            return CLASSIFIED[classifier]
    raise LookupError(f"{metadata['Name']}: no known licence: read its text, and add it to licencespage.py")


def texts(package: Distribution) -> list[Path]:
    """Return the files of an installed package that have the text of its licenses."""
    files = (Path(str(package.locate_file(file))) for file in package.files or ())
    return [file for file in files if re.search(r"licen[cs]e|copying", file.name, re.IGNORECASE)]


def table() -> str:
    """Return a table of all packages."""
    return "\n".join(_rows())


def rewritten(text: str) -> str:
    """Return a text with the table between its marks."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{table()}\n{END}{after}"


def _rows() -> Iterator[str]:
    yield "| package | version | licence |"
    yield "|---|---|---|"
    yield from (f"| {one.name} | {one.version} | {one.licence} |" for one in packages())


if __name__ == "__main__":
    DOCUMENT.write_text(rewritten(DOCUMENT.read_text()))
