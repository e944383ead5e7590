package main

import (
	"context"
	"encoding/json"
	"sync"
	"time"
)

// statusWriter writes the statuses of the containers of one pod. It keeps the lists, because the API replaces them as a
// whole.
type statusWriter struct {
	ctx       context.Context
	api       *apiserver
	name      podName
	uid       string
	mutex     sync.Mutex
	regular   []containerStatus
	ephemeral []containerStatus
}

// newStatusWriter returns a writer that starts with the status of the pod.
func newStatusWriter(ctx context.Context, api *apiserver, found *podObject) *statusWriter {
	return &statusWriter{ctx: ctx, api: api, name: found.name(), uid: found.Metadata.UID,
		regular: found.Status.ContainerStatuses, ephemeral: found.Status.EphemeralContainerStatuses}
}

// addEphemeral adds the new ephemeral containers of the pod, which are added while it runs.
func (s *statusWriter) addEphemeral(found *podObject) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	for _, one := range found.Spec.EphemeralContainers[len(s.ephemeral):] {
		s.ephemeral = append(s.ephemeral, containerStatus{Name: one.Name, Image: one.Image, ImageID: one.Image})
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
		changed.RestartCount, changed.Ready, changed.Started = restarts, running, &running
		changed.State = containerState{Running: &runningState{timestamp(startedAt)}}
		if last != nil && running {
			changed.LastState = containerState{Terminated: last.state()}
		}
		if last != nil && !running {
			changed.State = containerState{Terminated: last.state()}
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
		return found.RestartCount
	}
	return 0
}

// find returns the status of a container, nil if it has none.
func (s *statusWriter) find(name string) *containerStatus {
	for _, list := range [][]containerStatus{s.regular, s.ephemeral} {
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
	if phase := phaseOf(s.regular); phase != phaseRunning {
		state["phase"] = phase
		state["conditions"] = []map[string]string{
			{"type": "Ready", "status": "False", "reason": "PodCompleted"},
			{"type": "ContainersReady", "status": "False", "reason": "PodCompleted"},
		}
	}
	body, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": s.uid}, "status": state})
	if err != nil {
		return
	}
	_ = s.api.patchStatus(s.ctx, s.name, body)
}

// phaseOf returns the phase of a pod from the states of its containers.
func phaseOf(statuses []containerStatus) string {
	phase := phaseSucceeded
	for _, one := range statuses {
		if one.State.Terminated == nil {
			return phaseRunning
		}
		if one.State.Terminated.ExitCode != 0 {
			phase = phaseFailed
		}
	}
	return phase
}

// state returns the termination as in the API.
func (t *termination) state() *terminatedState {
	reason := "Completed"
	if t.exitCode != 0 {
		reason = "Error"
	}
	return &terminatedState{
		ExitCode: t.exitCode, Reason: reason,
		StartedAt: timestamp(t.startedAt), FinishedAt: timestamp(t.finishedAt),
	}
}

// timestamp formats a time as in the API.
func timestamp(at time.Time) string { return at.UTC().Format(time.RFC3339) }
