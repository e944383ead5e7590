package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"
)

const (
	// podWait is how long a request waits for its pod to run, since the caller may know of it before this program.
	podWait = 5 * time.Second
	// stopTimeout is how long the files of a pod are kept for its processes to end.
	stopTimeout = 5 * time.Second
	// maxListBackoff is the longest time between two attempts to list and watch the pods.
	maxListBackoff = time.Second
)

// pods watches the cluster's pods. It runs the commands of those that ask for it, and removes the processes and files of
// a pod when the pod is deleted.
type pods struct {
	api     *apiserver
	streams streamer
	mutex   sync.Mutex
	byName  map[podName]*pod
	changed chan struct{} // closed and replaced when a pod was added or changed
}

// podName is the name of a pod in its namespace.
type podName struct{ namespace, name string }

func (n podName) String() string { return n.namespace + "/" + n.name }

// pod is the state of one pod. Most pods have no processes, and there may be thousands of them.
type pod struct {
	uid       string
	runs      bool
	processes map[string]*process
	commands  map[int]bool // processes of exec
	stop      context.CancelFunc
	running   sync.WaitGroup
	status    *statusWriter
}

// newPods returns an empty set of pods; follow fills it.
func newPods(api *apiserver, logs, work string) *pods {
	created := &pods{api: api, byName: map[podName]*pod{}, changed: make(chan struct{})}
	created.streams = streamer{logServer{logs, created, &fileWatcher{}}, work, created}
	return created
}

// follow lists and watches the pods until the context ends. It lists them again after every error, such as a resource
// version that is too old, but not when the apiserver has ended a watch after its usual time.
func (p *pods) follow(ctx context.Context) {
	backoff, swept := initialBackoff, false
	for ctx.Err() == nil {
		begin := time.Now()
		version, err := p.list(ctx)
		if err == nil && !swept {
			p.sweep()
			swept = true
		}
		for err == nil {
			version, err = p.api.watch(ctx, version, p.handle)
		}
		fmt.Fprintln(os.Stderr, "endpoint: pods are listed again:", err)
		if time.Since(begin) > maxListBackoff {
			backoff = initialBackoff
		}
		sleep(ctx, backoff)
		backoff = min(2*backoff, maxListBackoff)
	}
}

// list updates all pods, and returns the resource version from which to watch.
func (p *pods) list(ctx context.Context) (version string, err error) {
	listed := map[podName]bool{}
	version, err = p.api.list(ctx, func(found *podObject) {
		listed[found.name()] = true
		p.update(found)
	})
	if err != nil {
		return "", err
	}
	for _, name := range p.names() {
		if !listed[name] {
			p.deleted(name)
		}
	}
	return version, nil
}

// names returns the names of all pods.
func (p *pods) names() []podName {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	names := make([]podName, 0, len(p.byName))
	for name := range p.byName {
		names = append(names, name)
	}
	return names
}

// handle handles an event of the watch.
func (p *pods) handle(deleted bool, found *podObject) {
	if deleted {
		p.deleted(found.name())
	} else {
		p.update(found)
	}
}

// update adds or updates a pod, and starts the processes of one that runs.
func (p *pods) update(found *podObject) {
	name := found.name()
	p.mutex.Lock()
	known := p.byName[name]
	p.mutex.Unlock()
	if known != nil && known.uid != found.Metadata.UID {
		p.remove(name, known)
		known = nil
	}
	p.mutex.Lock()
	defer p.mutex.Unlock()
	if known == nil {
		known = &pod{uid: found.Metadata.UID}
		p.byName[name] = known
	}
	known.runs = found.Status.Phase != phasePending
	if found.Status.Phase == phaseRunning && found.wantsProcess() {
		p.start(known, found)
	}
	close(p.changed)
	p.changed = make(chan struct{})
}

// start starts the missing processes of a pod.
func (p *pods) start(known *pod, found *podObject) {
	if known.processes == nil {
		ctx, stop := context.WithCancel(context.Background())
		known.processes, known.stop, known.status = map[string]*process{}, stop, newStatusWriter(ctx, p.api, found)
	}
	known.status.addEphemeral(found)
	for _, wanted := range found.processSpecs() {
		if known.processes[wanted.Name] != nil {
			continue
		}
		started := p.newProcess(found, wanted, known.status)
		known.processes[wanted.Name] = started
		if known.status.terminated(wanted.Name) { // by an earlier instance of this program
			started.finished = true
			continue
		}
		known.running.Add(1)
		go func() {
			defer known.running.Done()
			started.run(known.status.ctx)
		}()
	}
}

// newProcess returns the process of a container, not yet started.
func (p *pods) newProcess(found *podObject, spec containerSpec, status *statusWriter) *process {
	policy := found.Spec.RestartPolicy
	if spec.RestartPolicy != "" {
		policy = spec.RestartPolicy
	}
	where := container{p.streams, target{found.Metadata.Namespace, found.Metadata.Name, spec.Name}}
	created := &process{container: where, spec: spec, policy: policy, report: status.reporter(spec.Name),
		changed: make(chan struct{})}
	if _, err := os.Stat(p.streams.logs.path(where.target)); err == nil {
		created.restarts = status.restarts(spec.Name) + 1
	}
	return created
}

// deleted handles the deletion of a pod.
func (p *pods) deleted(name podName) {
	p.mutex.Lock()
	known := p.byName[name]
	p.mutex.Unlock()
	if known != nil {
		p.remove(name, known)
	}
}

// remove kills the processes of a pod and removes its files.
func (p *pods) remove(name podName, known *pod) {
	p.mutex.Lock()
	delete(p.byName, name)
	for pid := range known.commands {
		killGroup(pid)
	}
	p.mutex.Unlock()
	if known.stop != nil {
		known.stop()
		known.waitStopped(stopTimeout)
	}
	for _, folder := range []string{p.streams.logs.folder, p.streams.work} {
		_ = os.RemoveAll(filepath.Join(folder, name.namespace, name.name))
		_ = os.Remove(filepath.Join(folder, name.namespace)) // fails while there is another pod in it
	}
}

// waitStopped waits until no process of the pod runs any more, at most for that time.
func (p *pod) waitStopped(limit time.Duration) {
	done := make(chan struct{})
	go func() {
		p.running.Wait()
		close(done)
	}()
	select {
	case <-done:
	case <-time.After(limit):
	}
}

// sweep removes the files of pods that were deleted while this program did not run.
func (p *pods) sweep() {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	for _, folder := range []string{p.streams.logs.folder, p.streams.work} {
		found, _ := filepath.Glob(filepath.Join(folder, "*", "*"))
		for _, path := range found {
			if p.byName[podName{filepath.Base(filepath.Dir(path)), filepath.Base(path)}] == nil {
				_ = os.RemoveAll(path)
			}
		}
	}
}

// process returns the process of a container, nil if it has none. It waits for the pod to run.
func (p *pods) process(ctx context.Context, t target) (*process, error) {
	ctx, cancel := context.WithTimeout(ctx, podWait)
	defer cancel()
	name := podName{t.namespace, t.pod}
	for {
		found, runs, changed := p.find(name, t.container)
		if runs {
			return found, nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, errors.New("pod " + name.String() + " does not run here")
		}
	}
}

// find returns the process of a container, nil if it has none, whether its pod runs, and a channel that is closed when a
// pod has changed.
func (p *pods) find(name podName, container string) (found *process, runs bool, changed <-chan struct{}) {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	known := p.byName[name]
	if known == nil {
		return nil, false, p.changed
	}
	return known.processes[container], known.runs, p.changed
}

// addCommand lets a command of exec be killed with its pod. The caller calls release when the command has ended.
func (p *pods) addCommand(t target, pid int) (release func()) {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	known := p.byName[podName{t.namespace, t.pod}]
	if known == nil {
		return func() {}
	}
	if known.commands == nil {
		known.commands = map[int]bool{}
	}
	known.commands[pid] = true
	return func() {
		p.mutex.Lock()
		defer p.mutex.Unlock()
		delete(known.commands, pid)
	}
}
