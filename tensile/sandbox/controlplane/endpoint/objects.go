package main

// The types of this file have those fields of Kubernetes' API that this program uses, with their names in the API.

// Values of Kubernetes' API.
const (
	phasePending   = "Pending"
	phaseRunning   = "Running"
	phaseSucceeded = "Succeeded"
	phaseFailed    = "Failed"

	restartAlways    = "Always"
	restartOnFailure = "OnFailure"
	restartNever     = "Never"
)

// podObject is a Pod. In a watch event of type ERROR it is a Status, whose message explains the error.
type podObject struct {
	Metadata podMetadata `json:"metadata"`
	Spec     podSpec     `json:"spec"`
	Status   podStatus   `json:"status"`
	Message  string      `json:"message"`
}

// name returns the name of the pod in its namespace.
func (o *podObject) name() podName { return podName{o.Metadata.Namespace, o.Metadata.Name} }

// runsCommands reports whether the pod asks for the commands of its containers to be run.
func (o *podObject) runsCommands() bool { return o.Metadata.Annotations.Run == "command" }

// wantsProcess reports whether a container of the pod is to have a process.
func (o *podObject) wantsProcess() bool {
	return o.runsCommands() || len(o.Spec.EphemeralContainers) > 0
}

// processSpecs returns the containers of the pod that are to have a process. Ephemeral ones always have one; without a
// command it is a shell, as in images for debugging.
func (o *podObject) processSpecs() []containerSpec {
	var wanted []containerSpec
	for _, spec := range o.Spec.EphemeralContainers {
		if len(spec.Command)+len(spec.Args) == 0 {
			spec.Command = []string{"sh"}
		}
		spec.RestartPolicy = restartNever
		wanted = append(wanted, spec)
	}
	if !o.runsCommands() {
		return wanted
	}
	for _, spec := range o.Spec.Containers {
		if len(spec.Command)+len(spec.Args) > 0 {
			wanted = append(wanted, spec)
		}
	}
	return wanted
}

type podMetadata struct {
	Namespace       string         `json:"namespace"`
	Name            string         `json:"name"`
	UID             string         `json:"uid"`
	ResourceVersion string         `json:"resourceVersion"`
	Annotations     podAnnotations `json:"annotations"`
}

type podAnnotations struct {
	// Run is "command" if the commands of the containers are to be run.
	Run string `json:"sandbox.tensile-kube.io/run"`
}

type podSpec struct {
	RestartPolicy       string          `json:"restartPolicy"`
	Containers          []containerSpec `json:"containers"`
	EphemeralContainers []containerSpec `json:"ephemeralContainers"`
}

type containerSpec struct {
	Name          string        `json:"name"`
	Image         string        `json:"image"`
	Command       []string      `json:"command"`
	Args          []string      `json:"args"`
	Env           []envVariable `json:"env"`
	Stdin         bool          `json:"stdin"`
	StdinOnce     bool          `json:"stdinOnce"`
	TTY           bool          `json:"tty"`
	RestartPolicy string        `json:"restartPolicy"`
}

type envVariable struct {
	Name      string    `json:"name"`
	Value     string    `json:"value"`
	ValueFrom *struct{} `json:"valueFrom"`
}

type podStatus struct {
	Phase                      string            `json:"phase"`
	ContainerStatuses          []containerStatus `json:"containerStatuses"`
	EphemeralContainerStatuses []containerStatus `json:"ephemeralContainerStatuses"`
}

// containerStatus has all fields that the sandbox sets, since this program writes whole statuses.
type containerStatus struct {
	Name         string         `json:"name"`
	Image        string         `json:"image"`
	ImageID      string         `json:"imageID"`
	ContainerID  string         `json:"containerID,omitempty"`
	Ready        bool           `json:"ready"`
	Started      *bool          `json:"started,omitempty"`
	RestartCount int            `json:"restartCount"`
	State        containerState `json:"state"`
	LastState    containerState `json:"lastState"`
}

type containerState struct {
	Waiting    *waitingState    `json:"waiting,omitempty"`
	Running    *runningState    `json:"running,omitempty"`
	Terminated *terminatedState `json:"terminated,omitempty"`
}

type waitingState struct {
	Reason  string `json:"reason,omitempty"`
	Message string `json:"message,omitempty"`
}

type runningState struct {
	StartedAt string `json:"startedAt,omitempty"`
}

type terminatedState struct {
	ExitCode   int    `json:"exitCode"`
	Signal     int    `json:"signal,omitempty"`
	Reason     string `json:"reason,omitempty"`
	Message    string `json:"message,omitempty"`
	StartedAt  string `json:"startedAt,omitempty"`
	FinishedAt string `json:"finishedAt,omitempty"`
}
