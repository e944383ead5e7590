"""Kubeconfigs whose user or cluster asks for what no configuration of others may have: programs, files, detours."""

from hostile_form import CANARY, SECRET, TOKEN, Hostile, data, plugin, runnable, written

_PAIR = {"client-certificate-data": data(b"x"), "client-key-data": data(SECRET.encode())}

PROGRAMS = (
    Hostile("exec, not allowed", written(plugin()), "--allow-exec-plugins", runnable),
    Hostile("exec by a bare name", written(plugin("plugin")), "give its absolute path", runnable, trusted=True),
    Hostile("exec by a relative path", written(plugin("./plugin")), "absolute path", runnable, trusted=True),
    Hostile("exec that climbs", written(plugin("HOME/x/../plugin")), "absolute path", runnable, trusted=True),
    Hostile(
        "exec without a command",
        written({"exec": {"apiVersion": plugin()["exec"]["apiVersion"]}}),
        "absolute",
        trusted=True,
    ),
    Hostile("exec with a line break", written(plugin("/bin/sh\n-c")), "absolute path", trusted=True),
    Hostile("exec of a folder", written(plugin("/usr/bin")), "is no file", trusted=True),
    Hostile(
        "exec of an old form",
        written(plugin(apiVersion="client.authentication.k8s.io/v1alpha1")),
        "apiVersion must be",
        runnable,
        trusted=True,
    ),
    Hostile(
        "exec that wants a person", written(plugin(interactiveMode="Always")), "nobody is there", runnable, trusted=True
    ),
    Hostile(
        "exec with unknown keys", written(plugin(shell="sh -c")), "exec.shell is not known", runnable, trusted=True
    ),
    Hostile(
        "exec with arguments as one text",
        written(plugin(args="-c x")),
        "exec.args must be a list",
        runnable,
        trusted=True,
    ),
    Hostile(
        "exec with a bad variable",
        written(plugin(env=[{"name": "A=B", "value": SECRET}])),
        "exec.env[0].name names no variable",
        runnable,
        trusted=True,
    ),
    Hostile(
        "exec with arguments that are no texts",
        written(plugin(args=["-c", 5])),
        "exec.args[1] must be text",
        runnable,
        trusted=True,
    ),
    Hostile(
        "exec with a zero byte in an argument",
        written(plugin(args=[f"{SECRET}\0"])),
        "exec.args[0] has a zero byte",
        runnable,
        trusted=True,
    ),
    Hostile(
        "exec with more in a variable",
        written(plugin(env=[{"name": "A", "value": "b", "valueFrom": SECRET}])),
        "exec.env[0].value... is not known",
        runnable,
        trusted=True,
    ),
    Hostile(
        "exec with a variable without a value",
        written(plugin(env=[{"name": "A"}])),
        "exec.env[0].value is missing",
        runnable,
        trusted=True,
    ),
    Hostile(
        "exec with cluster info said as text",
        written(plugin(provideClusterInfo="yes")),
        "exec.provideClusterInfo must be true or false",
        runnable,
        trusted=True,
    ),
    Hostile(
        "exec with another mode",
        written(plugin(interactiveMode=SECRET)),
        "exec.interactiveMode must be 'Never' or 'IfAvailable'",
        runnable,
        trusted=True,
    ),
    Hostile(
        "exec without a form of its answer",
        written({"exec": {"command": "HOME/plugin"}}),
        "exec.apiVersion is missing: write client.authentication.k8s.io/v1 or client.authentication.k8s.io/v1beta1",
        runnable,
        trusted=True,
    ),
    Hostile("exec as a text", written({"exec": "HOME/plugin"}), "must be a mapping", runnable, trusted=True),
    Hostile("exec in a Secret", written(plugin()), "exec plugins are refused in a Secret", runnable, secret=True),
    Hostile(
        "exec of nonsense in a Secret", written({"exec": ["HOME/plugin"]}), "refused in a Secret", runnable, secret=True
    ),
    Hostile(
        "cmd-path",
        written({"auth-provider": {"name": "gcp", "config": {"cmd-path": "HOME/plugin", "cmd-args": "x"}}}),
        "auth-provider is refused",
        runnable,
        trusted=True,
    ),
    Hostile(
        "cmd-path of its own",
        written({**TOKEN, "cmd-path": "HOME/plugin"}),
        "cmd-path is not known",
        runnable,
        trusted=True,
    ),
    Hostile("auth-provider oidc", written({**TOKEN, "auth-provider": {"name": "oidc"}}), "auth-provider is refused"),
    Hostile("auth-provider in a Secret", written({"auth-provider": {"name": "gcp"}}), "auth-provider", secret=True),
)

FILES = (
    Hostile(
        "a Secret with a CA file",
        written(TOKEN, {"certificate-authority": f"HOME/{CANARY}"}),
        "names a file",
        secret=True,
    ),
    Hostile(
        "a Secret with a certificate file",
        written({"client-certificate": f"HOME/{CANARY}", "client-key-data": data(b"k")}),
        "names a file",
        secret=True,
    ),
    Hostile(
        "a Secret with a key file",
        written({"client-certificate-data": data(b"c"), "client-key": f"HOME/{CANARY}"}),
        "names a file",
        secret=True,
    ),
    Hostile("a Secret with a token file", written({"tokenFile": f"HOME/{CANARY}"}), "names a file", secret=True),
    Hostile(
        "a Secret with a token file behind a token",
        written({**TOKEN, "tokenFile": f"HOME/{CANARY}"}),
        "names a file",
        secret=True,
    ),
    Hostile(
        "a Secret with a CA file behind its data",
        written(TOKEN, {"certificate-authority": f"HOME/{CANARY}", "certificate-authority-data": data(b"x")}),
        "names a file",
        secret=True,
    ),
    Hostile(
        "a Secret with the pod's token",
        written({"tokenFile": "/var/run/secrets/kubernetes.io/serviceaccount/token"}),
        "in a Secret everything must be inline",
        secret=True,
    ),
    Hostile("a Secret with a relative file", written({"tokenFile": CANARY}), "names a file", secret=True),
)

DETOURS = (
    Hostile("http", written(TOKEN, server="http://127.0.0.1:6443"), "must begin with https://"),
    Hostile("no scheme", written(TOKEN, server="127.0.0.1:6443"), "must begin with https://"),
    Hostile("a file as server", written(TOKEN, server="file:///etc/passwd"), "must begin with https://"),
    Hostile("a socket as server", written(TOKEN, server="unix:///run/x.sock"), "must begin with https://"),
    Hostile("an unknown scheme", written(TOKEN, server="gopher://a:70/"), "must begin with https://"),
    Hostile("a space before the scheme", written(TOKEN, server=" https://a"), "must begin with https://"),
    Hostile("proxy-url", written(TOKEN, {"proxy-url": f"http://u:{SECRET}@proxy:3128"}), "proxy-url is refused"),
    Hostile(
        "proxy-url in a Secret", written(TOKEN, {"proxy-url": "socks5://proxy"}), "proxy-url is refused", secret=True
    ),
    Hostile(
        "no check of the server",
        written(TOKEN, {"insecure-skip-tls-verify": True}),
        "insecure-skip-tls-verify is refused",
    ),
    Hostile(
        "no check, said as text",
        written(TOKEN, {"insecure-skip-tls-verify": "yes"}),
        "insecure-skip-tls-verify is refused",
    ),
    Hostile("no check in a Secret", written(TOKEN, {"insecure-skip-tls-verify": True}), "is refused", secret=True),
    Hostile("a user in the server", written(TOKEN, server=f"https://admin:{SECRET}@a:6443"), "user name or password"),
    Hostile(
        "a password in an http server",
        written(TOKEN, server=f"http://admin:{SECRET}@a:6443"),
        "must begin with https://",
    ),
    Hostile("a host behind an at", written(TOKEN, server=f"https://good.example\\@{SECRET}"), "user name or password"),
    Hostile("a query in the server", written(TOKEN, server=f"https://a?token={SECRET}"), "no plain address"),
    Hostile("a fragment in the server", written(TOKEN, server="https://a#b"), "no plain address"),
    Hostile("a backslash in the server", written(TOKEN, server="https://a\\b"), "no plain address"),
    Hostile(
        "a line break in the server", written(TOKEN, server="https://a\r\nX-Remote-User: admin"), "no plain address"
    ),
    Hostile("a tab in the server", written(TOKEN, server="https://a\t.example"), "no plain address"),
    Hostile("letters that are none of ASCII", written(TOKEN, server="https://ex\u0430mple"), "no plain address"),
    Hostile("an IPv6 zone", written(TOKEN, server="https://[fe80::1%25eth0]:6443"), "IPv6 zone"),
    Hostile("an escaped path", written(TOKEN, server="https://a/%2e%2e/b"), "an escape"),
    Hostile("a path that climbs", written(TOKEN, server="https://a/k8s/../../b"), "dots for a step"),
    Hostile("no host", written(TOKEN, server="https://"), "no plain address"),
    Hostile("no server", written(TOKEN, server=""), "has no server"),
    Hostile("port 0", written(TOKEN, server="https://a:0"), "server has port 0"),
    Hostile("port 70000", written(TOKEN, server="https://a:70000"), "server has port 70000"),
    Hostile("a port that is none", written(TOKEN, server="https://a:https"), "no plain address"),
    Hostile("the cloud's metadata", written(TOKEN, server="https://169.254.169.254"), "link-local"),
    Hostile("the cloud's metadata in IPv6", written(TOKEN, server="https://[::ffff:169.254.169.254]"), "link-local"),
    Hostile("the cloud's metadata as a number", written(TOKEN, server="https://2852039166"), "no host that is"),
    Hostile("the cloud's metadata in hex", written(TOKEN, server="https://0xa9.0xfe.0xa9.0xfe"), "no host that is"),
    Hostile("an address in short", written(TOKEN, server="https://127.1"), "no host that is"),
    Hostile("every address", written(TOKEN, server="https://0.0.0.0:6443"), "unspecified"),
    Hostile("a long server", written(TOKEN, server="https://" + "a" * 3000), "longer than 2048"),
    Hostile("a label too long", written(TOKEN, server=f"https://{'a' * 64}.example"), "no host that is"),
    Hostile("tls-server-name with a line break", written(TOKEN, {"tls-server-name": "a\r\nb"}), "tls-server-name"),
    Hostile("tls-server-name for all", written(TOKEN, {"tls-server-name": "*"}), "tls-server-name"),
    Hostile("tls-server-name as a URL", written(TOKEN, {"tls-server-name": "https://a"}), "tls-server-name"),
    Hostile("tls-server-name without end", written(TOKEN, {"tls-server-name": "a." * 200}), "tls-server-name"),
    Hostile("as", written({**TOKEN, "as": "system:admin"}), "as is refused: impersonation"),
    Hostile("as-uid", written({**TOKEN, "as-uid": "0"}), "as-uid is refused"),
    Hostile("as-groups", written({**TOKEN, "as-groups": ["system:masters"]}), "as-groups is refused"),
    Hostile("as-user-extra", written({**TOKEN, "as-user-extra": {"a": ["b"]}}), "as-user-extra is refused"),
    Hostile("a password", written({"username": "admin", "password": SECRET}), "username is refused"),
    Hostile("an unknown key of the user", written({**TOKEN, "Token": SECRET}), "Token is not known"),
    Hostile("an unknown key of the cluster", written(TOKEN, {"skip-tls": True}), "skip-tls is not known"),
    Hostile("a token without its blank", written({f"token:{SECRET}": None}), "token... is not known"),
    Hostile("a token that became the key", written({**TOKEN, SECRET: None}), "... is not known"),
    Hostile("a key with letters alone", written({f"client-key-data{'QUJD' * 99}": None}), "client-key-data... is not"),
    Hostile("an unknown key that hides", written(TOKEN, {"a\x1b[2Jb\u202e": True}), "a... is not known"),
    Hostile("no credential", written({}), "has no credential"),
    Hostile("half a pair", written({"client-certificate-data": data(b"c")}), "belong together"),
    Hostile("no certificate in the pair", written(_PAIR), "no pair in PEM"),
)

ALL = (*PROGRAMS, *FILES, *DETOURS)
