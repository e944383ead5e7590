"""The commands, in the order in which they run: those that end at a kubelet, and those that show its pods.

`{node}` is the name of the node, `{tmp}` a folder, `{image}` an image that the node has. A command that changes
something precedes one that shows the change; separate steps, which are not compared, wait until slow changes have
happened. A container that ends right after its last line of output may lose that line, on any node; it therefore waits
a second.
"""

from bench.conformance.kubectl.objects import PORTS, everything, overrides
from bench.conformance.kubectl.steps import EVENTS, LINES, TREE, Step


def _until(arguments_text: str, shown: str) -> Step:
    return Step(arguments_text, until=shown)


def _logged(pod: str, *reasons: str) -> tuple[Step, ...]:
    """Wait for events of a pod: in the upper cluster they appear after its status."""
    return tuple(_until(_REASONS % pod, reason) for reason in reasons)


def _proxied(*paths: str, form: str = "") -> tuple[Step, ...]:
    """Send requests to the node's kubelet itself, through the apiserver."""
    return tuple(Step(f"get --raw /api/v1/nodes/{{node}}/proxy/{path}", form=form) for path in paths)


_SHELL = (("# ", "echo to $((40+2))\n"), ("to 42", "sleep 1; exit 6\n"))
_PRESENT = "--image-pull-policy=IfNotPresent"
_DEBUG_NODE = f"debug node/{{node}} --image={{image}} {_PRESENT}"
_DEBUG = f"debug web --image={{image}} {_PRESENT}"
_REASONS = "get events --field-selector=involvedObject.name=%s -o jsonpath={.items[*].reason}"
_STATE = "get pod %s -o jsonpath={.status.containerStatuses[*].%s}"
_TORN_DOWN = "get pod %s -o \"jsonpath={.status.conditions[?(@.type=='PodReadyToStartContainers')].status}\""
"""False after the kubelet has removed the sandbox of a pod that ended, which takes a while."""

_FIELDS = "REASON:.reason,BY:.source.component,ON:.source.host,OF:.involvedObject.fieldPath"

MADE = (
    Step("apply -f -", stdin=everything()),
    _until("wait --for=condition=Ready pod/web pod/asks pod/typed --timeout=60s", "typed"),
    Step("wait --for=condition=Ready pod/web --timeout=60s"),
    Step("rollout status deployment/fleet --timeout=60s"),
    Step("wait --for=condition=Complete job/once --timeout=60s"),
    _until(_STATE % ("sick", "lastState.terminated.reason"), "Error"),
    _until(_STATE % ("sick", "ready"), "true"),
    _until(_STATE % ("pulls", "state.waiting.reason"), "ErrImageNeverPull"),
    _until(_STATE % ("half", "state"), "terminated"),
    _until("get pod done -o jsonpath={.status.phase}", "Succeeded"),
    _until("get pod failed -o jsonpath={.status.phase}", "Failed"),
    _until(_TORN_DOWN % "done", "False"),
    _until(_TORN_DOWN % "failed", "False"),
    *_logged("web", "(Started.*){3}"),
    *_logged("sick", "Unhealthy", "Killing"),
    *_logged("asks", "Started"),
    *_logged("failed", "Started"),
    *_logged("done", "Started"),
    *_logged("half", "(Started.*){2}"),
    *_logged("pulls", "ErrImageNeverPull", "Failed"),
)

PODS = (
    Step("get pods"),
    Step("get all"),
    Step("get pods web typed asks done failed half pulls sick"),
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
    Step("describe pod sick", form=EVENTS),
    Step("describe pods -l app=asks", form=EVENTS),
    Step("describe pod nosuch"),
    Step("events --for pod/web", form=EVENTS),
    Step("events --for pod/pulls --types=Warning", form=EVENTS),
    Step(f"get events --field-selector=involvedObject.name=done,type=Normal -o custom-columns={_FIELDS}", form=LINES),
    Step("wait --for=jsonpath={.status.phase}=Succeeded pod/done --timeout=5s"),
    Step("wait --for=condition=Ready pod/pulls --timeout=1s"),
    Step("get deployment fleet -o wide"),
    Step("describe deployment fleet", form=EVENTS),
    Step("get job once"),
    Step("describe job once", form=EVENTS),
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
    Step("logs -l app=web --all-containers --prefix --tail=1", form=LINES),
    Step("logs -f done"),
    Step("logs -f web -c first"),
    Step("logs sick --previous"),
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
    Step("cp web:/scratch/tree {tmp}/tree-back -c main"),
    Step("cp nosuch:/scratch/sent {tmp}/none"),
)

_PORTS = " ".join(f":{port}" for port in PORTS)
FORWARD = (
    Step(f"port-forward --address=127.0.0.1 pod/web {_PORTS}", fetched=(0, 1, 0)),
    Step(f"port-forward --address=127.0.0.1 pod/web {_PORTS}", fetched=(0, 1, 0), spdy=True),
    Step("port-forward --address=127.0.0.1 pod/web :7009", fetched=(0,)),
    Step("port-forward pod/pulls :7001"),
    Step("port-forward pod/done :7001"),
    Step("port-forward pod/nosuch :7001"),
)

DEBUG = (
    Step(
        f"{_DEBUG} -i -q -c probe -- sh -c 'read line; wget -q -O - http://127.1:7001/; sleep 1; exit 5'",
        stdin="go\n",
        held="page",
    ),
    _until("get pod web -o jsonpath={.status.ephemeralContainerStatuses[*].state.terminated.exitCode}", "5"),
    Step("logs web -c probe"),
    Step(
        f"{_DEBUG} -i -q -c sees --target=main -- sh -c 'read line; cat /proc/1/comm; sleep 1'",
        stdin="go\n",
        held="sleep",
    ),
    Step(f"{_DEBUG} -it -q -c shell -- sh", typed=_SHELL),
    _until("get pod web -o jsonpath={.status.ephemeralContainerStatuses[*].state.terminated.exitCode}", "5 0 6"),
    Step("get pod web -o jsonpath={.status.ephemeralContainerStatuses[*].state.terminated.exitCode}"),
    *_logged("web", "(Started.*){6}"),
    Step("describe pod web", form=EVENTS),
    Step(f"{_DEBUG} -c probe -- true"),
    Step(f"{_DEBUG} -c none --target=nosuch -- true"),
    Step(f"debug web --copy-to=copied --container=main {_PRESENT} -- sleep 100000"),
    _until("get pod copied -o jsonpath={.status.phase}", "Running"),
    Step("exec copied -c main -- cat /proc/1/comm"),
    Step(f"{_DEBUG_NODE} -- sh -c 'ls -d /host/proc'"),
    _until("get pods --field-selector=status.phase=Succeeded -o name", "node-debugger"),
    Step(
        f"{_DEBUG_NODE} -i -q -- sh -c 'read line; ls -d /host/proc; sleep 1; exit 4'",
        stdin="go\n",
        held="/host/proc",
    ),
    _until("get pods --field-selector=status.phase=Failed -o name", "node-debugger"),
    Step(f"debug node/nosuch --image={{image}} {_PRESENT} -- true"),
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
    Step("drain {node} --pod-selector=app=fleet --timeout=60s"),
    Step("uncordon {node}"),
    _until("rollout status deployment/fleet --timeout=60s", "successfully"),
    Step("get deployment fleet"),
)

CHANGES = (
    Step("label pod web shelf=top"),
    Step("annotate pod web note=this"),
    Step("set image pod/half main=busybox:1"),
    Step(f"run hello --image={{image}} {_PRESENT} --restart=Never --overrides='{overrides()}' -- echo hi"),
    _until("get pod hello -o jsonpath={.status.phase}", "Succeeded"),
    Step("logs hello"),
    Step(
        f"run ask --rm -i -q --image={{image}} {_PRESENT} --restart=Never --overrides='{overrides()}' -- "
        "sh -c 'read line; echo got $line; sleep 1; exit 3'",
        stdin="abc\n",
        held="got abc",
    ),
    Step("get pod ask"),
    Step("scale deployment/fleet --replicas=2"),
    Step("rollout status deployment/fleet --timeout=60s"),
    Step("rollout restart deployment/fleet"),
    _until("rollout status deployment/fleet --timeout=60s", "successfully"),
    Step("get replicasets", form=LINES),
    Step("rollout history deployment/fleet"),
    Step("rollout undo deployment/fleet"),
    _until("rollout status deployment/fleet --timeout=60s", "successfully"),
    Step("rollout pause deployment/fleet"),
    Step("rollout resume deployment/fleet"),
    Step("expose deployment/fleet --port=80"),
    Step("scale deployment/fleet --replicas=0"),
    _until("get deployment fleet -o jsonpath={.status.replicas}end", "^end"),
    _until("get pods -l app=fleet -o name", "^$"),
    Step("get pods -l app=fleet"),
    Step("delete pod web --timeout=60s"),
    Step("get pod web"),
    Step("delete pod done failed --timeout=60s"),
    Step("delete pod half --force --grace-period=0 --timeout=60s"),
    Step("get pod half"),
    Step("delete pod asks --grace-period=2 --timeout=60s"),
    Step("delete pod typed --now --timeout=60s"),
    Step("delete pod sick --wait=false"),
    Step("wait --for=delete pod/sick --timeout=60s"),
    Step("delete job once --cascade=foreground --timeout=60s"),
    Step("get pods -l batch.kubernetes.io/job-name=once"),
    Step("delete pods -l app=pulls --timeout=60s"),
    Step("delete pod nosuch"),
    Step("delete pod nosuch --ignore-not-found"),
)

STEPS = (*MADE, *PODS, *LOGS, *EXEC, *ATTACH, *COPY, *FORWARD, *DEBUG, *NODES, *CHANGES)
