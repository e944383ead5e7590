"""Tests that the page of licenses has every shipped package, and only licenses that were reviewed."""

import re
from importlib.metadata import distribution

import pytest
from licencespage import CLASSIFIED, DOCUMENT, Package, packages, texts

PERMISSIVE = {"Apache-2.0", "BSD-2-Clause", "BSD-3-Clause", "ISC", "MIT", "MIT-0", "PSF-2.0"}
COPYLEFT = {"MPL-2.0"}
"""Licenses that also apply to changed files; the text of the page names each package with one."""
WORDS = {"BSD-3-Clause": "Neither the name of", "MIT": "Permission is hereby granted, free of charge"}
"""Words in the text of a license that no similar license has."""
PACKAGES = packages()


def parts(package: Package) -> set[str]:
    """Return the licenses in the license expression of a package."""
    return set(re.findall(r"[\w.-]+", package.licence)) - {"AND", "OR"}


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.name)
def test_a_package_has_only_reviewed_licenses_and_their_text(package: Package) -> None:
    """A package with another license must be reviewed before it is shipped, and a copy must include the text."""
    assert parts(package) <= PERMISSIVE | COPYLEFT
    assert texts(distribution(package.name)) != []


def test_the_page_names_exactly_the_packages_with_a_copyleft_license() -> None:
    """They are in its paragraph about copyleft."""
    (paragraph,) = re.findall(r"^\*\*Copyleft\.\*\*(.*?)\n\n", DOCUMENT.read_text(), re.MULTILINE | re.DOTALL)
    named = set(re.findall(r"`([\w-]+)`", paragraph))
    assert named == {one.name for one in PACKAGES if parts(one) & COPYLEFT} != set()


def test_packages_with_only_a_license_classifier_have_the_text_of_that_license() -> None:
    """A classifier can mean several licenses, and the text shows which one it is."""
    distributions = {one.name: distribution(one.name) for one in PACKAGES}
    bare = {
        name: next(CLASSIFIED[one] for one in package.metadata.get_all("Classifier", []) if one in CLASSIFIED)
        for name, package in distributions.items()
        if not package.metadata.get("License-Expression") and not package.metadata.get("License")
    }
    assert set(bare.values()) == set(CLASSIFIED.values())
    for name, licence in bare.items():
        text = " ".join(" ".join(path.read_text() for path in texts(distributions[name])).split())
        assert WORDS[licence].lower() in text.lower(), name
