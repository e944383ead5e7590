package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"time"
)

// timestampFormat has nine digits, so that timestamps of lines are aligned.
const timestampFormat = "2006-01-02T15:04:05.000000000Z07:00"

// errEnough ends the copying of a log when no more of it is wanted.
var errEnough = errors.New("no more lines are wanted")

// logOptions are those of kubectl logs.
type logOptions struct {
	follow     bool
	timestamps bool
	tailLines  *int64 // nil for all lines; 0 is possible
	limitBytes *int64 // nil for no limit
	since      time.Time
}

// logOutput receives the text of a log. A stream that is nil is left out.
type logOutput struct {
	stdout, stderr io.Writer
	flush          func() error // called before each wait
}

// logCopier copies a log file in CRI format, as the kubelet does. Its lines are like
//
//	2031-01-01T00:00:03.5Z stdout F text
//
// where the tag P instead of F means that the line continues in another one.
type logCopier struct {
	logOptions
	logOutput
	file      *os.File
	input     *bufio.Reader
	line      []byte // the line that is being read, as far as it is written
	lines     int64  // how many more lines are wanted
	bytes     int64  // how many more bytes are wanted
	read      bool   // whether there was a line
	continues bool   // whether the last line was a part
	unflushed bool
}

// copyLog copies a log. When it follows, it continues until done is closed, or until the file is no longer at that path,
// because it was removed or the container was restarted. It always copies what was written before.
func copyLog(ctx context.Context, path string, o logOptions, watcher *fileWatcher, done <-chan struct{},
	out logOutput) error {
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	defer file.Close()
	c := &logCopier{logOptions: o, logOutput: out, file: file, input: bufio.NewReader(file),
		lines: math.MaxInt64, bytes: math.MaxInt64}
	if o.limitBytes != nil {
		c.bytes = *o.limitBytes
	}
	if o.tailLines != nil {
		if err := c.seek(*o.tailLines); err != nil {
			return err
		}
	}
	var changed <-chan struct{}
	if o.follow {
		var stop func()
		if changed, stop, err = watcher.watch(file); err != nil {
			return err
		}
		defer stop()
	}
	for {
		last := !o.follow || isClosed(done) || !c.isAt(path)
		err := c.copy(last)
		if errors.Is(err, errEnough) {
			return nil
		}
		if err != nil || last {
			return err
		}
		select {
		case <-changed:
		case <-done:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// seek goes to the last lines, to which no other ones are added unless the log is followed.
func (c *logCopier) seek(count int64) error {
	if !c.follow {
		c.lines = count
	}
	size, err := c.file.Seek(0, io.SeekEnd)
	if err != nil {
		return err
	}
	start, err := tailStart(c.file, size, count)
	if err != nil {
		return err
	}
	_, err = c.file.Seek(start, io.SeekStart)
	return err
}

// tailStart returns where the last lines of a file begin. A line without an end does not count as one.
func tailStart(file io.ReaderAt, size, count int64) (int64, error) {
	buffer := make([]byte, 4096)
	for end := size; end > 0; {
		start := max(0, end-int64(len(buffer)))
		block := buffer[:end-start]
		if _, err := file.ReadAt(block, start); err != nil {
			return 0, err
		}
		for at := bytes.LastIndexByte(block, '\n'); at >= 0; at = bytes.LastIndexByte(block[:at], '\n') {
			if count == 0 {
				return start + int64(at) + 1, nil
			}
			count--
		}
		end = start
	}
	return 0, nil
}

// isAt reports whether the file is still at that path.
func (c *logCopier) isAt(path string) bool {
	opened, err := c.file.Stat()
	if err != nil {
		return false
	}
	found, err := os.Stat(path)
	return err == nil && os.SameFile(opened, found)
}

// copy copies the rest of the file; with last also a line without an end.
func (c *logCopier) copy(last bool) error {
	err := c.copyLines()
	if err == nil && last && len(c.line) > 0 {
		err = c.copyLine()
	}
	if c.unflushed && c.flush != nil {
		c.unflushed = false
		err = errors.Join(err, c.flush())
	}
	return err
}

// copyLines copies the lines up to the end of the file.
func (c *logCopier) copyLines() error {
	for {
		if c.lines == 0 || c.bytes == 0 {
			return errEnough
		}
		text, err := c.input.ReadSlice('\n')
		c.line = append(c.line, text...)
		if err == nil {
			err = c.copyLine()
			c.line = c.line[:0]
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil && !errors.Is(err, bufio.ErrBufferFull) {
			return err
		}
	}
}

// copyLine copies the current line. It skips a line in another format, except the first one: then it is another file.
func (c *logCopier) copyLine() error {
	entry, err := parseEntry(c.line)
	if err != nil {
		if c.read {
			return nil
		}
		return err
	}
	c.read = true
	c.lines--
	text := entry.text
	if c.timestamps && !c.continues {
		text = append(entry.time.AppendFormat(nil, timestampFormat+" "), text...)
	}
	c.continues = !bytes.HasSuffix(entry.text, []byte{'\n'})
	if entry.time.Before(c.since) {
		return nil
	}
	out := c.stdout
	if entry.stderr {
		out = c.stderr
	}
	if out == nil {
		return nil
	}
	if int64(len(text)) > c.bytes {
		text = text[:c.bytes]
	}
	c.unflushed = true
	c.bytes -= int64(len(text))
	_, err = out.Write(text)
	return err
}

// logEntry is a line of a log.
type logEntry struct {
	time   time.Time
	stderr bool
	text   []byte // with the end of the line, unless the line continues
}

// parseEntry parses a line in CRI format.
func parseEntry(line []byte) (logEntry, error) {
	written, rest, _ := bytes.Cut(line, []byte{' '})
	stream, rest, _ := bytes.Cut(rest, []byte{' '})
	tags, text, found := bytes.Cut(rest, []byte{' '})
	if !found || string(stream) != "stdout" && string(stream) != "stderr" {
		return logEntry{}, fmt.Errorf("unsupported log format: %q", line)
	}
	at, err := time.Parse(time.RFC3339Nano, string(written))
	if err != nil {
		return logEntry{}, fmt.Errorf("unsupported log format: %w", err)
	}
	if tag, _, _ := bytes.Cut(tags, []byte{':'}); string(tag) == "P" {
		text = bytes.TrimSuffix(text, []byte{'\n'})
	}
	return logEntry{at, string(stream) == "stderr", text}, nil
}
