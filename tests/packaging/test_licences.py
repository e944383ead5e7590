"""The page of licences has every package that is shipped, and only licences that were reviewed."""

import re
from importlib.metadata import distribution

import pytest
from licencespage import CLASSIFIED, DOCUMENT, Package, packages, texts

PERMISSIVE = {"Apache-2.0", "BSD-2-Clause", "BSD-3-Clause", "ISC", "MIT", "MIT-0", "PSF-2.0"}
COPYLEFT = {"MPL-2.0"}
"""Licences of files that stay under them; a package with one is named in the words of the page."""
WORDS = {"BSD-3-Clause": "Neither the name of", "MIT": "Permission is hereby granted, free of charge"}
"""Words of the text of a licence that no similar licence has."""
PACKAGES = packages()


def parts(package: Package) -> set[str]:
    """Return the licences in the expression of a package."""
    return set(re.findall(r"[\w.-]+", package.licence)) - {"AND", "OR"}


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.name)
def test_a_package_has_licences_that_are_known_and_their_text(package: Package) -> None:
    """One under another licence is not shipped before it was reviewed; the text has to go along with a copy."""
    assert parts(package) <= PERMISSIVE | COPYLEFT
    assert texts(distribution(package.name)) != []


def test_the_page_names_every_package_with_copyleft() -> None:
    """In its words, and no other."""
    (paragraph,) = re.findall(r"^\*\*Copyleft\.\*\*(.*?)\n\n", DOCUMENT.read_text(), re.MULTILINE | re.DOTALL)
    named = set(re.findall(r"`([\w-]+)`", paragraph))
    assert named == {one.name for one in PACKAGES if parts(one) & COPYLEFT} != set()


def test_packages_that_only_have_a_classifier_have_that_licence() -> None:
    """A classifier can stand for several licences; the text says which."""
    said = {one.name: distribution(one.name) for one in PACKAGES}
    bare = {
        name: next(CLASSIFIED[one] for one in package.metadata.get_all("Classifier", []) if one in CLASSIFIED)
        for name, package in said.items()
        if not package.metadata.get("License-Expression") and not package.metadata.get("License")
    }
    assert set(bare.values()) == set(CLASSIFIED.values())
    for name, licence in bare.items():
        text = " ".join(" ".join(path.read_text() for path in texts(said[name])).split())
        assert WORDS[licence].lower() in text.lower(), name
