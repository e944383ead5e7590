package main

import (
	"context"
	"encoding/json"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
)

// statusWriter writes the statuses of the containers of one pod. It keeps the lists, because the API replaces them as a
// whole.
type statusWriter struct {
	ctx       context.Context
	api       rest.Interface
	pod       *corev1.Pod
	mutex     sync.Mutex
	regular   []corev1.ContainerStatus
	ephemeral []corev1.ContainerStatus
}

// newStatusWriter returns a writer that starts with the status of the pod.
func newStatusWriter(ctx context.Context, api rest.Interface, found *corev1.Pod) *statusWriter {
	return &statusWriter{ctx: ctx, api: api, pod: found,
		regular: found.Status.ContainerStatuses, ephemeral: found.Status.EphemeralContainerStatuses}
}

// addEphemeral adds the new ephemeral containers of the pod, which are added while it runs.
func (s *statusWriter) addEphemeral(found *corev1.Pod) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	for _, one := range found.Spec.EphemeralContainers[len(s.ephemeral):] {
		s.ephemeral = append(s.ephemeral, corev1.ContainerStatus{Name: one.Name, Image: one.Image, ImageID: one.Image})
	}
}

// reporter returns the function with which the process of that container reports its state.
func (s *statusWriter) reporter(name string) func(int, time.Time, *termination, bool) {
	return func(restarts int, startedAt time.Time, last *termination, running bool) {
		s.mutex.Lock()
		defer s.mutex.Unlock()
		changed := s.find(name)
		if changed == nil {
			return
		}
		changed.ContainerID = "sandbox://" + name
		changed.RestartCount, changed.Ready, changed.Started = int32(restarts), running, &running
		changed.State = corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: metav1.NewTime(startedAt)}}
		if last != nil && running {
			changed.LastTerminationState = corev1.ContainerState{Terminated: last.state()}
		}
		if last != nil && !running {
			changed.State = corev1.ContainerState{Terminated: last.state()}
		}
		s.write()
	}
}

// terminated reports whether a container has ended and is not restarted, according to its status.
func (s *statusWriter) terminated(name string) bool {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	found := s.find(name)
	return found != nil && found.State.Terminated != nil
}

// restarts returns the number of restarts of a container, according to its status.
func (s *statusWriter) restarts(name string) int {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	if found := s.find(name); found != nil {
		return int(found.RestartCount)
	}
	return 0
}

// find returns the status of a container, nil if it has none.
func (s *statusWriter) find(name string) *corev1.ContainerStatus {
	for _, list := range [][]corev1.ContainerStatus{s.regular, s.ephemeral} {
		for i := range list {
			if list[i].Name == name {
				return &list[i]
			}
		}
	}
	return nil
}

// write patches the status of the pod. Errors are ignored: the pod was deleted, or another write follows.
func (s *statusWriter) write() {
	state := map[string]any{"containerStatuses": s.regular}
	if len(s.ephemeral) > 0 {
		state["ephemeralContainerStatuses"] = s.ephemeral
	}
	if phase := phaseOf(s.regular); phase != corev1.PodRunning {
		state["phase"] = phase
		state["conditions"] = []map[string]string{
			{"type": "Ready", "status": "False", "reason": "PodCompleted"},
			{"type": "ContainersReady", "status": "False", "reason": "PodCompleted"},
		}
	}
	body, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": s.pod.UID}, "status": state})
	if err != nil {
		return
	}
	_ = s.api.Patch(types.StrategicMergePatchType).Namespace(s.pod.Namespace).Resource("pods").Name(s.pod.Name).
		SubResource("status").Body(body).Do(s.ctx).Error()
}

// phaseOf returns the phase of a pod from the states of its containers.
func phaseOf(statuses []corev1.ContainerStatus) corev1.PodPhase {
	phase := corev1.PodSucceeded
	for _, one := range statuses {
		if one.State.Terminated == nil {
			return corev1.PodRunning
		}
		if one.State.Terminated.ExitCode != 0 {
			phase = corev1.PodFailed
		}
	}
	return phase
}

// state returns the termination as in the API.
func (t *termination) state() *corev1.ContainerStateTerminated {
	reason := "Completed"
	if t.exitCode != 0 {
		reason = "Error"
	}
	return &corev1.ContainerStateTerminated{
		ExitCode: int32(t.exitCode), Reason: reason,
		StartedAt: metav1.NewTime(t.startedAt), FinishedAt: metav1.NewTime(t.finishedAt),
	}
}
