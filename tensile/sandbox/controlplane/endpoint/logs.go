package main

import (
	"bufio"
	"context"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"time"
)

// logServer serves the log files of containers.
type logServer struct {
	folder  string
	pods    *pods
	watcher *fileWatcher
}

// serve answers containerLogs with the options of kubectl logs.
func (l logServer) serve(w http.ResponseWriter, r *http.Request, t target) {
	options, err := newLogOptions(r.URL.Query(), time.Now())
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	buffer := bufio.NewWriterSize(w, copyBuffer)
	out := logOutput{buffer, buffer, func() error {
		if err := buffer.Flush(); err != nil {
			return err
		}
		return http.NewResponseController(w).Flush()
	}}
	read := l.read
	if r.URL.Query().Get("previous") == "true" {
		read = l.readPrevious
	}
	if err := read(r.Context(), t, options, out); err != nil && r.Context().Err() == nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
	}
}

// read copies a container's log. When it follows, it continues until the current run of the container ends, or, if the
// container has no process, until its file is removed.
func (l logServer) read(ctx context.Context, t target, o logOptions, out logOutput) error {
	process, err := l.pods.process(ctx, t)
	if err != nil {
		return err
	}
	path := l.path(t)
	if process != nil {
		return copyLog(ctx, path, o, l.watcher, process.runEnd(), out)
	}
	if err := l.create(path, t); err != nil {
		return err
	}
	return copyLog(ctx, path, o, l.watcher, nil, out)
}

// readPrevious copies the log of the run before the current one.
func (l logServer) readPrevious(ctx context.Context, t target, o logOptions, out logOutput) error {
	path := previous(l.path(t))
	if _, err := os.Stat(path); err != nil {
		return fmt.Errorf("previous terminated container %q in pod %q not found", t.container, t.pod)
	}
	o.follow = false
	return copyLog(ctx, path, o, l.watcher, nil, out)
}

// path returns the path of the container's log.
func (l logServer) path(t target) string {
	return filepath.Join(l.folder, t.namespace, t.pod, t.container+".log")
}

// create writes the first line of a log, if the log does not exist.
func (l logServer) create(path string, t target) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if os.IsExist(err) {
		return nil
	}
	if err != nil {
		return err
	}
	defer file.Close()
	_, err = fmt.Fprintf(file, "%s stdout F %s started in pod %s/%s\n",
		time.Now().UTC().Format(time.RFC3339Nano), t.container, t.namespace, t.pod)
	return err
}

// newLogOptions reads the query as the kubelet does.
func newLogOptions(query url.Values, now time.Time) (logOptions, error) {
	options := logOptions{follow: query.Get("follow") == "true", timestamps: query.Get("timestamps") == "true"}
	var err error
	if options.tailLines, err = number(query, "tailLines"); err != nil {
		return options, err
	}
	if options.limitBytes, err = number(query, "limitBytes"); err != nil {
		return options, err
	}
	options.since, err = since(query, now)
	return options, err
}

// since returns the time from which lines are wanted, zero for all lines.
func since(query url.Values, now time.Time) (time.Time, error) {
	if text := query.Get("sinceTime"); text != "" {
		return time.Parse(time.RFC3339Nano, text)
	}
	seconds, err := number(query, "sinceSeconds")
	if err != nil || seconds == nil {
		return time.Time{}, err
	}
	return now.Add(-time.Duration(*seconds) * time.Second), nil
}

// number returns the number of a key, nil if it is absent.
func number(query url.Values, key string) (*int64, error) {
	text := query.Get(key)
	if text == "" {
		return nil, nil
	}
	value, err := strconv.ParseInt(text, 10, 64)
	if err != nil || value < 0 {
		return nil, fmt.Errorf("%s: %q is not a whole number of 0 or more", key, text)
	}
	return &value, nil
}
