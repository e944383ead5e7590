package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

// hierarchy is a mounted tree of cgroups.
type hierarchy struct {
	folder  string
	unified bool
}

// hierarchies reads which trees are mounted: one, or one for each controller, or both forms side by side.
func hierarchies() ([]hierarchy, error) {
	table, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		return nil, err
	}
	var found []hierarchy
	for _, line := range strings.Split(string(table), "\n") {
		fields := strings.Fields(line)
		if len(fields) > 2 && (fields[2] == "cgroup" || fields[2] == "cgroup2") {
			found = append(found, hierarchy{fields[1], fields[2] == "cgroup2"})
		}
	}
	return found, nil
}

// enter moves this process into a cgroup of the node's own in every tree. What is started in a new cgroup namespace
// after that takes it for the root, so that all cgroups of the node's containers lie under it.
func enter(o options) error {
	return each(func(tree hierarchy) error {
		own := filepath.Join(tree.folder, o.cgroup)
		if err := os.MkdirAll(own, 0o755); err != nil {
			return err
		}
		for _, name := range []string{"cpuset.cpus", "cpuset.mems"} { // empty in a new one, which admits nobody
			if value, err := os.ReadFile(filepath.Join(tree.folder, name)); err == nil && !tree.unified {
				_ = os.WriteFile(filepath.Join(own, name), value, 0o644)
			}
		}
		return join(own)
	})
}

// stepAside moves this process out of the node's root into a leaf: in a unified tree only leaves may hold processes
// where controllers are handed down.
func stepAside(o options, leaf string) error {
	return each(func(tree hierarchy) error {
		if !tree.unified {
			return nil
		}
		own := filepath.Join(tree.folder, o.cgroup, leaf)
		if err := os.MkdirAll(own, 0o755); err != nil {
			return err
		}
		return join(own)
	})
}

// ownCgroups shows the node its own cgroup as the root of each tree.
func ownCgroups(o options) error {
	if err := stepAside(o, "node"); err != nil {
		return err
	}
	return each(func(tree hierarchy) error {
		return syscall.Mount(filepath.Join(tree.folder, o.cgroup), tree.folder, "", syscall.MS_BIND, "")
	})
}

// join moves this process.
func join(folder string) error {
	return os.WriteFile(filepath.Join(folder, "cgroup.procs"), []byte("0"), 0o644)
}

// each does something for every tree.
func each(do func(hierarchy) error) error {
	trees, err := hierarchies()
	if err != nil {
		return err
	}
	for _, tree := range trees {
		if err := do(tree); err != nil {
			return fmt.Errorf("cgroups at %s: %w", tree.folder, err)
		}
	}
	return nil
}
