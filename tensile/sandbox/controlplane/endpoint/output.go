package main

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"
	"time"
)

// longest is the number of bytes after which a line is logged in parts, as container runtimes do.
const longest = 16 * 1024

// output is where a container's process writes: its log, and whoever is attached.
type output struct {
	mutex    sync.Mutex
	log      *os.File
	watchers map[*watcher]bool
}

// watcher is one attached client; a writer of it may be nil.
type watcher struct{ out, err io.Writer }

// newOutput begins the log of a container; the log that is there becomes the previous one.
func newOutput(path string) (*output, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, err
	}
	if err := os.Rename(path, previous(path)); err != nil && !os.IsNotExist(err) {
		return nil, err
	}
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	return &output{log: file, watchers: map[*watcher]bool{}}, err
}

// watch shows a client what is written from now on, until `leave` is called.
func (o *output) watch(w *watcher) (leave func()) {
	o.mutex.Lock()
	defer o.mutex.Unlock()
	o.watchers[w] = true
	return func() {
		o.mutex.Lock()
		defer o.mutex.Unlock()
		delete(o.watchers, w)
	}
}

// show hands bytes to those attached; one that does not take them any more is forgotten.
func (o *output) show(data []byte, of func(*watcher) io.Writer) {
	for w := range o.watchers {
		sink := of(w)
		if sink == nil {
			continue
		}
		if _, err := sink.Write(data); err != nil {
			delete(o.watchers, w)
		}
	}
}

// line writes one line of the log, or a part of one.
func (o *output) line(stream, tag string, text []byte) error {
	_, err := fmt.Fprintf(o.log, "%s %s %s %s\n", time.Now().UTC().Format(time.RFC3339Nano), stream, tag, text)
	return err
}

// stdout is the writer for standard output, and for a terminal.
func (o *output) stdout() *stream {
	return &stream{output: o, name: "stdout", of: func(w *watcher) io.Writer { return w.out }}
}

// stderr is the writer for standard error.
func (o *output) stderr() *stream {
	return &stream{output: o, name: "stderr", of: func(w *watcher) io.Writer { return w.err }}
}

// stream logs by lines what it shows at once.
type stream struct {
	*output
	name string
	of   func(*watcher) io.Writer
	rest []byte
}

func (s *stream) Write(data []byte) (int, error) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	s.show(data, s.of)
	s.rest = append(s.rest, data...)
	for len(s.rest) > 0 {
		end, tag, skip := bytes.IndexByte(s.rest, '\n'), "F", 1
		if end < 0 || end > longest {
			if len(s.rest) < longest {
				break
			}
			end, tag, skip = longest, "P", 0
		}
		if err := s.line(s.name, tag, s.rest[:end]); err != nil {
			return 0, err
		}
		s.rest = s.rest[end+skip:]
	}
	return len(data), nil
}

// Close logs what came after the last line's end.
func (s *stream) Close() error {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	if len(s.rest) == 0 {
		return nil
	}
	return s.line(s.name, "F", s.rest)
}

// previous is where the log of the container's run before this one is.
func previous(path string) string { return path + ".previous" }
