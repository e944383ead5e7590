"""Hostile kubeconfigs that are generated: alias bombs, oversized ones, and encoded or binary content."""

from hostile_form import BESIDE, CANARY, SECRET, TOKEN, Hostile, Setting, data, written

_BOMB = "".join(f"l{n}: &l{n} [{', '.join([f'*l{n - 1}'] * 9)}]\n" for n in range(1, 12))
_KEY = f"-----BEGIN PRIVATE KEY-----\n{data(SECRET.encode())}\n-----END PRIVATE KEY-----\n"
_GARBAGE = b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"


def _file(content: bytes) -> Setting:
    """Return a function that writes a file beside the kubeconfig."""
    return lambda home: (home / "odd").write_bytes(content)


def _with_ca(content: bytes) -> str:
    """Return a kubeconfig with this content as its CA data."""
    return written(TOKEN, {"certificate-authority-data": data(content)})


_ODD = written({"tokenFile": "odd"})
_HALF = {"client-certificate-data": data(b"c")}

TEXTS = (
    Hostile("a bomb of aliases", f"l0: &l0 [x]\n{_BOMB}", "more than 10000 values"),
    Hostile("many aliases", "a: &a [x]\nb: [" + "*a, " * 101 + "]\n", "more than 100 aliases"),
    Hostile("deep nesting", "[" * 30_000, "nested deeper than 32 levels"),
    Hostile("deep mappings", "".join(f"{' ' * n}a:\n" for n in range(40)), "nested deeper than 32 levels"),
    Hostile("many entries", written(users=[{"name": "me", "user": {}} for _ in range(1001)]), "more than 1000 entries"),
    Hostile("a key twice", f"users: []\n{written()}", "the same key twice"),
    Hostile("several documents", f"{written()}---\n{written()}", "a second document; put one kubeconfig in one file"),
    Hostile("control characters", f"\x1b[2J{written()}", "U+001B is not allowed here"),
    Hostile("names without end", written(**{"current-context": "x" * 100_000}), "no context has this name"),
    Hostile("a token without end", written({"token": SECRET * 5000}), "at most 32768"),
    Hostile("a key with letters alone", written({f"client-key-data{'QUJD' * 99}": None}), "client-key-data... is not"),
    Hostile("too large", "a: " + "b" * (1 << 20), "larger than 1048576 bytes"),
    Hostile("a long server", written(TOKEN, server="https://" + "a" * 3000), "longer than 2048"),
    Hostile("tls-server-name without end", written(TOKEN, {"tls-server-name": "a." * 200}), "tls-server-name"),
)

ENCODED = (
    Hostile("half a pair", written(_HALF), "belong together"),
    Hostile(
        "no certificate in the pair",
        written({**_HALF, "client-key-data": data(SECRET.encode())}),
        "not a matching pair in PEM",
    ),
    Hostile("bad base64 as key", written({**_HALF, "client-key-data": f"*{SECRET}"}), "client-key-data is not base64"),
    Hostile("no PEM as CA", _with_ca(SECRET.encode()), "contains no certificate"),
    Hostile("other letters as CA", _with_ca("\u0442".encode()), "contains no certificate"),
    Hostile("a key as CA", _with_ca(_KEY.encode()), "contains no certificate"),
    Hostile("garbage within PEM", _with_ca(_GARBAGE), "contains no certificate"),
    Hostile(
        "a Secret with a certificate file",
        written({"client-certificate": f"HOME/{CANARY}", "client-key-data": data(b"k")}),
        "names a file",
        secret=True,
    ),
    Hostile(
        "a Secret with a key file", written({**_HALF, "client-key": f"HOME/{CANARY}"}), "names a file", secret=True
    ),
    Hostile(
        "a Secret with a CA file behind its data",
        written(TOKEN, {"certificate-authority": f"HOME/{CANARY}", "certificate-authority-data": data(b"x")}),
        "names a file",
        secret=True,
    ),
)

MATERIAL = (
    Hostile("a pipe as key", written({**_HALF, "client-key": "odd"}), "odd: not a file", BESIDE["pipe"]),
    Hostile("a huge token file", _ODD, "odd: larger than 1048576 bytes", _file(b"a" * (1 << 21)), ("odd",)),
    Hostile(
        "a token file of two lines", _ODD, "odd: contains no valid token", _file(f"a\n{SECRET}".encode()), ("odd",)
    ),
    Hostile("an empty token file", _ODD, "odd: contains no valid token", _file(b"\n"), ("odd",)),
    Hostile("a binary token file", _ODD, "odd: contains no valid token", _file(bytes(range(256))), ("odd",)),
    Hostile("a token file whose name has no end", written({"tokenFile": "x" * 5000}), "cannot be read"),
    Hostile(
        "a CA file without a certificate",
        written(TOKEN, {"certificate-authority": "odd"}),
        "contains no certificate",
        _file(SECRET.encode()),
        ("odd",),
    ),
    Hostile(
        "a certificate file without one",
        written({"client-certificate": "odd", "client-key": "odd"}),
        "not a matching pair in PEM",
        _file(SECRET.encode()),
        ("odd",),
    ),
)

ALL = (*TEXTS, *ENCODED, *MATERIAL)
