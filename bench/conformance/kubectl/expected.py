"""The expected differences between a virtual node and a real one, which docs/kubectl.md shows.

A line that only one of the two nodes has must match one of them for that command; any other line is a defect.
"""

from bench.conformance.kubectl.differences import Expected

_POD = r"^(get pod \S+ -o (yaml|json)|get --raw .*/proxy/pods)$"
_ITEM = r"(items\[\S+\]\.)?"
_DESCRIBED = r"^describe pods? "
_NODE = r"^(get nodes \S+ -o yaml|describe node )"
_CONDITION = r"MemoryPressure|DiskPressure|PIDPressure|Ready"
_NO_LIMIT = r"\.limits\.memory: 9007199254740988Ki"
_OURS = r"LowerReachable|LowerSchedulable|InTopology|DeletionsBlocked"

OF_PODS = (
    Expected(
        _POD + "|" + _DESCRIBED,
        "A pod tolerates `not-ready` and `unreachable` without a limit, so its generation is higher by one",
        "an engine that is down, or an unreachable cluster, must not cost its pods",
        real=rf"{_ITEM}spec\.tolerations\[.*\]\.tolerationSeconds: 300"
        rf"|{_ITEM}(metadata\.g|status\.observedG)eneration: [1-8]"
        rf"|{_ITEM}status\.conditions\[(?!PodScheduled)\S+\]\.observedGeneration: [1-8]"
        r"|(Tolerations:)?\s+node\.kubernetes\.io/(not-ready|unreachable):NoExecute op=Exists for AGE",
        virtual=rf"{_ITEM}(metadata\.g|status\.observedG)eneration: [2-9]"
        rf"|{_ITEM}status\.conditions\[\S+\]\.observedGeneration: [2-9]"
        r"|(Tolerations:)?\s+node\.kubernetes\.io/(not-ready|unreachable):NoExecute op=Exists",
    ),
    Expected(
        _POD,
        "The condition `PodScheduled` has no `observedGeneration`",
        "the upper cluster sets it, and the engine does not change it; a kubelet rewrites it",
        real=rf"{_ITEM}status\.conditions\[PodScheduled\]\.observedGeneration: \d",
    ),
    Expected(
        _POD + "|" + _DESCRIBED,
        "A pod has the condition `tensile-kube.io/LowerScheduled`",
        "it shows whether the lower scheduler found a node; the upper scheduler only chose the lower cluster",
        virtual=rf"{_ITEM}status\.conditions\[tensile-kube\.io/LowerScheduled\]\..*"
        r"|  tensile-kube\.io/LowerScheduled True",
    ),
    Expected(
        r"^(describe pods?|events) ",
        "A second `Scheduled` event names the pod's real node",
        "events of the lower pod are copied, including that of the lower scheduler",
        virtual=r"\s*AGE Normal Scheduled Pod/\S+ Successfully assigned \S+ to lower-a-node-1"
        r"|  Normal Scheduled AGE default-scheduler Successfully assigned \S+ to lower-a-node-1",
    ),
    Expected(
        "^get events ",
        "The host of an event of a pod's kubelet is the real node's name",
        "the event occurred there",
        real=r"\w+ kubelet NODE spec\.containers\{main\}",
        virtual=r"\w+ kubelet lower-a-node-1 spec\.containers\{main\}",
    ),
    Expected(
        r"^(get pod \S+ -o yaml|get --raw .*/proxy/pods|get pods .* -o wide|describe pods? )",
        "A pod that has ended has no IP",
        "the lower cluster assigns its address to another pod; upper Services and policies must not confuse the two",
        real=rf"{_ITEM}status\.podIPs?(\[.*\]\.ip)?: IP"
        r"|(done|failed) 0/1 (Completed|Error) 0 AGE IP .*|IPs?:( IP)?|  IP: IP",
        virtual=r"(done|failed) 0/1 (Completed|Error) 0 AGE <none> .*|IP:|IPs: <none>",
    ),
    Expected(
        _POD,
        "A pod without resources has no `status.resources`. On a real node it can be empty. With cgroups of version 1, "
        "it sometimes has the kernel's number for unlimited memory",
        "an empty status is not written; a kubelet reports that number if it checks again while the pod runs",
        real=rf"{_ITEM}status\.resources(: \{{\}}|{_NO_LIMIT})",
        virtual=rf"{_ITEM}status\.resources{_NO_LIMIT}",
    ),
)

OF_NODES = (
    Expected(
        r"^(get nodes |describe node )",
        "The role `agent`, and labels and annotations of tensile",
        "they distinguish a virtual node from a real one: its owner, its lower cluster, and how it is reached",
        real=r"NODE (Ready|Ready,SchedulingDisabled) <none> .*|Roles: <none>"
        r"|metadata\.annotations\.volumes\.kubernetes\.io/.*|\s+volumes\.kubernetes\.io/controller-managed.*",
        virtual=r"NODE (Ready|Ready,SchedulingDisabled) agent .*|Roles: agent"
        r"|(metadata\.annotations\.|\s+)tensile-kube\.io/[a-z-]+: .*"
        r"|(metadata\.labels\.|\s+)(clusterID|type|kubernetes\.io/role|tensile-kube\.io/owner"
        r"|node\.kubernetes\.io/exclude-from-external-load-balancers)[:=].*",
    ),
    Expected(
        _NODE,
        "A taint and a provider id",
        "only pods that tolerate the taint are scheduled there (`node.taints`); the id keeps cloud controllers away",
        real=r"spec: \{\}|Taints: <none>",
        virtual=r"spec\.(providerID|taints\[virtual-kubelet\.io/provider\]\.\w+): .*|ProviderID: tensile-kube://NODE"
        r"|Taints: virtual-kubelet\.io/provider=k8s:NoSchedule",
    ),
    Expected(
        _NODE,
        "Conditions `LowerReachable`, `LowerSchedulable`, `InTopology`, `DeletionsBlocked`; other messages "
        "in the standard conditions",
        "only real nodes have pressure; an unreachable lower cluster is not a dead node",
        real=rf"status\.conditions\[({_CONDITION})\]\.message: .*|  ({_CONDITION}) .*",
        virtual=rf"status\.conditions\[({_CONDITION})\]\.message: .*|  ({_CONDITION}) .*"
        rf"|status\.conditions\[({_OURS})\]\..*|  ({_OURS}) .*",
    ),
    Expected(
        _NODE,
        "No machine id, no boot id, no list of images; another kubelet port",
        "they describe one machine, and a virtual node represents many; each node has its own port",
        real=r"status\.images\[.*|status\.nodeInfo\.(bootID|machineID|systemUUID): .+"
        r"|  (Machine ID|System UUID|Boot ID): .+"
        r"|status\.daemonEndpoints\.kubeletEndpoint\.Port: 10250",
        virtual=r"status\.nodeInfo\.(bootID|machineID|systemUUID):|  (Machine ID|System UUID|Boot ID):"
        r"|status\.daemonEndpoints\.kubeletEndpoint\.Port: \d+",
    ),
    Expected(
        _NODE,
        "No address of type `Hostname`",
        "an apiserver prefers it to the IP address by default, and no DNS server knows the name of a virtual node",
        real=r"status\.addresses\[Hostname\]\.(address|type): .*|  Hostname: NODE",
    ),
)

_ABSENT = r"error: Error from server \(NotFound\): the server could not find the requested resource|exit code 1"

OF_ROUTES = (
    Expected(
        "/proxy/pods$",
        "`/pods` has the pods as stored in the upper cluster, with their metadata",
        "the engine has no other view; a kubelet returns its own view, with earlier finalizers",
        real=r"items\[\S+\]\.metadata\.(managedFields|annotations\.kubernetes\.io/config\.).*"
        r"|items\[once-RANDOM\]\.metadata\.finalizers\[0\]: batch\.kubernetes\.io/job-tracking",
        virtual=r"items\[\S+\]\.(metadata\.managedFields.*|apiVersion: v1|kind: Pod)",
    ),
    Expected(
        "/proxy/runningpods/$",
        "`/runningpods/` has no images, and no pods without a running container",
        "it is computed from pod statuses; the engine has no access to the runtimes of lower nodes",
        real=r"items\[\S+\]\.spec\.containers\[\S+\]\.image: .*|items\[(pulls|node-debugger\S*)\]\..*",
    ),
    Expected(
        "/proxy/(stats/summary|metrics/resource)$",
        "`/stats/summary` and `/metrics/resource` return 404 if the lower cluster has no metrics API",
        "it is the source of usage data ([metrics.md](metrics.md)). The bench's lower cluster has none; its real "
        "kubelet has no disk of its own, so it reports no file system",
        real=r".*",
        virtual=_ABSENT,
    ),
    Expected(
        "/proxy/(configz|logs/)$",
        "`/configz` and `/logs/` return 404",
        "a virtual node has no kubelet configuration and no machine log; those of lower nodes are not for the caller",
        real=r".*",
        virtual=_ABSENT,
    ),
)

EXPECTED = (*OF_PODS, *OF_NODES, *OF_ROUTES)
