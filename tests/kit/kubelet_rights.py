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
OTHER_NODE = "another-node"
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


class RightsGroup(NamedTuple):
    """Paths that the same right opens: any one of these subresources of the node, with `verb` or the method's own."""

    title: str
    paths: tuple[str, ...]
    subresources: tuple[str, ...]
    verb: str = ""


METRICS_PAGES = ("resource", "cadvisor", "probes", "slis")
GROUPS = (
    RightsGroup("exec, attach, portForward, run", (
        "/exec/shop/web/main?command=id&output=1",
        "/attach/shop/web/main?output=1",
        "/portForward/shop/web",
        "/run/shop/web/main?cmd=id",
    ), ("proxy",), "create"),
    RightsGroup("containerLogs, and what is not listed here", (
        "/containerLogs/shop/web/main",
        "/debug/pprof/",
        "/cri/exec/token",
        "/nothing/there",
    ), ("proxy",)),
    RightsGroup("pods, runningpods", ("/pods", "/runningpods/"), ("pods", "proxy")),
    RightsGroup("healthz", ("/healthz",), ("healthz", "proxy")),
    RightsGroup("configz", ("/configz",), ("configz", "proxy")),
    RightsGroup("stats", ("/stats/summary",), ("stats",)),
    RightsGroup("metrics", ("/metrics", *(f"/metrics/{page}" for page in METRICS_PAGES)), ("metrics",)),
    RightsGroup("logs", ("/logs/", "/logs/syslog"), ("log",)),
    RightsGroup("checkpoint", ("/checkpoint/shop/web/main",), ("checkpoint",)),
    RightsGroup("statusz", ("/statusz",), ("statusz",)),
    RightsGroup("flagz", ("/flagz",), ("configz",)),
)  # fmt: skip


class Grant(NamedTuple):
    """A right on subresources of the node ("*": all of them, with all verbs if it is the verb too)."""

    verb: str
    subresources: tuple[str, ...]

    def covers(self, verb: str, subresource: str) -> bool:
        """Report whether this right allows a verb on a subresource."""
        return self.verb in {"*", verb} and (subresource in self.subresources or "*" in self.subresources)


class Caller(NamedTuple):
    """An identity: its title, its credential, the answer if it has no right, and its grants.

    `credential` is "", "token", "bad token", "certificate", "bad certificate" or "ended certificate"; `node` names the
    node that the rights are for, "" for all; a `role` that every cluster has replaces rules of the test.
    """

    title: str
    credential: str
    refusal: str = FORBIDDEN
    grants: tuple[Grant, ...] = ()
    node: str = ""
    role: str = ""
    user: str = ""
    group: str = ""


ADMIN = ("proxy", "stats", "log", "metrics", "pods", "healthz", "configz")
CALLERS = (
    Caller("no certificate, no token", "", UNKNOWN),
    Caller("a token that the upper does not know", "bad token", UNKNOWN),
    Caller("a certificate of another authority", "bad certificate", TLS),
    Caller("a certificate that has ended", "ended certificate", TLS),
    Caller("a kubelet of a real node", "certificate", user="system:node:real", group="system:nodes"),
    Caller("a service account without rights", "token"),
    Caller("`get nodes`", "certificate", grants=(Grant("get", ("",)),)),
    Caller("`*` on `nodes/proxy` of another node", "certificate", grants=(Grant("*", ("proxy",)),), node=OTHER_NODE),
    Caller("`get nodes/proxy`", "certificate", grants=(Grant("get", ("proxy",)),)),
    Caller("`create nodes/proxy`", "token", grants=(Grant("create", ("proxy",)),)),
    Caller("`get nodes/metrics, nodes/stats`", "token", grants=(Grant("get", ("metrics", "stats")),)),
    Caller(
        "`get nodes/pods, nodes/healthz, nodes/configz, nodes/log`",
        "token",
        grants=(Grant("get", ("pods", "healthz", "configz", "log")),),
    ),
    Caller("`system:kubelet-api-admin`, as the apiserver has it", "certificate", grants=(Grant("*", ADMIN),),
            role="system:kubelet-api-admin"),
    Caller("`system:masters`", "certificate", grants=(Grant("*", ("*",)),), role="-", group="system:masters"),
)  # fmt: skip


class RightsCase(NamedTuple):
    """One request, and its expected outcome."""

    caller: Caller
    group: RightsGroup
    path: str
    method: str
    outcome: str


def cases() -> Iterator[RightsCase]:
    """Yield every path with every method for every identity; two methods per further path unless thorough."""
    for someone in CALLERS:
        for group in GROUPS:
            for method in VERBS:
                outcome = expected(someone, group, method)
                paths = group.paths if THOROUGH or method in {"GET", "POST"} else group.paths[:1]
                yield from (RightsCase(someone, group, path, method, outcome) for path in paths)


def expected(caller: Caller, group: RightsGroup, method: str) -> str:
    """Return the expected outcome of a request."""
    verb = group.verb or VERBS[method]
    rights = caller.grants if caller.node in {"", NODE} else ()
    if any(grant.covers(verb, each) for grant in rights for each in group.subresources):
        return ADMITTED
    return caller.refusal


def table() -> str:
    """Return the tables: the rights that paths require, and the methods that each identity may use on them."""
    lines = ["| path | any of these on the Node | verb |", "|---|---|---|"]
    lines += [f"| {group.title} | {_names(group)} | {group.verb or 'by method'} |" for group in GROUPS]
    titles = " | ".join(group.title.split(",")[0] for group in GROUPS)
    lines += ["", f"| who | {titles} |", "|---" * (len(GROUPS) + 1) + "|"]
    lines += [f"| {each.title} | {' | '.join(_cell(each, group) for group in GROUPS)} |" for each in CALLERS]
    return "\n".join(lines)


def _names(group: RightsGroup) -> str:
    return ", ".join(f"`nodes/{each}`" for each in group.subresources)


def _cell(caller: Caller, group: RightsGroup) -> str:
    admitted = [method for method in VERBS if expected(caller, group, method) == ADMITTED]
    if len(admitted) == len(VERBS):
        return "all"
    return ", ".join(method for method in admitted if method != WEBSOCKET) or caller.refusal


def rewritten(text: str) -> str:
    """Return a text with the tables between its marks."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{table()}\n{END}{after}"


if __name__ == "__main__":
    DOCUMENT.write_text(rewritten(DOCUMENT.read_text()))
