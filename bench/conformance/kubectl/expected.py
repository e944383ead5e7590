"""The differences between a virtual node and a real one that are as they should be: what docs/kubectl.md shows.

A line that only one of the two says has to be in it for that command; anything else has broken something.
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
        "A pod tolerates `not-ready` and `unreachable` without an end, and its generation is higher by one for it",
        "an engine that is down, or a cluster that is out of reach, must not cost its pods",
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
        "it is the upper cluster's own word, which stays as it is; a kubelet writes it again",
        real=rf"{_ITEM}status\.conditions\[PodScheduled\]\.observedGeneration: \d",
    ),
    Expected(
        _POD + "|" + _DESCRIBED,
        "A pod has the condition `tensile-kube.io/LowerScheduled`",
        "whether the lower's scheduler found room: the upper one has only chosen the lower",
        virtual=rf"{_ITEM}status\.conditions\[tensile-kube\.io/LowerScheduled\]\..*"
        r"|  tensile-kube\.io/LowerScheduled True",
    ),
    Expected(
        r"^(describe pods?|events) ",
        "A second `Scheduled` event says which real node took the pod",
        "events of the lower pod come up, that of the lower's scheduler too",
        virtual=r"\s*AGE Normal Scheduled Pod/\S+ Successfully assigned \S+ to lower-a-node-1"
        r"|  Normal Scheduled AGE default-scheduler Successfully assigned \S+ to lower-a-node-1",
    ),
    Expected(
        "^get events ",
        "The host of an event of a pod's kubelet is the real node's name",
        "that is where it happened",
        real=r"\w+ kubelet NODE spec\.containers\{main\}",
        virtual=r"\w+ kubelet lower-a-node-1 spec\.containers\{main\}",
    ),
    Expected(
        r"^(get pod \S+ -o yaml|get --raw .*/proxy/pods|get pods .* -o wide|describe pods? )",
        "A pod that has ended has no IP",
        "the lower gives its address to another pod, which Services and policies above must not take for it",
        real=rf"{_ITEM}status\.podIPs?(\[.*\]\.ip)?: IP"
        r"|(done|failed) 0/1 (Completed|Error) 0 AGE IP .*|IPs?:( IP)?|  IP: IP",
        virtual=r"(done|failed) 0/1 (Completed|Error) 0 AGE <none> .*|IP:|IPs: <none>",
    ),
    Expected(
        _POD,
        "A pod without resources has no `status.resources`, where a real one may have an empty one, or with cgroups of "
        "version 1, at times the kernel's number for no limit of memory",
        "a status that says nothing is not written; a kubelet tells that number if it looks again while the pod runs",
        real=rf"{_ITEM}status\.resources(: \{{\}}|{_NO_LIMIT})",
        virtual=rf"{_ITEM}status\.resources{_NO_LIMIT}",
    ),
)

OF_NODES = (
    Expected(
        r"^(get nodes |describe node )",
        "The role `agent`, and labels and annotations of ours",
        "they tell a virtual node from a real one: whose it is, which lower is behind it, and how it is reached",
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
        "only what tolerates virtual nodes is put there (`node.taints`); the id keeps cloud controllers away",
        real=r"spec: \{\}|Taints: <none>",
        virtual=r"spec\.(providerID|taints\[virtual-kubelet\.io/provider\]\.\w+): .*|ProviderID: tensile-kube://NODE"
        r"|Taints: virtual-kubelet\.io/provider=k8s:NoSchedule",
    ),
    Expected(
        _NODE,
        "Conditions `LowerReachable`, `LowerSchedulable`, `InTopology`, `DeletionsBlocked`; other words "
        "in a node's own",
        "pressure is a matter of the nodes below; a lower that is out of reach is no dead node",
        real=rf"status\.conditions\[({_CONDITION})\]\.message: .*|  ({_CONDITION}) .*",
        virtual=rf"status\.conditions\[({_CONDITION})\]\.message: .*|  ({_CONDITION}) .*"
        rf"|status\.conditions\[({_OURS})\]\..*|  ({_OURS}) .*",
    ),
    Expected(
        _NODE,
        "No machine id, no boot id, no list of images; the kubelet's port is another one",
        "they are of one machine, and behind a virtual node there are many; each node has a port of its own",
        real=r"status\.images\[.*|status\.nodeInfo\.(bootID|machineID|systemUUID): .+"
        r"|  (Machine ID|System UUID|Boot ID): .+"
        r"|status\.daemonEndpoints\.kubeletEndpoint\.Port: 10250",
        virtual=r"status\.nodeInfo\.(bootID|machineID|systemUUID):|  (Machine ID|System UUID|Boot ID):"
        r"|status\.daemonEndpoints\.kubeletEndpoint\.Port: \d+",
    ),
)

_ABSENT = r"error: Error from server \(NotFound\): the server could not find the requested resource|exit code 1"

OF_ROUTES = (
    Expected(
        "/proxy/pods$",
        "`/pods` has the pods as the upper cluster has them, with its bookkeeping",
        "nobody has another view of them: a kubelet tells what it has made of them, with finalizers as they once were",
        real=r"items\[\S+\]\.metadata\.(managedFields|annotations\.kubernetes\.io/config\.).*"
        r"|items\[once-RANDOM\]\.metadata\.finalizers\[0\]: batch\.kubernetes\.io/job-tracking",
        virtual=r"items\[\S+\]\.(metadata\.managedFields.*|apiVersion: v1|kind: Pod)",
    ),
    Expected(
        "/proxy/runningpods/$",
        "`/runningpods/` has no images, and no pods of which no container runs",
        "it is made of the statuses of pods: nobody looks into the runtimes of the nodes below",
        real=r"items\[\S+\]\.spec\.containers\[\S+\]\.image: .*|items\[(pulls|node-debugger\S*)\]\..*",
    ),
    Expected(
        "/proxy/(stats/summary|metrics/resource)$",
        "`/stats/summary` and `/metrics/resource` are 404 where the lower has no metrics API",
        "that is where the figures come from ([metrics.md](metrics.md)); the bench's lower has none, and its real "
        "kubelet, which has no disk of its own, knows no file system to tell of",
        real=r".*",
        virtual=_ABSENT,
    ),
    Expected(
        "/proxy/(configz|logs/)$",
        "`/configz` and `/logs/` are 404",
        "there is no kubelet's configuration and no machine's log; those of the nodes below are not the caller's",
        real=r".*",
        virtual=_ABSENT,
    ),
)

EXPECTED = (*OF_PODS, *OF_NODES, *OF_ROUTES)
