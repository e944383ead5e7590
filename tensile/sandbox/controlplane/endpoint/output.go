package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"
)

// maxLine is the number of bytes after which a line is logged in parts, as container runtimes do.
const maxLine = 16 * 1024

// output receives what a container's process writes: it writes the log, and sends it to attached clients.
type output struct {
	mutex       sync.Mutex
	log         *os.File
	attachments map[*attachment]bool
}

// attachment is an attached client; either writer may be nil.
type attachment struct{ out, err io.Writer }

// newOutput creates the log of a container; an existing log becomes the previous one.
func newOutput(path string) (*output, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, err
	}
	if err := os.Rename(path, previous(path)); err != nil && !os.IsNotExist(err) {
		return nil, err
	}
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	return &output{log: file, attachments: map[*attachment]bool{}}, err
}

// attach sends a client what is written from now on, until detach is called.
func (o *output) attach(a *attachment) (detach func()) {
	o.mutex.Lock()
	defer o.mutex.Unlock()
	o.attachments[a] = true
	return func() {
		o.mutex.Lock()
		defer o.mutex.Unlock()
		delete(o.attachments, a)
	}
}

// send writes data to the attached clients, and removes those that fail.
func (o *output) send(data []byte, writer func(*attachment) io.Writer) {
	for a := range o.attachments {
		sink := writer(a)
		if sink == nil {
			continue
		}
		if _, err := sink.Write(data); err != nil {
			delete(o.attachments, a)
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
	return &stream{output: o, name: "stdout", writer: func(a *attachment) io.Writer { return a.out }}
}

// stderr is the writer for standard error.
func (o *output) stderr() *stream {
	return &stream{output: o, name: "stderr", writer: func(a *attachment) io.Writer { return a.err }}
}

// stream is one output stream: it sends data at once, and logs whole lines.
type stream struct {
	*output
	name    string
	writer  func(*attachment) io.Writer
	pending []byte
}

func (s *stream) Write(data []byte) (int, error) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	s.send(data, s.writer)
	s.pending = append(s.pending, data...)
	for len(s.pending) > 0 {
		end, tag, skip := bytes.IndexByte(s.pending, '\n'), "F", 1
		if end < 0 || end > maxLine {
			if len(s.pending) < maxLine {
				break
			}
			end, tag, skip = maxLine, "P", 0
		}
		if err := s.line(s.name, tag, s.pending[:end]); err != nil {
			return 0, err
		}
		s.pending = s.pending[end+skip:]
	}
	return len(data), nil
}

// Close logs the last line, if it has no end.
func (s *stream) Close() error {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	if len(s.pending) == 0 {
		return nil
	}
	return s.line(s.name, "F", s.pending)
}

// outputPipe is the pipe into which a command writes one output stream.
type outputPipe struct {
	reader, writer *os.File
	stream         *stream
	copied         chan struct{} // closed when all output is logged
}

// newOutputPipes creates a pipe for each stream.
func newOutputPipes(streams ...*stream) ([]*outputPipe, error) {
	var pipes []*outputPipe
	for _, each := range streams {
		reader, writer, err := os.Pipe()
		if err != nil {
			for _, pipe := range pipes {
				_, _ = pipe.reader.Close(), pipe.writer.Close()
			}
			return nil, err
		}
		pipes = append(pipes, &outputPipe{reader, writer, each, make(chan struct{})})
	}
	return pipes, nil
}

// copy copies the output until nobody has the pipe open for writing, or until end is called.
func (p *outputPipe) copy() {
	defer close(p.copied)
	defer p.reader.Close()
	_, err := io.Copy(p.stream, p.reader)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		p.copyRest()
	}
	_ = p.stream.Close()
}

// copyRest copies what is in the pipe, without waiting for more.
func (p *outputPipe) copyRest() {
	_ = p.reader.SetReadDeadline(time.Time{})
	raw, err := p.reader.SyscallConn()
	if err != nil {
		return
	}
	buffer := make([]byte, maxLine)
	_ = raw.Read(func(fd uintptr) bool {
		for {
			size, err := syscall.Read(int(fd), buffer)
			if errors.Is(err, syscall.EINTR) {
				continue
			}
			if size <= 0 {
				return true
			}
			if _, err := p.stream.Write(buffer[:size]); err != nil {
				return true
			}
		}
	})
}

// end is called when the command has ended. It waits until all of its output is logged, but not for other processes that
// have the pipe open. An attached client that does not read its output delays this until the context ends.
func (p *outputPipe) end(ctx context.Context) {
	_ = p.reader.SetReadDeadline(time.Now())
	select {
	case <-p.copied:
	case <-ctx.Done():
	}
}

// previous returns the path of the log of the run before the current one.
func previous(path string) string { return path + ".previous" }
