package main

import (
	"encoding/binary"
	"fmt"
	"os"
	"sync"
	"syscall"
)

// fileEvents are a write, an unlink, and a rename of a watched file.
const fileEvents = syscall.IN_MODIFY | syscall.IN_ATTRIB | syscall.IN_MOVE_SELF

// fileWatcher notifies of changes of files. All of them share one inotify instance, since a user may have only 128.
type fileWatcher struct {
	mutex    sync.Mutex
	instance *os.File // nil before the first watch
	fd       int      // of the instance
	watches  map[int]map[chan struct{}]bool
}

// watch returns a channel that receives when the file is written, removed or renamed, until stop is called.
func (w *fileWatcher) watch(file *os.File) (changed <-chan struct{}, stop func(), err error) {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	if err := w.open(); err != nil {
		return nil, nil, err
	}
	// The path of the descriptor names the open file, even after another file has got its path.
	id, err := syscall.InotifyAddWatch(w.fd, fmt.Sprintf("/proc/self/fd/%d", file.Fd()), fileEvents)
	if err != nil {
		return nil, nil, os.NewSyscallError("inotify_add_watch", err)
	}
	if w.watches[id] == nil {
		w.watches[id] = map[chan struct{}]bool{}
	}
	notify := make(chan struct{}, 1)
	w.watches[id][notify] = true
	return notify, func() { w.stop(id, notify) }, nil
}

// stop ends one watch; the kernel has one for each file.
func (w *fileWatcher) stop(id int, notify chan struct{}) {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	delete(w.watches[id], notify)
	if len(w.watches[id]) == 0 {
		delete(w.watches, id)
		_, _ = syscall.InotifyRmWatch(w.fd, uint32(id))
	}
}

// open creates the inotify instance, if there is none.
func (w *fileWatcher) open() error {
	if w.instance != nil {
		return nil
	}
	fd, err := syscall.InotifyInit1(syscall.IN_NONBLOCK | syscall.IN_CLOEXEC)
	if err != nil {
		return os.NewSyscallError("inotify_init1", err)
	}
	w.fd, w.instance, w.watches = fd, os.NewFile(uintptr(fd), "inotify"), map[int]map[chan struct{}]bool{}
	go w.read()
	return nil
}

// read passes on the notices of the kernel. It has none with a name, since no folder is watched.
func (w *fileWatcher) read() {
	buffer := make([]byte, 256*syscall.SizeofInotifyEvent)
	for {
		size, err := w.instance.Read(buffer)
		if err != nil {
			fmt.Fprintln(os.Stderr, "endpoint: inotify:", err)
			return
		}
		w.mutex.Lock()
		for event := buffer[:size]; len(event) > 0; event = event[syscall.SizeofInotifyEvent:] {
			w.notify(int(int32(binary.NativeEndian.Uint32(event))))
		}
		w.mutex.Unlock()
	}
}

// notify wakes the watchers of a file, all watchers if the queue of the kernel was full.
func (w *fileWatcher) notify(id int) {
	for each, watchers := range w.watches {
		if each != id && id >= 0 {
			continue
		}
		for watcher := range watchers {
			select {
			case watcher <- struct{}{}:
			default: // it has not read the previous notice yet
			}
		}
	}
}
