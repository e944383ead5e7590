"""Tests of the pictures of the README: up to date, independent of other files, and faithful to the recording."""

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
    terminal_output = "".join(f"\r\n\x1b[36m$ {command}\x1b[0m\r\nof {command}\r\n" for command in commands)
    return cast("words before it\r\n\x1b[1m# A scene\x1b[0m\r\nwords of it\r\n", terminal_output)


@pytest.mark.parametrize("picture", PICTURES, ids=lambda path: path.name)
def test_a_picture_equals_the_current_output_of_its_program(picture: Path) -> None:
    """After a change of the program or of the recording, the program must be run again."""
    assert picture.read_text() == PICTURES[picture]()


@pytest.mark.parametrize("picture", PICTURES, ids=lambda path: path.name)
def test_a_picture_has_a_description_and_needs_no_other_file(picture: Path) -> None:
    """It has colors for light and dark pages, and no script."""
    text = picture.read_text()
    root = ET.fromstring(text)
    assert root.findtext(f"{SVG}title")
    assert root.findtext(f"{SVG}desc")
    assert "@media (prefers-color-scheme: dark)" in text
    assert re.findall(r"<script|@import|href=|src=|url\((?!#)", text) == []


def test_every_color_is_defined_for_light_and_dark_pages() -> None:
    """An undefined color would be black."""
    text = clusters.PICTURE.read_text() + demo.PICTURE.read_text()
    sets = [set(re.findall(r"--([a-z]+):", line)) for line in text.splitlines() if "--page:" in line]
    assert len(sets) == 4
    assert set(re.findall(r"var\(--([a-z]+)\)", text)) <= set.intersection(*sets)


def test_the_demo_runs_the_commands_of_its_picture() -> None:
    """If it does not, change SHOWN and record the demo again: python -m docs.pictures.record."""
    commands = [command.line for scene in TOUR for command in scene.lines]
    assert [command for command in demo.SHOWN if command not in commands] == []


def test_the_picture_shows_only_rows_of_the_recording() -> None:
    """They have the order in which they were printed."""
    recorded = iter(map(demo.text_of, demo.rows(demo.CAST.read_bytes())))
    root = ET.fromstring(demo.PICTURE.read_text())
    drawn = ["".join(text.itertext()) for text in root.iter(f"{SVG}text") if text.get("class") != "name"]
    assert len(drawn) > 30
    assert [row for row in drawn if row not in recorded] == []


def test_the_animation_has_a_length_of_20_seconds() -> None:
    """The first rows are visible at once, and the last ones appear more than a second before the end."""
    played = demo.steps(demo.shown(demo.rows(demo.CAST.read_bytes())))
    times = [step.at for step in played]
    assert times == sorted(set(times))
    assert (times[0], demo.LENGTH) == (0, 20)
    assert times[-1] < demo.LENGTH - 1


def test_commands_are_shown_with_their_output_and_scene_title() -> None:
    """The text of the scene and commands that are not in SHOWN are left out."""
    first, *others, last = demo.shown(demo.rows(tour(*demo.SHOWN[:3], "date", *demo.SHOWN[3:])))
    assert [demo.text_of(row) for row in (first.title, first.command)] == ["# A scene", f"$ {demo.SHOWN[0]}"]
    assert first.title == [("b", "# A scene")]
    assert [demo.text_of(row) for row in first.output] == [f"of {demo.SHOWN[0]}"]
    assert [block.title for block in (*others, last)] == [None] * (len(demo.SHOWN) - 1)
    assert "date" not in str(others)


def test_a_shown_command_that_was_not_recorded_is_an_error() -> None:
    """The picture would be incomplete without it."""
    with pytest.raises(ValueError, match=f"does not have `{demo.SHOWN[-1]}` where SHOWN has it"):
        demo.shown(demo.rows(tour(*demo.SHOWN[:-1])))


def test_a_terminal_sequence_that_cannot_be_drawn_is_an_error() -> None:
    """Only rows of text with attributes can be drawn, for example no cleared screen."""
    with pytest.raises(ValueError, match=r"has '\\x1b\[2J"):
        demo.rows(cast("\x1b[2J"))
