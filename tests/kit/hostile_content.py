"""Hostile kubeconfigs that are generated: alias bombs, oversized ones, and encoded or binary content."""

from hostile_form import BESIDE, CANARY, SECRET, TOKEN, HostileKubeconfig, PrepareFolder, data, kubeconfig_text

_BOMB = "".join(f"l{n}: &l{n} [{', '.join([f'*l{n - 1}'] * 9)}]\n" for n in range(1, 12))
_KEY = f"-----BEGIN PRIVATE KEY-----\n{data(SECRET.encode())}\n-----END PRIVATE KEY-----\n"
_GARBAGE = b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"


def _file(content: bytes) -> PrepareFolder:
    """Return a function that writes a file beside the kubeconfig."""
    return lambda home: (home / "odd").write_bytes(content)


def _with_ca(content: bytes) -> str:
    """Return a kubeconfig with this content as its CA data."""
    return kubeconfig_text(TOKEN, {"certificate-authority-data": data(content)})


_ODD = kubeconfig_text({"tokenFile": "odd"})
_HALF = {"client-certificate-data": data(b"c")}

TEXTS = (
    HostileKubeconfig("a bomb of aliases", f"l0: &l0 [x]\n{_BOMB}", "more than 10000 values"),
    HostileKubeconfig("many aliases", "a: &a [x]\nb: [" + "*a, " * 101 + "]\n", "more than 100 aliases"),
    HostileKubeconfig("deep nesting", "[" * 30_000, "nested deeper than 32 levels"),
    HostileKubeconfig("deep mappings", "".join(f"{' ' * n}a:\n" for n in range(40)), "nested deeper than 32 levels"),
    HostileKubeconfig(
        "many entries",
        kubeconfig_text(users=[{"name": "me", "user": {}} for _ in range(1001)]),
        "more than 1000 entries",
    ),
    HostileKubeconfig("a key twice", f"users: []\n{kubeconfig_text()}", "the same key twice"),
    HostileKubeconfig(
        "several documents",
        f"{kubeconfig_text()}---\n{kubeconfig_text()}",
        "a second document; put one kubeconfig in one file",
    ),
    HostileKubeconfig("control characters", f"\x1b[2J{kubeconfig_text()}", "U+001B is not allowed here"),
    HostileKubeconfig(
        "names without end", kubeconfig_text(**{"current-context": "x" * 100_000}), "no context has this name"
    ),
    HostileKubeconfig("a token without end", kubeconfig_text({"token": SECRET * 5000}), "at most 32768"),
    HostileKubeconfig(
        "a key with letters alone",
        kubeconfig_text({f"client-key-data{'QUJD' * 99}": None}),
        "client-key-data... is not",
    ),
    HostileKubeconfig("too large", "a: " + "b" * (1 << 20), "larger than 1048576 bytes"),
    HostileKubeconfig("a long server", kubeconfig_text(TOKEN, server="https://" + "a" * 3000), "longer than 2048"),
    HostileKubeconfig(
        "tls-server-name without end", kubeconfig_text(TOKEN, {"tls-server-name": "a." * 200}), "tls-server-name"
    ),
)

ENCODED = (
    HostileKubeconfig("half a pair", kubeconfig_text(_HALF), "belong together"),
    HostileKubeconfig(
        "no certificate in the pair",
        kubeconfig_text({**_HALF, "client-key-data": data(SECRET.encode())}),
        "not a matching pair in PEM",
    ),
    HostileKubeconfig(
        "bad base64 as key",
        kubeconfig_text({**_HALF, "client-key-data": f"*{SECRET}"}),
        "client-key-data is not base64",
    ),
    HostileKubeconfig("no PEM as CA", _with_ca(SECRET.encode()), "contains no certificate"),
    HostileKubeconfig("other letters as CA", _with_ca("\u0442".encode()), "contains no certificate"),
    HostileKubeconfig("a key as CA", _with_ca(_KEY.encode()), "contains no certificate"),
    HostileKubeconfig("garbage within PEM", _with_ca(_GARBAGE), "contains no certificate"),
    HostileKubeconfig(
        "a Secret with a certificate file",
        kubeconfig_text({"client-certificate": f"HOME/{CANARY}", "client-key-data": data(b"k")}),
        "names a file",
        secret=True,
    ),
    HostileKubeconfig(
        "a Secret with a key file",
        kubeconfig_text({**_HALF, "client-key": f"HOME/{CANARY}"}),
        "names a file",
        secret=True,
    ),
    HostileKubeconfig(
        "a Secret with a CA file behind its data",
        kubeconfig_text(TOKEN, {"certificate-authority": f"HOME/{CANARY}", "certificate-authority-data": data(b"x")}),
        "names a file",
        secret=True,
    ),
)

MATERIAL = (
    HostileKubeconfig(
        "a pipe as key", kubeconfig_text({**_HALF, "client-key": "odd"}), "odd: not a file", BESIDE["pipe"]
    ),
    HostileKubeconfig("a huge token file", _ODD, "odd: larger than 1048576 bytes", _file(b"a" * (1 << 21)), ("odd",)),
    HostileKubeconfig(
        "a token file of two lines", _ODD, "odd: contains no valid token", _file(f"a\n{SECRET}".encode()), ("odd",)
    ),
    HostileKubeconfig("an empty token file", _ODD, "odd: contains no valid token", _file(b"\n"), ("odd",)),
    HostileKubeconfig("a binary token file", _ODD, "odd: contains no valid token", _file(bytes(range(256))), ("odd",)),
    HostileKubeconfig(
        "a token file whose name has no end", kubeconfig_text({"tokenFile": "x" * 5000}), "cannot be read"
    ),
    HostileKubeconfig(
        "a CA file without a certificate",
        kubeconfig_text(TOKEN, {"certificate-authority": "odd"}),
        "contains no certificate",
        _file(SECRET.encode()),
        ("odd",),
    ),
    HostileKubeconfig(
        "a certificate file without one",
        kubeconfig_text({"client-certificate": "odd", "client-key": "odd"}),
        "not a matching pair in PEM",
        _file(SECRET.encode()),
        ("odd",),
    ),
)

ALL = (*TEXTS, *ENCODED, *MATERIAL)
