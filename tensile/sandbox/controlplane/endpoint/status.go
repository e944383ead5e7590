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

// statusWriter tells the apiserver how the processes of one pod fare. It keeps the lists it writes, because the API
// takes them as a whole.
type statusWriter struct {
	ctx       context.Context
	api       rest.Interface
	pod       *corev1.Pod
	mutex     sync.Mutex
	regular   []corev1.ContainerStatus
	ephemeral []corev1.ContainerStatus
}

// newStatusWriter begins with what the pod's status says.
func newStatusWriter(ctx context.Context, api rest.Interface, found *corev1.Pod) *statusWriter {
	return &statusWriter{ctx: ctx, api: api, pod: found,
		regular: found.Status.ContainerStatuses, ephemeral: found.Status.EphemeralContainerStatuses}
}

// seeEphemeral takes note of ephemeral containers, which come while a pod runs.
func (s *statusWriter) seeEphemeral(found *corev1.Pod) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	for _, one := range found.Spec.EphemeralContainers[len(s.ephemeral):] {
		s.ephemeral = append(s.ephemeral, corev1.ContainerStatus{Name: one.Name, Image: one.Image, ImageID: one.Image})
	}
}

// of gives the function with which the process of that container reports.
func (s *statusWriter) of(name string) func(int, time.Time, *ended, bool) {
	return func(restarts int, begun time.Time, last *ended, again bool) {
		s.mutex.Lock()
		defer s.mutex.Unlock()
		changed := s.find(name)
		if changed == nil {
			return
		}
		changed.ContainerID = "sandbox://" + name
		changed.RestartCount, changed.Ready, changed.Started = int32(restarts), again, &again
		changed.State = corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: metav1.NewTime(begun)}}
		if last != nil && again {
			changed.LastTerminationState = corev1.ContainerState{Terminated: last.terminated()}
		}
		if last != nil && !again {
			changed.State = corev1.ContainerState{Terminated: last.terminated()}
		}
		s.write()
	}
}

// over tells whether a container has ended for good, as its status says.
func (s *statusWriter) over(name string) bool {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	found := s.find(name)
	return found != nil && found.State.Terminated != nil
}

// restarts is how often a container has been started again, as its status says.
func (s *statusWriter) restarts(name string) int {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	if found := s.find(name); found != nil {
		return int(found.RestartCount)
	}
	return 0
}

// find gives the status of a container.
func (s *statusWriter) find(name string) *corev1.ContainerStatus {
	for _, list := range [][]corev1.ContainerStatus{s.regular, s.ephemeral} {
		for at := range list {
			if list[at].Name == name {
				return &list[at]
			}
		}
	}
	return nil
}

// write sends the lists. What the apiserver refuses is left: the pod is gone then, or another write follows.
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

// phaseOf is the phase of a pod whose containers are in these states.
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

// terminated is the end of a run as the API tells it.
func (e *ended) terminated() *corev1.ContainerStateTerminated {
	reason := "Completed"
	if e.code != 0 {
		reason = "Error"
	}
	return &corev1.ContainerStateTerminated{
		ExitCode: int32(e.code), Reason: reason,
		StartedAt: metav1.NewTime(e.begun), FinishedAt: metav1.NewTime(e.ended),
	}
}
