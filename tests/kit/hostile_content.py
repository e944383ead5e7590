"""Kubeconfigs that are bad as files or as text: bombs, pipes, what is too large, what is not what it says."""

import os
from pathlib import Path

from hostile_form import CANARY, SECRET, TOKEN, Hostile, Setting, data, written

_BOMB = "".join(f"l{n}: &l{n} [{', '.join([f'*l{n - 1}'] * 9)}]\n" for n in range(1, 12))
_TWO = [{"name": "here", "context": {"cluster": "there", "user": "me"}}] * 2
_KEY = f"-----BEGIN PRIVATE KEY-----\n{data(SECRET.encode())}\n-----END PRIVATE KEY-----\n"
_GARBAGE = b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"
_CLUSTER = {"name": "there", "cluster": {"server": "https://a"}}
_USER = {"name": "me", "user": TOKEN}


def _file(name: str, content: bytes) -> Setting:
    """Make what writes a file beside the kubeconfig."""
    return lambda home: (home / name).write_bytes(content)


def _fifo(home: Path) -> None:
    """Make a pipe that nobody writes."""
    os.mkfifo(home / "odd")


def _loop(home: Path) -> None:
    """Make a link to itself."""
    (home / "odd").symlink_to("odd")


def _dangling(home: Path) -> None:
    """Make a link to nothing."""
    (home / "odd").symlink_to("nowhere")


def _device(home: Path) -> None:
    """Make a link to a device without an end."""
    (home / "odd").symlink_to("/dev/zero")


def _folder(home: Path) -> None:
    """Make a folder."""
    (home / "odd").mkdir()


_ODD = written({"tokenFile": "odd"})
_ODD_CA = written(TOKEN, {"certificate-authority": "odd"})
_ODD_KEY = written({"client-certificate-data": data(b"c"), "client-key": "odd"})

TEXTS = (
    Hostile("a bomb of aliases", f"l0: &l0 [x]\n{_BOMB}", "more than 10000 values"),
    Hostile("many aliases", "a: &a [x]\nb: [" + "*a, " * 101 + "]\n", "more than 100 aliases"),
    Hostile("an alias of itself", "a: &a [*a]\n", "stands inside its own anchor"),
    Hostile("deep nesting", "[" * 30_000, "nested deeper than 32 levels"),
    Hostile("deep mappings", "".join(f"{' ' * n}a:\n" for n in range(40)), "nested deeper than 32 levels"),
    Hostile("many entries", written(users=[{"name": "me", "user": {}} for _ in range(1001)]), "more than 1000 entries"),
    Hostile("a tag that makes objects", "a: !!python/object/apply:os.system [id]\n", "a tag"),
    Hostile("a merge key", "<<: {}\n", "a merge key; write the fields out"),
    Hostile("a key twice", f"users: []\n{written()}", "the same key twice"),
    Hostile("several documents", f"{written()}---\n{written()}", "a second document; put one kubeconfig in one file"),
    Hostile("a zero byte", "\0", "U+0000 cannot stand here"),
    Hostile("control characters", f"\x1b[2J{written()}", "U+001B cannot stand here"),
    Hostile("no mapping", "- a\n", "no kubeconfig"),
    Hostile("nothing", "", "no kubeconfig"),
    Hostile("another kind", "apiVersion: v1\nkind: Secret\n", "expected kind Config"),
    Hostile("another version", written(apiVersion="v2"), "expected kind Config and apiVersion v1"),
    Hostile("bad YAML", "a: b: c", "not valid YAML"),
    Hostile("a context twice", written(contexts=_TWO), "contexts[0] and contexts[1] have one name"),
    Hostile("a cluster twice", written(clusters=[_CLUSTER, _CLUSTER]), "clusters[0] and clusters[1] have one name"),
    Hostile("a user twice", written(users=[_USER, _USER]), "users[0] and users[1] have one name"),
    Hostile("no current context", written(**{"current-context": ""}), "no current-context"),
    Hostile("no such context", written(contexts=[]), "current-context: no context of that name is defined (of 0)"),
    Hostile("no such user", written(users=[]), "contexts[0].context.user: no user of that name is defined (of 0)"),
    Hostile("no such cluster", written(clusters=[]), "contexts[0].context.cluster: no cluster of that name is defined"),
    Hostile("lists that are none", written(users={"me": TOKEN}), "no user of that name is defined"),
    Hostile("names without end", written(**{"current-context": "x" * 100_000}), "no context of that name"),
    Hostile(
        "names that rule a terminal", written(**{"current-context": "\x1b]0;owned\x07\nok"}), "no context of that name"
    ),
    Hostile("a user that is none", written(users=[{"name": "me", "user": "root"}]), "users[0].user: must be a mapping"),
    Hostile(
        "a token with a header behind it", written({"token": f"a\r\nX-Remote-User: {SECRET}"}), "token is not one line"
    ),
    Hostile("a token with a line folded", written({"token": f"a\n {SECRET}"}), "token is not one line"),
    Hostile("a token with a zero byte", written({"token": f"a\0{SECRET}"}), "token is not one line"),
    Hostile("a token of other letters", written({"token": f"\u0442{SECRET}"}), "token is not one line"),
    Hostile("a token without end", written({"token": SECRET * 5000}), "at most 32768"),
    Hostile("a token that is a number", written({"token": 12345}), "token must be text"),
    Hostile("bad base64 as CA", written(TOKEN, {"certificate-authority-data": f"%{SECRET}"}), "is not base64"),
    Hostile(
        "bad base64 as key",
        written({"client-certificate-data": data(b"c"), "client-key-data": f"*{SECRET}"}),
        "client-key-data is not base64",
    ),
    Hostile(
        "no PEM as CA", written(TOKEN, {"certificate-authority-data": data(SECRET.encode())}), "holds no certificate"
    ),
    Hostile(
        "other letters as CA",
        written(TOKEN, {"certificate-authority-data": data("\u0442".encode())}),
        "holds no certificate",
    ),
    Hostile("a key as CA", written(TOKEN, {"certificate-authority-data": data(_KEY.encode())}), "holds no certificate"),
    Hostile(
        "garbage within PEM", written(TOKEN, {"certificate-authority-data": data(_GARBAGE)}), "holds no certificate"
    ),
    Hostile("too large", "a: " + "b" * (1 << 20), "larger than 1048576 bytes"),
)

MATERIAL = (
    Hostile("a pipe as token", _ODD, "odd: not a file", _fifo),
    Hostile("a pipe as CA", _ODD_CA, "odd: not a file", _fifo),
    Hostile("a pipe as key", _ODD_KEY, "odd: not a file", _fifo),
    Hostile("a device as token", _ODD, "odd: not a file", _device),
    Hostile("a device as CA", _ODD_CA, "odd: not a file", _device),
    Hostile("a folder as token", _ODD, "odd: not a file", _folder),
    Hostile("a folder as CA", _ODD_CA, "odd: not a file", _folder),
    Hostile("a link to itself as token", _ODD, "odd: cannot be read", _loop),
    Hostile("a link to nothing as token", _ODD, "odd: cannot be read", _dangling),
    Hostile("the kernel's messages as token", written({"tokenFile": "/dev/kmsg"}), "not a file"),
    Hostile("a huge token file", _ODD, "odd: larger than 1048576 bytes", _file("odd", b"a" * (1 << 21)), ("odd",)),
    Hostile("a token file of two lines", _ODD, "odd: holds no token", _file("odd", f"a\n{SECRET}".encode()), ("odd",)),
    Hostile("an empty token file", _ODD, "odd: holds no token", _file("odd", b"\n"), ("odd",)),
    Hostile("a binary token file", _ODD, "odd: holds no token", _file("odd", bytes(range(256))), ("odd",)),
    Hostile("no token file", _ODD, "odd: cannot be read (No such file"),
    Hostile("a token file with a zero byte", written({"tokenFile": f"{CANARY}\0x"}), "zero byte"),
    Hostile("a token file whose name has no end", written({"tokenFile": "x" * 5000}), "cannot be read"),
    Hostile(
        "a CA file without a certificate", _ODD_CA, "holds no certificate", _file("odd", SECRET.encode()), ("odd",)
    ),
    Hostile(
        "a certificate file without one",
        written({"client-certificate": "odd", "client-key": "odd"}),
        "no pair in PEM",
        _file("odd", SECRET.encode()),
        ("odd",),
    ),
)

ALL = (*TEXTS, *MATERIAL)
