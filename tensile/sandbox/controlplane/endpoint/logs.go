package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"time"

	internalapi "k8s.io/cri-api/pkg/apis"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	crilogs "k8s.io/cri-client/pkg/logs"
)

// logReader serves the log files of containers.
type logReader struct {
	folder string
	pods   *pods
}

// serve answers containerLogs with the options of kubectl logs.
func (l logReader) serve(w http.ResponseWriter, r *http.Request, t target) {
	options, err := logOptions(r.URL.Query(), time.Now())
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	out := flushWriter{w, w.(http.Flusher)}
	read := l.read
	if r.URL.Query().Get("previous") == "true" {
		read = l.readPrevious
	}
	if err := read(r.Context(), t, options, out, out); err != nil && r.Context().Err() == nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
	}
}

// read copies a container's log. When it follows, it goes on until the container's run ends, or, where the container
// has no process, until its file is removed.
func (l logReader) read(ctx context.Context, t target, o *crilogs.LogOptions, out, err io.Writer) error {
	process, failed := l.pods.process(ctx, t)
	if failed != nil {
		return failed
	}
	path := l.path(t)
	if process != nil {
		return crilogs.ReadLogs(ctx, path, path, o, process.state(), out, err)
	}
	if failed := l.create(path, t); failed != nil {
		return failed
	}
	return crilogs.ReadLogs(ctx, path, path, o, existing{}, out, err)
}

// readPrevious copies the log of the run before this one.
func (l logReader) readPrevious(ctx context.Context, t target, o *crilogs.LogOptions, out, err io.Writer) error {
	path := previous(l.path(t))
	if _, failed := os.Stat(path); failed != nil {
		return fmt.Errorf("previous terminated container %q in pod %q not found", t.container, t.pod)
	}
	o.Follow = false
	return crilogs.ReadLogs(ctx, path, path, o, existing{}, out, err)
}

// path returns the path of the container's log.
func (l logReader) path(t target) string {
	return filepath.Join(l.folder, t.namespace, t.pod, t.container+".log")
}

// create writes the first line of a log, if the log does not exist.
func (l logReader) create(path string, t target) error {
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

// logOptions reads the query as the kubelet does.
func logOptions(query url.Values, now time.Time) (*crilogs.LogOptions, error) {
	options := &crilogs.LogOptions{
		Follow:    query.Get("follow") == "true",
		Timestamp: query.Get("timestamps") == "true",
	}
	var err error
	if options.TailLines, err = number(query, "tailLines"); err != nil {
		return nil, err
	}
	if options.LimitBytes, err = number(query, "limitBytes"); err != nil {
		return nil, err
	}
	options.Since, err = since(query, now)
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

// flushWriter flushes after every line, so that a client that follows the log receives it at once.
type flushWriter struct {
	io.Writer
	flusher http.Flusher
}

func (f flushWriter) Write(data []byte) (int, error) {
	n, err := f.Writer.Write(data)
	f.flusher.Flush()
	return n, err
}

// existing calls a container running for as long as its log file exists; the reader asks no more.
type existing struct{ internalapi.RuntimeService }

func (existing) ContainerStatus(_ context.Context, path string, _ bool) (*runtimeapi.ContainerStatusResponse, error) {
	_, err := os.Stat(path)
	return status(err == nil), nil
}

// lasting calls a container running until its run is over.
type lasting struct {
	internalapi.RuntimeService
	done <-chan struct{}
}

func (l lasting) ContainerStatus(context.Context, string, bool) (*runtimeapi.ContainerStatusResponse, error) {
	return status(!isClosed(l.done)), nil
}

// status is all that the reader of logs asks of a container's status.
func status(runs bool) *runtimeapi.ContainerStatusResponse {
	state := runtimeapi.ContainerState_CONTAINER_EXITED
	if runs {
		state = runtimeapi.ContainerState_CONTAINER_RUNNING
	}
	return &runtimeapi.ContainerStatusResponse{Status: &runtimeapi.ContainerStatus{State: state}}
}
