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
	// patience is how long a request waits for the news of its pod, which the caller may have before us.
	patience = 5 * time.Second
	// farewell is how long the end of a pod's processes is waited for before their files go.
	farewell = 5 * time.Second
)

// pods follows the cluster's pods: it runs the commands of those that ask for it, and removes what a pod had, its
// processes and its files, when the pod is gone.
type pods struct {
	api     rest.Interface
	streams streamer
	mutex   sync.Mutex
	held    map[types.NamespacedName]*pod
	news    chan struct{} // closed and made anew whenever a pod came or began to run
}

// pod is what is known of one pod.
type pod struct {
	uid       types.UID
	runs      bool
	processes map[string]*process
	commands  map[int]bool // processes of exec
	stop      context.CancelFunc
	ending    sync.WaitGroup
	status    *statusWriter
}

// newPods makes a follower that has not begun.
func newPods(kubeconfig, logs, work string) (*pods, error) {
	api, err := client(kubeconfig)
	followed := &pods{api: api, held: map[types.NamespacedName]*pod{}, news: make(chan struct{})}
	followed.streams = streamer{logReader{logs, followed}, work, followed}
	return followed, err
}

// client speaks to the apiserver of a kubeconfig about pods and nothing else.
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
			AddFunc:    func(found any) { p.see(found.(*corev1.Pod)) },
			UpdateFunc: func(_, found any) { p.see(found.(*corev1.Pod)) },
			DeleteFunc: func(found any) { p.lose(found) },
		},
	})
	go informer.RunWithContext(ctx)
	if cache.WaitForCacheSync(ctx.Done(), informer.HasSynced) {
		p.sweep(store)
	}
}

// trimmed keeps of most pods that they are there, since there may be thousands.
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

// wantsProcess tells whether any container of a pod is to have a process.
func wantsProcess(found *corev1.Pod) bool {
	return found.Annotations[annotation] == "command" || len(found.Spec.EphemeralContainers) > 0
}

// see takes note of a pod, and starts the processes of one that runs.
func (p *pods) see(found *corev1.Pod) {
	name := types.NamespacedName{Namespace: found.Namespace, Name: found.Name}
	p.mutex.Lock()
	held := p.held[name]
	p.mutex.Unlock()
	if held != nil && held.uid != found.UID {
		p.forget(name, held)
		held = nil
	}
	p.mutex.Lock()
	defer p.mutex.Unlock()
	if held == nil {
		held = &pod{uid: found.UID}
		p.held[name] = held
	}
	held.runs = found.Status.Phase != corev1.PodPending
	if found.Status.Phase == corev1.PodRunning && wantsProcess(found) {
		p.start(held, found)
	}
	close(p.news)
	p.news = make(chan struct{})
}

// start starts the processes of a pod that it does not have yet.
func (p *pods) start(held *pod, found *corev1.Pod) {
	if held.processes == nil {
		ctx, stop := context.WithCancel(context.Background())
		held.processes, held.stop, held.status = map[string]*process{}, stop, newStatusWriter(ctx, p.api, found)
	}
	held.status.seeEphemeral(found)
	for _, wanted := range containers(found) {
		if held.processes[wanted.Name] != nil {
			continue
		}
		started := p.processOf(found, wanted, held.status)
		held.processes[wanted.Name] = started
		if held.status.over(wanted.Name) { // before this server began
			started.gone = true
			continue
		}
		held.ending.Add(1)
		go func() {
			defer held.ending.Done()
			started.keep(held.status.ctx)
		}()
	}
}

// containers gives those of a pod that are to have a process: ephemeral ones always, since somebody has just asked
// for them; they start a shell where they name no command, as images for debugging do.
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

// processOf makes the process of a container.
func (p *pods) processOf(found *corev1.Pod, spec corev1.EphemeralContainerCommon, status *statusWriter) *process {
	policy := found.Spec.RestartPolicy
	if spec.RestartPolicy != nil {
		policy = corev1.RestartPolicy(*spec.RestartPolicy)
	}
	where := container{p.streams, target{found.Namespace, found.Name, spec.Name}}
	made := &process{container: where, spec: spec, policy: policy, report: status.of(spec.Name), changed: make(chan struct{})}
	if _, err := os.Stat(p.streams.logs.path(where.target)); err == nil {
		made.before = status.restarts(spec.Name) + 1
	}
	return made
}

// lose forgets a pod that is gone.
func (p *pods) lose(found any) {
	key, err := cache.DeletionHandlingMetaNamespaceKeyFunc(found)
	if err != nil {
		return
	}
	namespace, name, _ := cache.SplitMetaNamespaceKey(key)
	full := types.NamespacedName{Namespace: namespace, Name: name}
	p.mutex.Lock()
	held := p.held[full]
	p.mutex.Unlock()
	if held != nil {
		p.forget(full, held)
	}
}

// forget ends what runs of a pod and removes its files.
func (p *pods) forget(name types.NamespacedName, held *pod) {
	p.mutex.Lock()
	delete(p.held, name)
	for pid := range held.commands {
		killGroup(pid)
	}
	p.mutex.Unlock()
	if held.stop != nil {
		held.stop()
		held.finished(farewell)
	}
	for _, folder := range []string{p.streams.logs.folder, p.streams.work} {
		_ = os.RemoveAll(filepath.Join(folder, name.Namespace, name.Name))
		_ = os.Remove(filepath.Join(folder, name.Namespace)) // stays while there is another pod in it
	}
}

// finished waits until no process of the pod runs any more, but not for ever.
func (held *pod) finished(limit time.Duration) {
	done := make(chan struct{})
	go func() {
		held.ending.Wait()
		close(done)
	}()
	select {
	case <-done:
	case <-time.After(limit):
	}
}

// sweep removes the files of pods that went while nobody watched.
func (p *pods) sweep(store cache.Store) {
	for _, folder := range []string{p.streams.logs.folder, p.streams.work} {
		found, _ := filepath.Glob(filepath.Join(folder, "*", "*"))
		for _, path := range found {
			namespace := filepath.Base(filepath.Dir(path))
			if _, known, _ := store.GetByKey(namespace + "/" + filepath.Base(path)); !known {
				_ = os.RemoveAll(path)
			}
		}
	}
}

// process gives the process of a container; nil: it has none.
func (p *pods) process(ctx context.Context, t target) (*process, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	name := types.NamespacedName{Namespace: t.namespace, Name: t.pod}
	for {
		p.mutex.Lock()
		held, news := p.held[name], p.news
		p.mutex.Unlock()
		if held != nil && held.runs {
			return held.processes[t.container], nil
		}
		select {
		case <-news:
		case <-ctx.Done():
			return nil, errors.New("pod " + name.String() + " does not run here")
		}
	}
}

// holds has a command of exec end with its pod; what is returned is called when the command ends before.
func (p *pods) holds(t target, pid int) (release func()) {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	held := p.held[types.NamespacedName{Namespace: t.namespace, Name: t.pod}]
	if held == nil {
		return func() {}
	}
	if held.commands == nil {
		held.commands = map[int]bool{}
	}
	held.commands[pid] = true
	return func() {
		p.mutex.Lock()
		defer p.mutex.Unlock()
		delete(held.commands, pid)
	}
}
