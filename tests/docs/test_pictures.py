"""The pictures of the README: as their programs draw them, whole without other files, and true to the recording."""

import re
from pathlib import Path
from xml.etree import ElementTree as ET

import orjson
import pytest

from docs.pictures import clusters, demo
from tensile.sandbox.demo_script import TOUR

PICTURES = {clusters.PICTURE: clusters.drawn, demo.PICTURE: lambda: demo.drawn(demo.CAST.read_bytes())}
HEAD = {"version": 2, "width": 80, "height": 24}
SVG = "{http://www.w3.org/2000/svg}"


def cast(*texts: str) -> bytes:
    """Make a recording of some texts."""
    return b"\n".join(map(orjson.dumps, [HEAD, *([place, "o", text] for place, text in enumerate(texts))]))


def tour(*commands: str) -> bytes:
    """Make a recording of a scene with these commands, each of which prints one line."""
    told = "".join(f"\r\n\x1b[36m$ {command}\x1b[0m\r\nof {command}\r\n" for command in commands)
    return cast("words before it\r\n\x1b[1m# A scene\x1b[0m\r\nwords of it\r\n", told)


@pytest.mark.parametrize("picture", PICTURES, ids=lambda path: path.name)
def test_a_picture_is_as_it_would_be_drawn_now(picture: Path) -> None:
    """After a change of its program or of its recording, run the program."""
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
    text = clusters.PICTURE.read_text() + demo.PICTURE.read_text()
    sets = [set(re.findall(r"--([a-z]+):", line)) for line in text.splitlines() if "--page:" in line]
    assert len(sets) == 4
    assert set(re.findall(r"var\(--([a-z]+)\)", text)) <= set.intersection(*sets)


def test_the_demo_still_runs_the_commands_of_its_picture() -> None:
    """If not, change SHOWN, and record the demo again: python -m docs.pictures.record."""
    commands = [command.line for scene in TOUR for command in scene.lines]
    assert [command for command in demo.SHOWN if command not in commands] == []


def test_the_picture_shows_rows_of_the_recording_only() -> None:
    """Each in the order in which it was printed."""
    recorded = iter(map(demo.text_of, demo.rows(demo.CAST.read_bytes())))
    root = ET.fromstring(demo.PICTURE.read_text())
    drawn = ["".join(text.itertext()) for text in root.iter(f"{SVG}text") if text.get("class") != "name"]
    assert len(drawn) > 30
    assert [row for row in drawn if row not in recorded] == []


def test_the_animation_has_the_length_that_its_title_tells() -> None:
    """The first rows are there at once, and the last ones before its end."""
    played = demo.steps(demo.shown(demo.rows(demo.CAST.read_bytes())))
    times = [step.at for step in played]
    assert times == sorted(set(times))
    assert (times[0], demo.LENGTH) == (0, 20)
    assert times[-1] < demo.LENGTH - 1


def test_commands_are_shown_with_their_output_and_the_title_of_their_scene() -> None:
    """Without the words of the scene, and without commands that are left out."""
    first, *others, last = demo.shown(demo.rows(tour(*demo.SHOWN[:3], "date", *demo.SHOWN[3:])))
    assert [demo.text_of(row) for row in (first.title, first.command)] == ["# A scene", f"$ {demo.SHOWN[0]}"]
    assert first.title == [("b", "# A scene")]
    assert [demo.text_of(row) for row in first.output] == [f"of {demo.SHOWN[0]}"]
    assert [block.title for block in (*others, last)] == [None] * (len(demo.SHOWN) - 1)
    assert "date" not in str(others)


def test_a_command_that_was_not_recorded_is_an_error() -> None:
    """Rather than a picture without it."""
    with pytest.raises(ValueError, match=f"does not have `{demo.SHOWN[-1]}` where SHOWN has it"):
        demo.shown(demo.rows(tour(*demo.SHOWN[:-1])))


def test_what_cannot_be_drawn_is_an_error() -> None:
    """A terminal can do more than a row of text with attributes."""
    with pytest.raises(ValueError, match=r"has '\\x1b\[2J"):
        demo.rows(cast("\x1b[2J"))
