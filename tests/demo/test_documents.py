"""What is written for newcomers: examples that are valid, links that lead somewhere, and words that are true."""

import re
from pathlib import Path

import pytest
import typer

from tensile import cli
from tensile.sandbox import manifests
from tensile.topology import parse

ROOT = Path(cli.__file__).parents[1]
README = (ROOT / "README.md").read_text()
DOCUMENTS = ["README.md", "CONTRIBUTING.md", *(f"docs/{path.name}" for path in sorted((ROOT / "docs").glob("*.md")))]


def blocks(language: str) -> list[str]:
    """Give the README's blocks of a language."""
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


def test_the_readmes_topology_is_valid() -> None:
    """Whoever copies it gets a topology of two lowers."""
    (text,) = blocks("yaml")
    topology = parse(text)
    assert [lower.name for lower in topology.lowers] == ["lower-a", "lower-b"]


def test_the_readmes_commands_are_commands() -> None:
    """Every `tensile WORD` in a shell block is one that the program has."""
    known = set(typer.main.get_command(cli.app).commands)  # type: ignore[attr-defined]
    used = set(re.findall(r"tensile ([a-z]+)", "".join(blocks("sh"))))
    assert {"sandbox", "run", "plan", "validate"} <= used <= known


def test_the_readmes_make_targets_are_targets() -> None:
    """Every `make WORD` of the README is in the Makefile."""
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    used = set(re.findall(r"(?:^|`)make ([a-z]+)", README, re.MULTILINE))
    assert {"demo", "setup", "test", "check"} <= used <= targets


@pytest.mark.parametrize("name", DOCUMENTS)
def test_links_and_paths_lead_somewhere(name: str) -> None:
    """Every relative link of a document, and every module that the architecture names, is there."""
    text = (ROOT / name).read_text()
    links = [link for link in re.findall(r"\]\(([^)#]+)\)", text) if "://" not in link]
    assert all((ROOT / name).parent.joinpath(link).exists() for link in links)
    modules = re.findall(r"`((?:[a-z]+/)*[a-z]+\.py)`", text)
    assert [module for module in modules if not any((ROOT / at / module).exists() for at in (".", "tensile"))] == []


def test_the_taint_and_the_pods_toleration_are_those_of_the_nodes() -> None:
    """The README's pod may run on a node that a plain topology makes."""
    topology = parse(manifests.topology(["lower-a"], kubelet_port=23450, telemetry_port=23460))
    (taint,) = topology.lowers[0].node.taints
    assert f"`{taint.key}={taint.value}:{taint.effect}`" in README
    assert f'"tolerations": [{{"key": "{taint.key}", "operator": "Exists"}}]' in README
