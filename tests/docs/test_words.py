"""What is written for users is true: links and anchors lead somewhere, commands and options exist, examples are valid.

And what is generated is as it would be generated now.
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
    """Return a page's text."""
    return (ROOT / page).read_text()


def every_fence() -> list[Fence]:
    """Return the fences of all pages."""
    return [fence for page in pages() for fence in fences(page, read(page))]


@pytest.mark.parametrize("page", EVERY)
def test_links_and_anchors_lead_somewhere(page: str) -> None:
    """Every relative link of a page, and the heading in it."""
    assert [link for link in links(read(page)) if broken(page, link)] == []


def broken(page: str, link: str) -> bool:
    """Report whether a link leads nowhere."""
    path, _, anchor = link.partition("#")
    target = (ROOT / page).parent / path if path else ROOT / page
    return not target.exists() or bool(anchor and anchor not in anchors(target.read_text()))


@pytest.mark.parametrize("page", EVERY)
def test_modules_that_are_named_are_there(page: str) -> None:
    """In the architecture above all: a module that was renamed is renamed there too."""
    named = re.findall(r"`((?:[a-z_]+/)*[a-z_]+\.py|(?:[a-z]+/)+)`", read(page))
    places = [ROOT, ROOT / "tensile", ROOT / "tests" / "docs"]
    assert [name for name in named if not any((at / name).exists() for at in places)] == []


def test_the_architecture_names_every_folder() -> None:
    """Whoever looks for a part finds it in the table."""
    folders = {path.parent.name for path in (ROOT / "tensile").glob("*/__init__.py")}
    assert {name for name in folders if f"`{name}/`" not in read("docs/architecture.md")} == set()


@pytest.mark.parametrize("page", EVERY)
def test_commands_and_options_exist(page: str) -> None:
    """Whether they stand in a block or in prose; a command of several words may be called by its first."""
    texts = [fence.text for fence in fences(page, read(page)) if fence.language == "sh"]
    found = [call for text in [*texts, *(f"`{one}`" for one in inline(read(page)))] for call in calls(text)]
    assert [call for call in found if unknown(call)] == []


def unknown(call: str) -> bool:
    """Report whether the program would not know what it is called with."""
    known = commands()
    words = call.partition("#")[0].partition(" -- ")[0].split()  # after it, the words are another program's
    if not words or words[0].isupper() or words[0] == "…":
        return False
    if words[0].startswith("-"):
        return words[0] not in commandspage.EVERYWHERE
    names = [name for name in known if name.split() == words[: len(name.split())]]
    if not names:
        return len(words) > 1 or not any(name.split()[0] == words[0] for name in known)
    spelled = {word.partition("=")[0] for word in words if re.match(r"--?[a-z]", word)}
    return not spelled <= options(known[names[0]])


def test_what_a_call_is_checked_for() -> None:
    """Commands, commands of two words, and options with and without a value."""
    assert not any(map(unknown, ("run -f topology.yaml", "run", "sandbox", "sandbox up --lowers=3", "--version")))
    assert all(map(unknown, ("walk", "sandbox sideways", "run --fast", "plan --drains x", "--verbose")))


def test_fences_are_of_known_languages() -> None:
    """A shell block under another name would not be run."""
    assert [one.place for one in every_fence() if one.language not in LANGUAGES] == []
    assert [one.place for one in every_fence() if one.language != "sh" and OF_SH & set(one.said)] == []


def test_every_comment_on_fences_is_used() -> None:
    """So that one that nobody needs any more goes."""
    used = {name for one in every_fence() for name in one.said}
    assert used <= DIRECTIVES
    assert {"not run", "runs on until", "ends with", "file", "printed", "given"} <= used


def test_shown_records_stand_in_the_files_that_they_are_from() -> None:
    """An example of what the engine does is one that a test compares with."""
    shown = [one for page in EVERY for one in fences(page, read(page)) if "recorded" in one.said]
    assert {one.page for one in shown} == {"CONTRIBUTING.md", "docs/howto/drift.md"}
    assert [one.place for one in shown if not is_recorded(one)] == []


def is_recorded(shown: Fence) -> bool:
    """Report whether all parts of a fence stand in its file, in whose Python sources long lines are broken."""
    text = read(shown.said["recorded"]).replace("\\\n", "")
    return all(part.strip("\n") in text for part in shown.text.split("\n…\n"))


def test_the_tests_that_contributors_are_told_to_run_exist() -> None:
    """A word after -k that no test has runs none, and says so in a line that is easily passed over."""
    told = re.findall(r"pytest (tests/\S+)(?: -k (\w+))?", read("CONTRIBUTING.md"))
    assert len(told) >= 3
    assert [(where, word) for where, word in told if not any(word in name for name in names_in(ROOT / where))] == []


def names_in(place: Path) -> list[str]:
    """Return the names of the tests of a file, or of the scenarios of a folder."""
    if place.is_dir():
        return [path.stem for path in place.glob("*.yaml")]
    return re.findall(r"def (test_\w+)", place.read_text())


@pytest.mark.parametrize("fence", every_fence(), ids=lambda one: one.place)
def test_yaml_is_something_that_is_tried(fence: Fence) -> None:
    """A topology or a part of one is valid; anything else is a file for the commands, or objects for an apiserver."""
    if fence.language != "yaml" or "as it is" in fence.said:
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


def test_fields_of_the_topology_that_are_named_exist() -> None:
    """A path in backticks, such as `kubelet.port`, whose first word is a section of the file."""
    known = {path.removeprefix("lowers.") for path in topologypage.paths()}
    sections = {path.partition(".")[0] for path in known if "." in path}
    words = {one for page in pages() for one in inline(read(page)) if re.fullmatch(r"[A-Za-z]+(\.[A-Za-z]+)+", one)}
    assert {one for one in words if one.partition(".")[0] in sections and one not in known} == set()


@pytest.mark.parametrize(
    "module",
    [topologypage, commandspage, conditionspage, licencespage],
    ids=lambda module: module.__name__,
)
def test_references_are_as_they_would_be_made_now(module: ModuleType) -> None:
    """They are made from models, the program's help, the code and the packages: a change of those is one there."""
    text = module.DOCUMENT.read_text()
    assert module.rewritten(text) == text


def test_the_topologys_reference_has_every_field_once() -> None:
    """Each with its words, also those that several sections have."""
    text = topologypage.reference()
    rows = len(re.findall(r"^\| `\w+` \|", text, re.MULTILINE))
    defaults = sum(path.startswith("lowerDefaults.") for path in topologypage.paths())
    assert rows == len(topologypage.paths()) - defaults
    assert "| `port` | port, 1-65535 | `10350` |" in text
    assert "| `cooldown` | duration | `5m` |" in text
    assert "| `name` | name (DNS label) | *required* |" in text


def test_the_commands_reference_has_every_option() -> None:
    """With the exit codes that the help speaks of."""
    text = commandspage.reference()
    for name, command in commands().items():
        part = text.partition(f"## tensile {name}\n")[2].partition("\n## ")[0]
        own = options(command) - set(commandspage.EVERYWHERE)
        assert {word for word in own if f"`{word}" not in part} == set()
        spoken = {int(code) for code in re.findall(r"xits with (\d)", command.help or "")}
        assert spoken <= set(EXITS.get(name, {}))
    assert set(EXITS) <= set(commands())


def test_the_readmes_make_targets_are_targets() -> None:
    """Every `make WORD` of a page is in the Makefile."""
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    used = {word for page in EVERY for word in re.findall(r"(?:^|`)make ([a-z]+)", read(page), re.MULTILINE)}
    assert {"demo", "setup", "test", "check"} <= used <= targets


def test_the_words_of_the_glossary_are_used() -> None:
    """A word that neither the program nor its tests and benches have any more is none of ours."""
    sources = [path.read_text() for name in ("tensile", "tests", "bench") for path in (ROOT / name).rglob("*.py")]
    used = " ".join("\n".join(sources).lower().split())
    words = re.findall(r"\*\*`?(.+?)`?\*\*", read("docs/glossary.md"))
    assert len(words) > 40
    assert [word for word in words if not re.search(rf"\b{re.escape(word.lower())}s?\b", used)] == []


def test_the_taint_and_the_pods_toleration_are_those_of_the_nodes() -> None:
    """The pod of the page for installation may run on a node that a plain topology makes."""
    install = read("docs/install.md")
    topology = parse(apiserver.topology(["lower-a"], kubelet_port=23450, telemetry_port=23460))
    (taint,) = topology.lowers[0].node.taints
    assert f"`{taint.key}={taint.value}:{taint.effect}`" in install
    assert f'"tolerations": [{{"key": "{taint.key}", "operator": "Exists"}}]' in install


def test_the_changelog_has_the_version_as_its_newest_release() -> None:
    """With its date, below what is not released yet; the releases of before follow, newest first."""
    titles = re.findall(r"^## (.*)$", read("CHANGELOG.md"), re.MULTILINE)
    assert titles[0] == "[Unreleased]"
    found = [re.fullmatch(r"\[(\d+\.\d+\.\d+)\] - (\d{4}-\d\d-\d\d)", title) for title in titles[1:]]
    releases = [(date.fromisoformat(one[2]), Version(one[1])) for one in found if one]
    assert len(releases) == len(found)
    assert str(releases[0][1]) == tensile.__version__
    assert sorted(releases, reverse=True) == releases


def test_the_readme_fits_two_screens() -> None:
    """A line of the source takes one for each 120 characters that are shown, and the picture 20; a fold takes one."""
    text = re.sub(r"<details>.*?</details>", "", read("README.md"), flags=re.DOTALL)
    shown = re.sub(r"<!--.*?-->\n|^\|[-:|]+\|\n|\]\([^)]*\)|[*`]", "", text, flags=re.MULTILINE)
    lines = [20 if line.startswith("![") else max(1, math.ceil(len(line) / 120)) for line in shown.splitlines()]
    assert sum(lines) <= 100


def test_marks_that_are_named_are_marks_of_the_engine() -> None:
    """Every `tensile-kube.io/NAME` stands somewhere in the code."""
    code = "".join(path.read_text() for path in (ROOT / "tensile").rglob("*.py"))
    known = set(re.findall(r"(?:PREFIX \+ \"|\{PREFIX\}|tensile-kube\.io/)([A-Za-z][\w-]*)", code))
    named = {one.removeprefix(PREFIX) for page in pages() for one in inline(read(page)) if one.startswith(PREFIX)}
    assert {name for name in named if re.match(r"[\w-]+", name)[0] not in known} == set()
