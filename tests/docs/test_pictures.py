"""The pictures of the README: as their programs draw them, and whole without other files."""

import re
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from docs.pictures import clusters

PICTURES = {clusters.PICTURE: clusters.drawn}
SVG = "{http://www.w3.org/2000/svg}"


@pytest.mark.parametrize("picture", PICTURES, ids=lambda path: path.name)
def test_a_picture_is_as_it_would_be_drawn_now(picture: Path) -> None:
    """After a change of its program, run it."""
    assert picture.read_text() == PICTURES[picture]()


@pytest.mark.parametrize("picture", PICTURES, ids=lambda path: path.name)
def test_a_picture_can_be_shown_anywhere(picture: Path) -> None:
    """It has a description, colours for light and dark pages, and no script or reference to another file."""
    text = picture.read_text()
    root = ET.fromstring(text)
    assert root.findtext(f"{SVG}title")
    assert root.findtext(f"{SVG}desc")
    assert "@media (prefers-color-scheme: dark)" in text
    assert re.findall(r"<script|@import|href=|src=|url\((?!#)", text) == []


def test_both_sets_of_colours_have_the_same_names() -> None:
    """A colour that is missing in one of them would be black there."""
    text = clusters.PICTURE.read_text()
    sets = [set(re.findall(r"--([a-z]+):", line)) for line in text.splitlines() if "--page:" in line]
    assert len(sets) == 2
    assert set(re.findall(r"var\(--([a-z]+)\)", text)) <= set.intersection(*sets)
