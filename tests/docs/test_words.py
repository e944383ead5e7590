"""Tests that the documentation is correct: links and anchors, commands and options, examples.

Generated pages equal what would be generated now.
"""

import math
import re
from datetime import date
from pathlib import Path
from types import ModuleType

import commandspage
import conditionspage
import licencespage
import pytest
import topologypage
import yaml
from commandspage import EXITS, commands, options
from fences import DIRECTIVES, OF_SH, ROOT, Fence, anchors, calls, fences, inline, is_object, is_topology, links, pages
from packaging.version import Version

import tensile
from tensile.names import PREFIX
from tensile.sandbox import apiserver
from tensile.topology import TopologyErrors, parse

EVERY = [*pages(), "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md"]
LANGUAGES = {"", "sh", "yaml"}
MINIMAL = {"apiVersion": "tensile-kube.io/v1alpha1", "kind": "Topology", "name": "demo", "lowers": []}


def read(page: str) -> str:
    """Return the text of a page."""
    return (ROOT / page).read_text()


def every_fence() -> list[Fence]:
    """Return the fences of all pages."""
    return [fence for page in pages() for fence in fences(page, read(page))]


@pytest.mark.parametrize("page", EVERY)
def test_relative_links_lead_to_existing_files_and_headings(page: str) -> None:
    """This applies to every page."""
    assert [link for link in links(read(page)) if broken(page, link)] == []


def broken(page: str, link: str) -> bool:
    """Report whether the target of a link does not exist."""
    path, _, anchor = link.partition("#")
    target = (ROOT / page).parent / path if path else ROOT / page
    return not target.exists() or bool(anchor and anchor not in anchors(target.read_text()))


@pytest.mark.parametrize("page", EVERY)
def test_modules_and_folders_named_on_a_page_exist(page: str) -> None:
    """If a module is renamed, the architecture page must be changed too."""
    named = re.findall(r"`((?:[a-z_]+/)*[a-z_]+\.py|(?:[a-z]+/)+)`", read(page))
    places = [ROOT, ROOT / "tensile", ROOT / "tests" / "docs"]
    assert [name for name in named if not any((at / name).exists() for at in places)] == []


def test_the_architecture_page_names_every_package() -> None:
    """Its table shows where each part of the code is."""
    folders = {path.parent.name for path in (ROOT / "tensile").glob("*/__init__.py")}
    assert {name for name in folders if f"`{name}/`" not in read("docs/architecture.md")} == set()


@pytest.mark.parametrize("page", EVERY)
def test_commands_and_options_named_on_a_page_exist(page: str) -> None:
    """They may be in a block or in prose; a command of several words may be named by its first word."""
    texts = [fence.text for fence in fences(page, read(page)) if fence.language == "sh"]
    found = [call for text in [*texts, *(f"`{one}`" for one in inline(read(page)))] for call in calls(text)]
    assert [call for call in found if unknown(call)] == []


def unknown(call: str) -> bool:
    """Report whether the program does not know the command or an option of a call."""
    known = commands()
    arguments = call.partition("#")[0].partition(" -- ")[0].split()  # after it, the words are another program's
    if not arguments or arguments[0].isupper() or arguments[0] == "…":
        return False
    if arguments[0].startswith("-"):
        return arguments[0] not in commandspage.EVERYWHERE
    names = [name for name in known if name.split() == arguments[: len(name.split())]]
    if not names:
        return len(arguments) > 1 or not any(name.split()[0] == arguments[0] for name in known)
    spelled = {word.partition("=")[0] for word in arguments if re.match(r"--?[a-z]", word)}
    return not spelled <= options(known[names[0]])


def test_unknown_recognizes_commands_of_two_words_and_options() -> None:
    """Options may have a value or not."""
    assert not any(map(unknown, ("run -f topology.yaml", "run", "sandbox", "sandbox up --lowers=3", "--version")))
    assert all(map(unknown, ("walk", "sandbox sideways", "run --fast", "plan --drains x", "--verbose")))


def test_fences_have_known_languages() -> None:
    """A shell block with another language would not be run."""
    assert [one.place for one in every_fence() if one.language not in LANGUAGES] == []
    assert [one.place for one in every_fence() if one.language != "sh" and OF_SH & set(one.directives)] == []


def test_every_kind_of_fence_comment_is_used() -> None:
    """A kind that no page uses should be removed."""
    used = {name for one in every_fence() for name in one.directives}
    assert used <= DIRECTIVES
    assert {"not run", "runs on until", "ends with", "file", "printed", "given"} <= used


def test_recorded_examples_equal_the_content_of_their_files() -> None:
    """Such an example is what a test compares with."""
    shown = [one for page in EVERY for one in fences(page, read(page)) if "recorded" in one.directives]
    assert {one.page for one in shown} == {"CONTRIBUTING.md", "docs/howto/drift.md"}
    assert [one.place for one in shown if not is_recorded(one)] == []


def is_recorded(shown: Fence) -> bool:
    """Report whether the file contains all parts of a fence; long lines of Python sources are joined."""
    text = read(shown.directives["recorded"]).replace("\\\n", "")
    return all(part.strip("\n") in text for part in shown.text.split("\n…\n"))


def test_the_tests_named_in_contributing_exist() -> None:
    """A word after -k that no test has would run no test, which is easily overlooked."""
    named_tests = re.findall(r"pytest (tests/\S+)(?: -k (\w+))?", read("CONTRIBUTING.md"))
    assert len(named_tests) >= 3
    assert [
        (where, word) for where, word in named_tests if not any(word in name for name in names_in(ROOT / where))
    ] == []


def names_in(place: Path) -> list[str]:
    """Return the names of the tests of a file, or of the scenarios of a folder."""
    if place.is_dir():
        return [path.stem for path in place.glob("*.yaml")]
    return re.findall(r"def (test_\w+)", place.read_text())


@pytest.mark.parametrize("fence", every_fence(), ids=lambda one: one.place)
def test_yaml_blocks_are_valid_topologies_or_objects(fence: Fence) -> None:
    """A part of a topology is completed first; objects are applied by the commands of the page."""
    if fence.language != "yaml" or "as it is" in fence.directives:
        return
    if not is_topology(fence):
        assert is_object(fence)
        assert all("kind" in one for one in yaml.safe_load_all(fence.text)), fence.place
        return
    shown = yaml.safe_load(fence.text)
    whole = fence.text if "kind" in shown else yaml.safe_dump({**MINIMAL, **shown})
    try:
        parse(whole, name=fence.place)
    except TopologyErrors as error:
        pytest.fail(str(error))


def test_topology_fields_named_on_a_page_exist() -> None:
    """These are paths in backticks, such as `kubelet.port`, whose first word is a section of the file."""
    known = {path.removeprefix("lowers.") for path in topologypage.paths()}
    sections = {path.partition(".")[0] for path in known if "." in path}
    named_fields = {
        one for page in pages() for one in inline(read(page)) if re.fullmatch(r"[A-Za-z]+(\.[A-Za-z]+)+", one)
    }
    assert {one for one in named_fields if one.partition(".")[0] in sections and one not in known} == set()


@pytest.mark.parametrize(
    "module",
    [topologypage, commandspage, conditionspage, licencespage],
    ids=lambda module: module.__name__,
)
def test_generated_reference_pages_are_up_to_date(module: ModuleType) -> None:
    """They are made from models, the help of the program, the code and the packages."""
    text = module.DOCUMENT.read_text()
    assert module.rewritten(text) == text


def test_the_topology_reference_has_every_field_once() -> None:
    """Each field has its own row, also if several sections have one of that name."""
    text = topologypage.reference()
    rows = len(re.findall(r"^\| `\w+` \|", text, re.MULTILINE))
    defaults = sum(path.startswith("lowerDefaults.") for path in topologypage.paths())
    assert rows == len(topologypage.paths()) - defaults
    assert "| `port` | port, 1-65535 | `10350` |" in text
    assert "| `cooldown` | duration | `5m` |" in text
    assert "| `name` | name (DNS label) | *required* |" in text


def test_the_command_reference_has_every_option_and_exit_code() -> None:
    """The exit codes are those that the help names."""
    text = commandspage.reference()
    for name, command in commands().items():
        part = text.partition(f"## tensile {name}\n")[2].partition("\n## ")[0]
        own = options(command) - set(commandspage.EVERYWHERE)
        assert {word for word in own if f"`{word}" not in part} == set()
        spoken = {int(code) for code in re.findall(r"xits with (\d)", command.help or "")}
        assert spoken <= set(EXITS.get(name, {}))
    assert set(EXITS) <= set(commands())


def test_make_targets_named_on_a_page_exist() -> None:
    """Every `make TARGET` must be in the Makefile."""
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    used = {word for page in EVERY for word in re.findall(r"(?:^|`)make ([a-z]+)", read(page), re.MULTILINE)}
    assert {"demo", "setup", "test", "check"} <= used <= targets


def test_the_terms_of_the_glossary_are_used_in_the_sources() -> None:
    """A term that neither code, tests nor benches use should be removed."""
    sources = [path.read_text() for name in ("tensile", "tests", "bench") for path in (ROOT / name).rglob("*.py")]
    used = " ".join("\n".join(sources).lower().split())
    terms = re.findall(r"\*\*`?(.+?)`?\*\*", read("docs/glossary.md"))
    assert len(terms) > 40
    assert [word for word in terms if not re.search(rf"\b{re.escape(word.lower())}s?\b", used)] == []


def test_the_install_page_has_the_taint_of_virtual_nodes_and_its_toleration() -> None:
    """The pod on that page must tolerate the taint of a virtual node in a plain topology."""
    install = read("docs/install.md")
    topology = parse(apiserver.topology(["lower-a"], kubelet_port=23450, telemetry_port=23460))
    (taint,) = topology.lowers[0].node.taints
    assert f"`{taint.key}={taint.value}:{taint.effect}`" in install
    assert f'"tolerations": [{{"key": "{taint.key}", "operator": "Exists"}}]' in install


def test_the_newest_release_in_the_changelog_is_the_current_version() -> None:
    """Each release has a date, and they follow the unreleased changes from the newest to the oldest."""
    titles = re.findall(r"^## (.*)$", read("CHANGELOG.md"), re.MULTILINE)
    assert titles[0] == "[Unreleased]"
    found = [re.fullmatch(r"\[(\d+\.\d+\.\d+)\] - (\d{4}-\d\d-\d\d)", title) for title in titles[1:]]
    releases = [(date.fromisoformat(one[2]), Version(one[1])) for one in found if one]
    assert len(releases) == len(found)
    assert str(releases[0][1]) == tensile.__version__
    assert sorted(releases, reverse=True) == releases


def test_the_readme_has_at_most_100_lines_as_shown() -> None:
    """A line counts once per 120 shown characters, the picture counts as 20, and a folded section does not count."""
    text = re.sub(r"<details>.*?</details>", "", read("README.md"), flags=re.DOTALL)
    shown = re.sub(r"<!--.*?-->\n|^\|[-:|]+\|\n|\]\([^)]*\)|[*`]", "", text, flags=re.MULTILINE)
    lines = [20 if line.startswith("![") else max(1, math.ceil(len(line) / 120)) for line in shown.splitlines()]
    assert sum(lines) <= 100


def test_labels_and_annotations_named_on_a_page_exist_in_the_code() -> None:
    """Every `tensile-kube.io/NAME` on a page must be in the code."""
    code = "".join(path.read_text() for path in (ROOT / "tensile").rglob("*.py"))
    known = set(re.findall(r"(?:PREFIX \+ \"|\{PREFIX\}|tensile-kube\.io/)([A-Za-z][\w-]*)", code))
    named = {one.removeprefix(PREFIX) for page in pages() for one in inline(read(page)) if one.startswith(PREFIX)}
    assert {name for name in named if re.match(r"[\w-]+", name)[0] not in known} == set()
