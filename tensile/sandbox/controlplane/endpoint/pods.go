package main

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"
)

const (
	// annotation on a pod asks that its containers' commands run, when it says "command".
	annotation = "sandbox.tensile-kube.io/run"
	// podWait is how long a request waits for its pod to run, since the caller may know of it before this program.
	podWait = 5 * time.Second
	// stopTimeout is how long the files of a pod are kept for its processes to end.
	stopTimeout = 5 * time.Second
)

// pods watches the cluster's pods. It runs the commands of those that ask for it, and removes the processes and files of
// a pod when the pod is deleted.
type pods struct {
	api     rest.Interface
	streams streamer
	mutex   sync.Mutex
	byName  map[types.NamespacedName]*pod
	changed chan struct{} // closed and replaced when a pod was added or changed
}

// pod is the state of one pod.
type pod struct {
	uid       types.UID
	runs      bool
	processes map[string]*process
	commands  map[int]bool // processes of exec
	stop      context.CancelFunc
	running   sync.WaitGroup
	status    *statusWriter
}

// newPods returns an empty set of pods; follow fills it.
func newPods(kubeconfig, logs, work string) (*pods, error) {
	api, err := client(kubeconfig)
	created := &pods{api: api, byName: map[types.NamespacedName]*pod{}, changed: make(chan struct{})}
	created.streams = streamer{logServer{logs, created, &fileWatcher{}}, work, created}
	return created, err
}

// client returns a client for the pods of the apiserver of a kubeconfig.
func client(kubeconfig string) (rest.Interface, error) {
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return nil, err
	}
	scheme := runtime.NewScheme()
	metav1.AddToGroupVersion(scheme, corev1.SchemeGroupVersion)
	if err := corev1.AddToScheme(scheme); err != nil {
		return nil, err
	}
	config.APIPath, config.GroupVersion = "/api", &corev1.SchemeGroupVersion
	config.NegotiatedSerializer = serializer.NewCodecFactory(scheme).WithoutConversion()
	config.ContentType = runtime.ContentTypeProtobuf
	config.QPS = -1
	return rest.RESTClientFor(config)
}

// follow watches the pods until the context ends.
func (p *pods) follow(ctx context.Context) {
	list := cache.NewListWatchFromClient(p.api, "pods", metav1.NamespaceAll, fields.Everything())
	store, informer := cache.NewInformerWithOptions(cache.InformerOptions{
		ListerWatcher: list,
		ObjectType:    &corev1.Pod{},
		Transform:     trimmed,
		Handler: cache.ResourceEventHandlerFuncs{
			AddFunc:    func(found any) { p.update(found.(*corev1.Pod)) },
			UpdateFunc: func(_, found any) { p.update(found.(*corev1.Pod)) },
			DeleteFunc: func(found any) { p.deleted(found) },
		},
	})
	go informer.RunWithContext(ctx)
	if cache.WaitForCacheSync(ctx.Done(), informer.HasSynced) {
		p.sweep(store)
	}
}

// trimmed removes the fields of pods without processes that are not needed, since there may be thousands of them.
func trimmed(found any) (any, error) {
	full, ok := found.(*corev1.Pod)
	if !ok || wantsProcess(full) {
		return found, nil
	}
	slim := &corev1.Pod{}
	slim.Name, slim.Namespace, slim.UID, slim.ResourceVersion = full.Name, full.Namespace, full.UID, full.ResourceVersion
	slim.Status.Phase = full.Status.Phase
	return slim, nil
}

// wantsProcess reports whether a container of the pod is to have a process.
func wantsProcess(found *corev1.Pod) bool {
	return found.Annotations[annotation] == "command" || len(found.Spec.EphemeralContainers) > 0
}

// update adds or updates a pod, and starts the processes of one that runs.
func (p *pods) update(found *corev1.Pod) {
	name := types.NamespacedName{Namespace: found.Namespace, Name: found.Name}
	p.mutex.Lock()
	known := p.byName[name]
	p.mutex.Unlock()
	if known != nil && known.uid != found.UID {
		p.remove(name, known)
		known = nil
	}
	p.mutex.Lock()
	defer p.mutex.Unlock()
	if known == nil {
		known = &pod{uid: found.UID}
		p.byName[name] = known
	}
	known.runs = found.Status.Phase != corev1.PodPending
	if found.Status.Phase == corev1.PodRunning && wantsProcess(found) {
		p.start(known, found)
	}
	close(p.changed)
	p.changed = make(chan struct{})
}

// start starts the missing processes of a pod.
func (p *pods) start(known *pod, found *corev1.Pod) {
	if known.processes == nil {
		ctx, stop := context.WithCancel(context.Background())
		known.processes, known.stop, known.status = map[string]*process{}, stop, newStatusWriter(ctx, p.api, found)
	}
	known.status.addEphemeral(found)
	for _, wanted := range containers(found) {
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

// containers returns the containers of a pod that are to have a process. Ephemeral ones always have one; without a
// command it is a shell, as in images for debugging.
func containers(found *corev1.Pod) []corev1.EphemeralContainerCommon {
	var wanted []corev1.EphemeralContainerCommon
	for _, one := range found.Spec.EphemeralContainers {
		common := one.EphemeralContainerCommon
		if len(common.Command)+len(common.Args) == 0 {
			common.Command = []string{"sh"}
		}
		common.RestartPolicy = new(corev1.ContainerRestartPolicyNever)
		wanted = append(wanted, common)
	}
	if found.Annotations[annotation] != "command" {
		return wanted
	}
	for _, one := range found.Spec.Containers {
		if len(one.Command)+len(one.Args) > 0 {
			wanted = append(wanted, corev1.EphemeralContainerCommon(one))
		}
	}
	return wanted
}

// newProcess returns the process of a container, not yet started.
func (p *pods) newProcess(found *corev1.Pod, spec corev1.EphemeralContainerCommon, status *statusWriter) *process {
	policy := found.Spec.RestartPolicy
	if spec.RestartPolicy != nil {
		policy = corev1.RestartPolicy(*spec.RestartPolicy)
	}
	where := container{p.streams, target{found.Namespace, found.Name, spec.Name}}
	created := &process{container: where, spec: spec, policy: policy, report: status.reporter(spec.Name), changed: make(chan struct{})}
	if _, err := os.Stat(p.streams.logs.path(where.target)); err == nil {
		created.restarts = status.restarts(spec.Name) + 1
	}
	return created
}

// deleted handles the deletion of a pod.
func (p *pods) deleted(found any) {
	key, err := cache.DeletionHandlingMetaNamespaceKeyFunc(found)
	if err != nil {
		return
	}
	namespace, name, _ := cache.SplitMetaNamespaceKey(key)
	full := types.NamespacedName{Namespace: namespace, Name: name}
	p.mutex.Lock()
	known := p.byName[full]
	p.mutex.Unlock()
	if known != nil {
		p.remove(full, known)
	}
}

// remove kills the processes of a pod and removes its files.
func (p *pods) remove(name types.NamespacedName, known *pod) {
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
		_ = os.RemoveAll(filepath.Join(folder, name.Namespace, name.Name))
		_ = os.Remove(filepath.Join(folder, name.Namespace)) // fails while there is another pod in it
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
func (p *pods) sweep(store cache.Store) {
	for _, folder := range []string{p.streams.logs.folder, p.streams.work} {
		found, _ := filepath.Glob(filepath.Join(folder, "*", "*"))
		for _, path := range found {
			namespace := filepath.Base(filepath.Dir(path))
			if _, exists, _ := store.GetByKey(namespace + "/" + filepath.Base(path)); !exists {
				_ = os.RemoveAll(path)
			}
		}
	}
}

// process returns the process of a container, nil if it has none. It waits for the pod to run.
func (p *pods) process(ctx context.Context, t target) (*process, error) {
	ctx, cancel := context.WithTimeout(ctx, podWait)
	defer cancel()
	name := types.NamespacedName{Namespace: t.namespace, Name: t.pod}
	for {
		p.mutex.Lock()
		known, changed := p.byName[name], p.changed
		p.mutex.Unlock()
		if known != nil && known.runs {
			return known.processes[t.container], nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, errors.New("pod " + name.String() + " does not run here")
		}
	}
}

// addCommand lets a command of exec be killed with its pod. The caller calls release when the command has ended.
func (p *pods) addCommand(t target, pid int) (release func()) {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	known := p.byName[types.NamespacedName{Namespace: t.namespace, Name: t.pod}]
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
