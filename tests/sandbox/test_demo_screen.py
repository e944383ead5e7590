"""What is written for people, with colour and without."""

import io

from tensile.sandbox.demo import DemoScreen


def shown(*, colour: bool) -> str:
    """Return what a screen writes for one of each."""
    stream = io.StringIO()
    screen = DemoScreen(stream, colour=colour)
    screen.title("Two nodes")
    screen.words("Look at them.\n  kubectl get nodes")
    screen.command("kubectl get nodes")
    return stream.getvalue()


def test_without_colour_there_are_only_words() -> None:
    """A file or a pipe gets plain text, in which every line is as it was given."""
    assert shown(colour=False) == "\n# Two nodes\nLook at them.\n  kubectl get nodes\n\n$ kubectl get nodes\n"


def test_colour_changes_nothing_but_the_colour() -> None:
    """Titles and commands stand out; without the escape codes the text is the same."""
    text = shown(colour=True)
    assert "\x1b[1m# Two nodes\x1b[0m" in text
    assert "\x1b[36m$ kubectl get nodes\x1b[0m" in text
    for code in ("\x1b[1m", "\x1b[36m", "\x1b[0m"):
        text = text.replace(code, "")
    assert text == shown(colour=False)


def test_words_are_out_before_a_command_writes() -> None:
    """Nothing waits in a buffer, or a command's output would come first."""
    raw = io.BytesIO()
    screen = DemoScreen(io.TextIOWrapper(raw, write_through=False), colour=False)
    screen.command("kubectl get nodes")
    assert raw.getvalue() == b"\n$ kubectl get nodes\n"
