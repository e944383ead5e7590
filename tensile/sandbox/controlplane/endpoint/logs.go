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
type logReader struct{ folder string }

// serve answers containerLogs with the options of kubectl logs.
func (l logReader) serve(w http.ResponseWriter, r *http.Request, t target) {
	options, err := logOptions(r.URL.Query(), time.Now())
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	out := flushing{w, w.(http.Flusher)}
	if err := l.read(r.Context(), t, options, out, out); err != nil && r.Context().Err() == nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
	}
}

// read copies a container's log, and goes on for as long as its file exists when it follows.
func (l logReader) read(ctx context.Context, t target, o *crilogs.LogOptions, out, err io.Writer) error {
	path, failed := l.file(t)
	if failed != nil {
		return failed
	}
	return crilogs.ReadLogs(ctx, path, path, o, existing{}, out, err)
}

// file names the container's log, and writes its first line when there is none yet.
func (l logReader) file(t target) (string, error) {
	path := filepath.Join(l.folder, t.namespace, t.pod, t.container+".log")
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return "", err
	}
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if os.IsExist(err) {
		return path, nil
	}
	if err != nil {
		return "", err
	}
	defer file.Close()
	_, err = fmt.Fprintf(file, "%s stdout F %s started in pod %s/%s\n",
		time.Now().UTC().Format(time.RFC3339Nano), t.container, t.namespace, t.pod)
	return path, err
}

// logOptions reads the query as the kubelet does.
func logOptions(query url.Values, now time.Time) (*crilogs.LogOptions, error) {
	if query.Get("previous") == "true" {
		return nil, fmt.Errorf("previous terminated container not found")
	}
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

// since is the time from which lines are wanted; zero: from the first on.
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

// number reads a whole number that may be absent.
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

// flushing sends every line at once, so that a follower sees it when it is written.
type flushing struct {
	io.Writer
	flusher http.Flusher
}

func (f flushing) Write(data []byte) (int, error) {
	n, err := f.Writer.Write(data)
	f.flusher.Flush()
	return n, err
}

// existing calls a container running for as long as its log file exists; the reader asks no more.
type existing struct{ internalapi.RuntimeService }

func (existing) ContainerStatus(_ context.Context, path string, _ bool) (*runtimeapi.ContainerStatusResponse, error) {
	state := runtimeapi.ContainerState_CONTAINER_RUNNING
	if _, err := os.Stat(path); err != nil {
		state = runtimeapi.ContainerState_CONTAINER_EXITED
	}
	return &runtimeapi.ContainerStatusResponse{Status: &runtimeapi.ContainerStatus{State: state}}, nil
}
