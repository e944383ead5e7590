"""Tests of the demo's output, with color and without."""

import io

from tensile.sandbox.demo import DemoScreen


def screen_output(*, colour: bool) -> str:
    """Return the output of a screen for a title, words and a command."""
    stream = io.StringIO()
    screen = DemoScreen(stream, colour=colour)
    screen.title("Two nodes")
    screen.text("Look at them.\n  kubectl get nodes")
    screen.command("kubectl get nodes")
    return stream.getvalue()


def test_output_without_color_is_plain_text() -> None:
    """A file or a pipe gets each line unchanged."""
    assert screen_output(colour=False) == "\n# Two nodes\nLook at them.\n  kubectl get nodes\n\n$ kubectl get nodes\n"


def test_output_with_color_has_the_same_text() -> None:
    """Titles and commands are highlighted; without the escape codes the text is the same."""
    text = screen_output(colour=True)
    assert "\x1b[1m# Two nodes\x1b[0m" in text
    assert "\x1b[36m$ kubectl get nodes\x1b[0m" in text
    for code in ("\x1b[1m", "\x1b[36m", "\x1b[0m"):
        text = text.replace(code, "")
    assert text == screen_output(colour=False)


def test_output_is_flushed_before_a_command_writes() -> None:
    """Otherwise the output of a command could be printed before the command line."""
    raw = io.BytesIO()
    screen = DemoScreen(io.TextIOWrapper(raw, write_through=False), colour=False)
    screen.command("kubectl get nodes")
    assert raw.getvalue() == b"\n$ kubectl get nodes\n"
