package main

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

const socket = "/run/containerd/containerd.sock"

// private are the folders that the node has for itself, in memory: all that containerd, the network plugins and the
// kubelet write lies under them, wherever they insist to write it.
var private = []string{"/run", "/var/lib", "/var/log"}

// tunables are kernel settings that a kubelet wants and would otherwise make for the whole machine. It is shown that
// they are as it wants them.
var tunables = map[string]string{
	"vm/overcommit_memory":      "1",
	"vm/panic_on_oom":           "0",
	"kernel/panic":              "10",
	"kernel/panic_on_oops":      "1",
	"kernel/keys/root_maxkeys":  "1000000",
	"kernel/keys/root_maxbytes": "25000000",
}

// ownMounts parts the node's mounts from the machine's. Within the node they are shared, as kubelets want it.
func ownMounts(options) error {
	for _, how := range []uintptr{syscall.MS_SLAVE, syscall.MS_SHARED} {
		if err := syscall.Mount("", "/", "", syscall.MS_REC|how, ""); err != nil {
			return fmt.Errorf("mount /: %w", err)
		}
	}
	if err := syscall.Mount("proc", "/proc", "proc", 0, ""); err != nil {
		return fmt.Errorf("mount /proc: %w", err)
	}
	for _, folder := range private {
		if err := syscall.Mount("tmpfs", folder, "tmpfs", 0, "mode=755"); err != nil {
			return fmt.Errorf("mount %s: %w", folder, err)
		}
	}
	return showTunables()
}

// showTunables lays a file over each setting.
func showTunables() error {
	for name, value := range tunables {
		setting, shown := "/proc/sys/"+name, "/run/tunables/"+strings.ReplaceAll(name, "/", ".")
		if err := os.MkdirAll(filepath.Dir(shown), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(shown, []byte(value+"\n"), 0o644); err != nil {
			return err
		}
		if err := syscall.Mount(shown, setting, "", syscall.MS_BIND, ""); err != nil {
			return fmt.Errorf("mount %s: %w", setting, err)
		}
	}
	return nil
}

// prepareImages starts containerd and brings the images in.
func prepareImages(o options) error {
	containerd, err := spawn(o, "containerd", "--config", o.containerd)
	if err != nil {
		return err
	}
	necessary[containerd] = "containerd"
	if err := awaitSocket(); err != nil {
		return err
	}
	importer, err := spawn(o, "ctr", "--namespace=k8s.io", "--address="+socket, "images", "import", o.images)
	if err != nil {
		return err
	}
	if err := reap(importer); err != nil {
		return fmt.Errorf("import of %s: %w", o.images, err)
	}
	return nil
}

// awaitSocket returns when containerd answers.
func awaitSocket() error {
	for end := time.Now().Add(30 * time.Second); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		if connection, err := net.Dial("unix", socket); err == nil {
			return connection.Close()
		}
	}
	return fmt.Errorf("containerd does not answer at %s", socket)
}
