// Command node is a Kubernetes node in namespaces of its own: a network, a mount table and a table
// of processes in which containerd and a kubelet run as on a machine of theirs. All of it hangs on
// its first process, which the kernel ends with the one that started it: whoever kills this program,
// however, has taken away every process, mount and network device of the node.
package main

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
)

// options are the command line, for the outside and the inside alike.
type options struct {
	device, gateway, address, api, cgroup string
	path, containerd, images, kubeletRun  string
	inside                                bool
}

// isolation is what a node does not share with the machine.
const isolation = syscall.CLONE_NEWNS | syscall.CLONE_NEWPID | syscall.CLONE_NEWNET | syscall.CLONE_NEWUTS |
	syscall.CLONE_NEWIPC | syscall.CLONE_NEWCGROUP

func init() {
	// The signal that ends the inside is sent when the thread that started it ends: let that be the main one.
	runtime.LockOSThread()
}

func main() {
	var o options
	flag.StringVar(&o.device, "device", "", "name of the network device that leads to the node")
	flag.StringVar(&o.gateway, "gateway", "", "address and mask of the machine's end")
	flag.StringVar(&o.address, "address", "", "address and mask of the node")
	flag.StringVar(&o.api, "api", "", "address of the apiserver; its port is served at the gateway")
	flag.StringVar(&o.cgroup, "cgroup", "", "name of the cgroup under which all of the node's are")
	flag.StringVar(&o.path, "path", "", "search path of the container runtime's programs")
	flag.StringVar(&o.containerd, "containerd-config", "", "configuration of containerd")
	flag.StringVar(&o.images, "images", "", "archive of images to have from the start")
	flag.StringVar(&o.kubeletRun, "kubelet", "", "the kubelet; its arguments follow")
	flag.BoolVar(&o.inside, "inside", false, "be the first process of the node; for this program's own use")
	flag.Parse()
	work := outside
	if o.inside {
		work = inside
	}
	if err := work(o); err != nil {
		fmt.Fprintln(os.Stderr, "node:", err)
		os.Exit(1)
	}
}

// outside starts the inside, connects it, and returns when it has ended.
func outside(o options) error {
	begin, ready, err := os.Pipe()
	if err != nil {
		return err
	}
	first := exec.Command("/proc/self/exe", append([]string{"--inside"}, os.Args[1:]...)...)
	first.Stdout, first.Stderr = os.Stdout, os.Stderr
	first.ExtraFiles = []*os.File{begin}
	first.SysProcAttr = &syscall.SysProcAttr{Cloneflags: isolation, Pdeathsig: syscall.SIGKILL}
	if err := enter(o); err != nil {
		return err
	}
	if err := first.Start(); err != nil {
		return fmt.Errorf("namespaces: %w", err)
	}
	err = stepAside(o, "outside")
	if err == nil {
		err = connect(o, first.Process.Pid)
	}
	if err != nil {
		_ = first.Process.Kill()
		_ = first.Wait()
		return err
	}
	_ = ready.Close()
	return first.Wait()
}

// inside waits until it is connected, and then is the node until containerd or the kubelet ends.
func inside(o options) error {
	_, _ = os.NewFile(3, "begin").Read(make([]byte, 1))
	for _, step := range []func(options) error{ownMounts, ownCgroups, ownNetwork, prepareImages} {
		if err := step(o); err != nil {
			return err
		}
	}
	kubelet, err := spawn(o, o.kubeletRun, flag.Args()...)
	if err != nil {
		return err
	}
	return fmt.Errorf("the kubelet ended: %w", reap(kubelet))
}

// spawn starts a program that prints where we do.
func spawn(o options, program string, arguments ...string) (int, error) {
	if !strings.Contains(program, "/") {
		found, err := look(o.path, program)
		if err != nil {
			return 0, err
		}
		program = found
	}
	return syscall.ForkExec(program, append([]string{program}, arguments...), &syscall.ProcAttr{
		Env:   environment(o),
		Files: []uintptr{0, 1, 2},
		Sys:   &syscall.SysProcAttr{Setsid: true},
	})
}

// environment is ours with the runtime's programs on the search path.
func environment(o options) []string {
	var kept []string
	for _, variable := range os.Environ() {
		if !strings.HasPrefix(variable, "PATH=") {
			kept = append(kept, variable)
		}
	}
	return append(kept, "PATH="+o.path+":"+os.Getenv("PATH"))
}

// look finds a program on a search path.
func look(path, program string) (string, error) {
	for _, folder := range strings.Split(path, ":") {
		if info, err := os.Stat(folder + "/" + program); err == nil && !info.IsDir() {
			return folder + "/" + program, nil
		}
	}
	return "", fmt.Errorf("no %s on %s", program, path)
}

// necessary are the processes without which the node is none.
var necessary = map[int]string{}

// reap takes the ends of processes, as a first process must, until the wanted one's; how that ended is returned.
func reap(wanted int) error {
	for {
		var status syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &status, 0, nil)
		switch {
		case err == syscall.EINTR:
		case err != nil:
			return err
		case necessary[pid] != "":
			return fmt.Errorf("%s ended with %d", necessary[pid], status.ExitStatus())
		case pid == wanted && status.ExitStatus() == 0:
			return nil
		case pid == wanted:
			return fmt.Errorf("exit status %d", status.ExitStatus())
		}
	}
}
