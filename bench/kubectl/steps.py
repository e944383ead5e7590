"""The commands, in the order in which they are given: everything that ends at a kubelet, and what shows its pods.

`{node}` is the name of the node, `{tmp}` a folder, `{image}` an image that the node has. A command that changes
something comes before one that shows it; what takes its time is waited for by steps of their own, which are not
compared.
"""

from dataclasses import dataclass

from bench.kubectl.cast import PORTS, everything, overrides

TREE = "tree"
"""The form of an answer that is one YAML or JSON document: compared value by value."""
LINES = "lines"
"""That of lines in any order."""
EVENTS = "events"
"""That of a text that ends with a table of events, whose order is that of their seconds."""


@dataclass(frozen=True)
class Step:
    """One command; `words` are kubectl's arguments as a shell takes them.

    Attributes:
        stdin: what is piped in.
        held: the pipe stays open until this is in the answer: with its input, a stream may end too early.
        spdy: whether kubectl speaks SPDY and no WebSocket.
        form: how the answer is compared: "", TREE, LINES or EVENTS.
        typed: what is typed after what is shown, on a terminal; None: there is no terminal.
        fetched: of a port-forward: which of its ports are called, by their place.
        until: a wait: given again until this regular expression is found in the answer, and not compared.
    """

    words: str
    stdin: str = ""
    held: str = ""
    spdy: bool = False
    form: str = ""
    typed: tuple[tuple[str, str], ...] | None = None
    fetched: tuple[int, ...] = ()
    until: str = ""

    @property
    def title(self) -> str:
        """What it is called in results."""
        return f"{self.words} (SPDY)" if self.spdy else self.words


def _until(words: str, shown: str) -> Step:
    return Step(words, until=shown)


def _proxied(*paths: str, form: str = "") -> tuple[Step, ...]:
    """Ask the node's kubelet itself, by way of the apiserver."""
    return tuple(Step(f"get --raw /api/v1/nodes/{{node}}/proxy/{path}", form=form) for path in paths)


_SHELL = (("# ", "echo to $((40+2))\n"), ("to 42", "exit 6\n"))
_PRESENT = "--image-pull-policy=IfNotPresent"
_DEBUG = f"debug web --image={{image}} {_PRESENT}"
_REASONS = "get events --field-selector=involvedObject.name=%s -o jsonpath={.items[*].reason}"
_STATE = "get pod %s -o jsonpath={.status.containerStatuses[*].%s}"

MADE = (
    Step("apply -f -", stdin=everything()),
    _until("wait --for=condition=Ready pod/web pod/asks pod/typed --timeout=60s", "typed"),
    Step("wait --for=condition=Ready pod/web --timeout=60s"),
    Step("rollout status deployment/fleet --timeout=60s"),
    Step("wait --for=condition=Complete job/once --timeout=60s"),
    _until(_STATE % ("sick", "lastState.terminated.reason"), "Error"),
    _until(_STATE % ("pulls", "state.waiting.reason"), "ErrImageNeverPull"),
    _until(_STATE % ("half", "state"), "terminated"),
    _until("get pod done -o jsonpath={.status.phase}", "Succeeded"),
    _until("get pod failed -o jsonpath={.status.phase}", "Failed"),
    _until(_REASONS % "web", "(Started.*){3}"),
    _until(_REASONS % "sick", "Unhealthy"),
    _until(_REASONS % "failed", "Started"),
    _until(_REASONS % "done", "Started"),
    _until(_REASONS % "pulls", "ErrImageNeverPull"),
)

PODS = (
    Step("get pods web typed asks done failed half pulls"),
    Step("get pods web typed asks done failed half -o wide"),
    Step("get pods -l app=web --show-labels"),
    Step("get pods -o name --field-selector=status.phase=Running"),
    Step("get pods --field-selector=spec.nodeName={node},status.phase=Failed"),
    Step("get pods web half -o custom-columns=NAME:.metadata.name,READY:.status.containerStatuses[*].ready"),
    Step("get pod web -o yaml", form=TREE),
    Step("get pod done -o yaml", form=TREE),
    Step("get pod failed -o yaml", form=TREE),
    Step("get pod pulls -o json", form=TREE),
    Step("get pod sick -o jsonpath={.status.containerStatuses[0].lastState.terminated.exitCode}"),
    Step("describe pod web", form=EVENTS),
    Step("describe pod done", form=EVENTS),
    Step("describe pod failed", form=EVENTS),
    Step("describe pod half", form=EVENTS),
    Step("describe pod pulls", form=EVENTS),
    Step("events --for pod/web", form=EVENTS),
    Step("get deployment fleet -o wide"),
    Step("get job once"),
    Step("top pod web"),
)

LOGS = (
    Step("logs web"),
    Step("logs web -c side"),
    Step("logs web -c first"),
    Step("logs web --all-containers", form=LINES),
    Step("logs web --all-containers --prefix", form=LINES),
    Step("logs web -c main --tail=2"),
    Step("logs web -c main --tail=0"),
    Step("logs web -c main --limit-bytes=5"),
    Step("logs web -c main --since=1h"),
    Step("logs web -c main --since-time=2200-01-01T00:00:00Z"),
    Step("logs web -c main --timestamps"),
    Step("logs -l app=web -c main --prefix"),
    Step("logs -f done"),
    Step("logs failed"),
    Step("logs job/once"),
    Step("logs deployment/fleet"),
    Step("logs web -c nosuch"),
    Step("logs nosuch"),
    Step("logs web -c main --previous"),
    Step("logs pulls"),
)

EXEC = (
    Step("exec web -- echo hello"),
    Step("exec web -c side -- hostname"),
    Step("exec web -c main -- sh -c 'echo out; echo err >&2; exit 3'"),
    Step("exec web -c main -- sh -c 'echo out; echo err >&2; exit 3'", spdy=True),
    Step("exec -i web -c main -- cat", stdin="piped in\n"),
    Step("exec -i web -c main -- cat", stdin="piped in\n", spdy=True),
    Step("exec -it web -c main -- sh -c 'tty; exit 7'", typed=()),
    Step("exec -it web -c main -- sh", typed=_SHELL),
    Step("exec -it web -c main -- sh", typed=_SHELL, spdy=True),
    Step("exec web -c main -- env", form=LINES),
    Step("exec web -c main -- cat /colours/sky /secrets/key"),
    Step("exec web -c main -- ls /var/run/secrets/kubernetes.io/serviceaccount"),
    Step("exec web -c main -- /no/such"),
    Step("exec web -c main -- /no/such", spdy=True),
    Step("exec web -c nosuch -- true"),
    Step("exec nosuch -- true"),
    Step("exec done -- true"),
    Step("exec pulls -- true"),
    Step("exec half -c gone -- true"),
    Step("exec half -c gone -- true", spdy=True),
    Step("exec deployment/fleet -- cat /proc/1/comm"),
)

ATTACH = (
    Step("attach -i -q asks", stdin="abc\n", held="got abc"),
    _until(_STATE % ("asks", "restartCount"), "1"),
    Step("logs asks --previous"),
    Step("get pod asks -o jsonpath={.status.containerStatuses[0].lastState.terminated.exitCode}"),
    Step("attach -it typed", typed=(("ready", "abc\n"),)),
    _until(_STATE % ("typed", "restartCount"), "1"),
    Step("attach done"),
    Step("attach half -c gone"),
    Step("attach web -c nosuch"),
)

COPY = (
    Step("cp {tmp}/sent web:/scratch/sent -c main"),
    Step("exec web -c main -- md5sum /scratch/sent"),
    Step("cp web:/scratch/sent {tmp}/back -c main"),
    Step("cp {tmp}/tree web:/scratch/tree -c main"),
    Step("exec web -c main -- find /scratch/tree -type f"),
    Step("cp {tmp}/nosuch web:/scratch/none -c main"),
)

_PORTS = " ".join(f":{port}" for port in PORTS)
FORWARD = (
    Step(f"port-forward --address=127.0.0.1 pod/web {_PORTS}", fetched=(0, 1, 0)),
    Step(f"port-forward --address=127.0.0.1 pod/web {_PORTS}", fetched=(0, 1, 0), spdy=True),
    Step("port-forward --address=127.0.0.1 pod/web :7009", fetched=(0,)),
    Step("port-forward pod/pulls :7001"),
    Step("port-forward pod/nosuch :7001"),
)

DEBUG = (
    Step(
        f"{_DEBUG} -i -q -c probe -- sh -c 'read line; wget -q -O - http://127.1:7001/; exit 5'",
        stdin="go\n",
        held="page",
    ),
    _until("get pod web -o jsonpath={.status.ephemeralContainerStatuses[*].state.terminated.exitCode}", "5"),
    Step("logs web -c probe"),
    Step(f"{_DEBUG} -i -q -c sees --target=main -- sh -c 'read line; cat /proc/1/comm'", stdin="go\n", held="sleep"),
    Step(f"{_DEBUG} -it -q -c shell -- sh", typed=_SHELL),
    _until("get pod web -o jsonpath={.status.ephemeralContainerStatuses[*].state.terminated.exitCode}", "5 0 6"),
    Step("get pod web -o jsonpath={.status.ephemeralContainerStatuses[*].state.terminated.exitCode}"),
    Step("describe pod web", form=EVENTS),
    Step(f"{_DEBUG} -c probe -- true"),
    Step(f"{_DEBUG} -c none --target=nosuch -- true"),
    Step(f"debug web --copy-to=copied --container=main {_PRESENT} -- sleep 100000"),
    _until("get pod copied -o jsonpath={.status.phase}", "Running"),
    Step("exec copied -c main -- cat /proc/1/comm"),
    Step(f"debug node/{{node}} --image={{image}} {_PRESENT} -- sh -c 'ls -d /host/proc'"),
    _until("get pods --field-selector=status.phase=Succeeded -o name", "node-debugger"),
)

NODES = (
    Step("get nodes {node}"),
    Step("get nodes {node} -o wide"),
    Step("get nodes {node} -o yaml", form=TREE),
    Step("describe node {node}", form=EVENTS),
    Step("top node {node}"),
    Step("label node {node} shelf=top"),
    Step("annotate node {node} note=this"),
    Step("taint node {node} full=yes:NoSchedule"),
    Step("cordon {node}"),
    Step("get nodes {node} -L shelf"),
    Step("uncordon {node}"),
    Step("taint node {node} full-"),
    Step("annotate node {node} note-"),
    Step("label node {node} shelf-"),
    Step("drain {node} --dry-run=server --force --delete-emptydir-data --pod-selector=app=web"),
    *_proxied("pods", "runningpods/", form=TREE),
    *_proxied("healthz", "stats/summary", "metrics/resource", "configz", "logs/", "nosuch"),
    *_proxied("containerLogs/shop/web/side", "containerLogs/shop/web/nosuch", "containerLogs/shop/nosuch/main"),
)

CHANGES = (
    Step("label pod web shelf=top"),
    Step("annotate pod web note=this"),
    Step("set image pod/half main=busybox:1"),
    Step(f"run hello --image={{image}} {_PRESENT} --restart=Never --overrides='{overrides()}' -- echo hi"),
    _until("get pod hello -o jsonpath={.status.phase}", "Succeeded"),
    Step("logs hello"),
    Step("scale deployment/fleet --replicas=2"),
    Step("rollout status deployment/fleet --timeout=60s"),
    Step("rollout restart deployment/fleet"),
    _until("rollout status deployment/fleet --timeout=60s", "successfully"),
    Step("get replicasets", form=LINES),
    Step("expose deployment/fleet --port=80"),
    Step("delete pod web --timeout=60s"),
    Step("get pod web"),
    Step("delete pod done failed --timeout=60s"),
    Step("delete pod half --force --grace-period=0 --timeout=60s"),
    Step("delete pod nosuch"),
)

STEPS = (*MADE, *PODS, *LOGS, *EXEC, *ATTACH, *COPY, *FORWARD, *DEBUG, *NODES, *CHANGES)
