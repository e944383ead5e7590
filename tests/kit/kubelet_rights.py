"""The rights at the kubelet API, written by hand: paths, methods, identities and their grants.

The tests check a server with a real upper cluster against it, and the table in the documentation is written from it.

Write it with `PYTHONPATH=tests/kit .venv/bin/python -m kubelet_rights`.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from properties import THOROUGH

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "kubelet-api.md"
BEGIN, END = "<!-- rights -->", "<!-- end of rights -->"
NODE = "NODE"
ANOTHER = "another-node"
WEBSOCKET = "GET, WebSocket"
VERBS = {
    "GET": "get",
    WEBSOCKET: "get",
    "POST": "create",
    "PUT": "update",
    "PATCH": "patch",
    "DELETE": "delete",
    "HEAD": "",
}
"""The tested methods, and the verb that Kubernetes derives from each; HEAD has none."""

TLS, UNKNOWN, FORBIDDEN, ADMITTED = "no TLS", "401", "403", "admitted"


class Group(NamedTuple):
    """Paths that the same right opens: any one of these subresources of the node, with `verb` or the method's own."""

    title: str
    paths: tuple[str, ...]
    subresources: tuple[str, ...]
    verb: str = ""


METRICS_PAGES = ("resource", "cadvisor", "probes", "slis")
GROUPS = (
    Group("exec, attach, portForward, run", (
        "/exec/shop/web/main?command=id&output=1",
        "/attach/shop/web/main?output=1",
        "/portForward/shop/web",
        "/run/shop/web/main?cmd=id",
    ), ("proxy",), "create"),
    Group("containerLogs, and what is not listed here", (
        "/containerLogs/shop/web/main",
        "/debug/pprof/",
        "/cri/exec/token",
        "/nothing/there",
    ), ("proxy",)),
    Group("pods, runningpods", ("/pods", "/runningpods/"), ("pods", "proxy")),
    Group("healthz", ("/healthz",), ("healthz", "proxy")),
    Group("configz", ("/configz",), ("configz", "proxy")),
    Group("stats", ("/stats/summary",), ("stats",)),
    Group("metrics", ("/metrics", *(f"/metrics/{page}" for page in METRICS_PAGES)), ("metrics",)),
    Group("logs", ("/logs/", "/logs/syslog"), ("log",)),
    Group("checkpoint", ("/checkpoint/shop/web/main",), ("checkpoint",)),
    Group("statusz", ("/statusz",), ("statusz",)),
    Group("flagz", ("/flagz",), ("configz",)),
)  # fmt: skip


class Grant(NamedTuple):
    """A right on subresources of the node ("*": all of them, with all verbs if it is the verb too)."""

    verb: str
    subresources: tuple[str, ...]

    def covers(self, verb: str, subresource: str) -> bool:
        """Report whether this right allows a verb on a subresource."""
        return self.verb in {"*", verb} and (subresource in self.subresources or "*" in self.subresources)


class Someone(NamedTuple):
    """An identity: its title, its credential, the answer if it has no right, and its grants.

    `shows` is "", "token", "bad token", "certificate", "bad certificate" or "ended certificate"; `on` names the node
    that the rights are for, "" for all; a `role` that every cluster has replaces rules of the test.
    """

    title: str
    shows: str
    refusal: str = FORBIDDEN
    grants: tuple[Grant, ...] = ()
    on: str = ""
    role: str = ""
    user: str = ""
    group: str = ""


ADMIN = ("proxy", "stats", "log", "metrics", "pods", "healthz", "configz")
SOMEONE = (
    Someone("no certificate, no token", "", UNKNOWN),
    Someone("a token that the upper does not know", "bad token", UNKNOWN),
    Someone("a certificate of another authority", "bad certificate", TLS),
    Someone("a certificate that has ended", "ended certificate", TLS),
    Someone("a kubelet of a real node", "certificate", user="system:node:real", group="system:nodes"),
    Someone("a service account without rights", "token"),
    Someone("`get nodes`", "certificate", grants=(Grant("get", ("",)),)),
    Someone("`*` on `nodes/proxy` of another node", "certificate", grants=(Grant("*", ("proxy",)),), on=ANOTHER),
    Someone("`get nodes/proxy`", "certificate", grants=(Grant("get", ("proxy",)),)),
    Someone("`create nodes/proxy`", "token", grants=(Grant("create", ("proxy",)),)),
    Someone("`get nodes/metrics, nodes/stats`", "token", grants=(Grant("get", ("metrics", "stats")),)),
    Someone(
        "`get nodes/pods, nodes/healthz, nodes/configz, nodes/log`",
        "token",
        grants=(Grant("get", ("pods", "healthz", "configz", "log")),),
    ),
    Someone("`system:kubelet-api-admin`, as the apiserver has it", "certificate", grants=(Grant("*", ADMIN),),
            role="system:kubelet-api-admin"),
    Someone("`system:masters`", "certificate", grants=(Grant("*", ("*",)),), role="-", group="system:masters"),
)  # fmt: skip


class Case(NamedTuple):
    """One request, and its expected outcome."""

    someone: Someone
    group: Group
    path: str
    method: str
    outcome: str


def cases() -> Iterator[Case]:
    """Yield every path with every method for every identity; two methods per further path unless thorough."""
    for someone in SOMEONE:
        for group in GROUPS:
            for method in VERBS:
                outcome = expected(someone, group, method)
                paths = group.paths if THOROUGH or method in {"GET", "POST"} else group.paths[:1]
                yield from (Case(someone, group, path, method, outcome) for path in paths)


def expected(someone: Someone, group: Group, method: str) -> str:
    """Return the expected outcome of a request."""
    verb = group.verb or VERBS[method]
    rights = someone.grants if someone.on in {"", NODE} else ()
    if any(grant.covers(verb, each) for grant in rights for each in group.subresources):
        return ADMITTED
    return someone.refusal


def table() -> str:
    """Return the tables: the rights that paths require, and the methods that each identity may use on them."""
    lines = ["| path | any of these on the Node | verb |", "|---|---|---|"]
    lines += [f"| {group.title} | {_names(group)} | {group.verb or 'by method'} |" for group in GROUPS]
    titles = " | ".join(group.title.split(",")[0] for group in GROUPS)
    lines += ["", f"| who | {titles} |", "|---" * (len(GROUPS) + 1) + "|"]
    lines += [f"| {each.title} | {' | '.join(_cell(each, group) for group in GROUPS)} |" for each in SOMEONE]
    return "\n".join(lines)


def _names(group: Group) -> str:
    return ", ".join(f"`nodes/{each}`" for each in group.subresources)


def _cell(someone: Someone, group: Group) -> str:
    admitted = [method for method in VERBS if expected(someone, group, method) == ADMITTED]
    if len(admitted) == len(VERBS):
        return "all"
    return ", ".join(method for method in admitted if method != WEBSOCKET) or someone.refusal


def rewritten(text: str) -> str:
    """Return a text with the tables between its marks."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{table()}\n{END}{after}"


if __name__ == "__main__":
    DOCUMENT.write_text(rewritten(DOCUMENT.read_text()))
