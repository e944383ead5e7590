package main

import (
	"context"
	"errors"
	"io"
	"os/exec"
	"sync"
	"syscall"
	"time"

	"github.com/creack/pty"
	"k8s.io/cri-streaming/pkg/streaming/remotecommand"
)

const (
	initialBackoff = 50 * time.Millisecond // before a restart, or before pods are listed again; doubled each time
	maxBackoff     = 10 * time.Second
	outputTimeout  = 5 * time.Second // for attached clients to take the last output of a command
	backoffReset   = time.Minute     // a container that ran for so long is restarted with the initial backoff
)

// termination is the end of one run of a container's process.
type termination struct {
	exitCode              int
	startedAt, finishedAt time.Time
}

// run is one run of a container's process.
type run struct {
	output *output
	pipes  []*outputPipe  // none if it has a terminal
	input  io.WriteCloser // nil if it has none
	resize func(remotecommand.TerminalSize)
	done   chan struct{}
}

// process is a container whose command runs as a local process until its pod is deleted.
type process struct {
	container
	spec     containerSpec
	report   func(restarts int, startedAt time.Time, last *termination, running bool)
	policy   string
	restarts int // the number of restarts before this program started

	mutex    sync.Mutex
	current  *run
	finished bool          // no other run will come
	changed  chan struct{} // closed and replaced when there is another run, or no other run will come
}

// run runs and restarts the command according to the restart policy, until the context ends.
func (p *process) run(ctx context.Context) {
	defer p.setCurrent(nil, true)
	backoff, last := initialBackoff, (*termination)(nil)
	for restarts := p.restarts; ctx.Err() == nil; restarts++ {
		startedAt := time.Now()
		p.report(restarts, startedAt, last, true)
		last = &termination{p.runOnce(ctx), startedAt, time.Now()}
		if ctx.Err() != nil {
			return
		}
		if !p.restartsAfter(last.exitCode) {
			p.report(restarts, startedAt, last, false)
			return
		}
		if last.finishedAt.Sub(startedAt) > backoffReset {
			backoff = initialBackoff
		}
		sleep(ctx, backoff)
		backoff = min(2*backoff, maxBackoff)
	}
}

// restartsAfter reports whether the container is restarted after that exit code.
func (p *process) restartsAfter(code int) bool {
	return p.policy == restartAlways || p.policy == restartOnFailure && code != 0
}

// runOnce runs the command to its end and returns its exit code, 128 if it cannot be started.
func (p *process) runOnce(ctx context.Context) int {
	sink, err := newOutput(p.logs.path(p.target))
	if err != nil {
		return 128
	}
	defer sink.log.Close()
	command, err := p.command(ctx)
	if err == nil {
		err = p.start(command, sink)
	}
	if err != nil {
		_ = sink.line("stderr", "F", []byte(err.Error()))
		return 128
	}
	p.finish(command)
	return exitCode(command.ProcessState)
}

// command returns the container's command, not yet started.
func (p *process) command(ctx context.Context) (*exec.Cmd, error) {
	command, err := p.process(ctx, append(append([]string{}, p.spec.Command...), p.spec.Args...))
	if err != nil {
		return nil, err
	}
	for _, variable := range p.spec.Env {
		if variable.ValueFrom == nil {
			command.Env = append(command.Env, variable.Name+"="+variable.Value)
		}
	}
	return command, nil
}

// start starts the command on a terminal or on pipes, and makes it the current run.
func (p *process) start(command *exec.Cmd, sink *output) error {
	current := &run{output: sink, done: make(chan struct{}), resize: func(remotecommand.TerminalSize) {}}
	if p.spec.TTY {
		return p.startOnTerminal(command, current)
	}
	command.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Pdeathsig: syscall.SIGKILL}
	if p.spec.Stdin {
		input, err := command.StdinPipe()
		if err != nil {
			return err
		}
		current.input = input
	}
	pipes, err := newOutputPipes(sink.stdout(), sink.stderr())
	if err != nil {
		return err
	}
	command.Stdout, command.Stderr = pipes[0].writer, pipes[1].writer
	err = command.Start()
	for _, pipe := range pipes {
		_ = pipe.writer.Close() // the command has its own
		go pipe.copy()
	}
	if err != nil {
		return err
	}
	current.pipes = pipes
	p.setCurrent(current, false)
	return nil
}

// startOnTerminal starts the command on a terminal, and copies its output until its last process has ended.
func (p *process) startOnTerminal(command *exec.Cmd, current *run) error {
	terminal, err := pty.StartWithAttrs(command, nil,
		&syscall.SysProcAttr{Setsid: true, Setctty: true, Pdeathsig: syscall.SIGKILL})
	if err != nil {
		return err
	}
	out := current.output.stdout()
	current.resize = func(size remotecommand.TerminalSize) {
		_ = pty.Setsize(terminal, &pty.Winsize{Rows: size.Height, Cols: size.Width})
	}
	if p.spec.Stdin {
		current.input = terminal
	}
	p.setCurrent(current, false)
	_, _ = io.Copy(out, terminal)
	_ = out.Close()
	return terminal.Close()
}

// finish waits for the end of the command, and kills its other processes: a container ends with its first process.
func (p *process) finish(command *exec.Cmd) {
	_ = command.Wait()
	killGroup(command.Process.Pid)
	limited, cancel := context.WithTimeout(context.Background(), outputTimeout)
	defer cancel()
	for _, pipe := range p.current.pipes {
		pipe.end(limited)
	}
	close(p.current.done)
}

// runEnd returns a channel that is closed when the current run ends. Without one, it is closed at the next change.
func (p *process) runEnd() <-chan struct{} {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	switch {
	case p.current != nil:
		return p.current.done
	case p.finished:
		ended := make(chan struct{})
		close(ended)
		return ended
	}
	return p.changed
}

// setCurrent sets the current run, if there is another one, and notifies the waiting goroutines.
func (p *process) setCurrent(next *run, finished bool) {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	p.finished = finished
	if next != nil {
		p.current = next
	}
	close(p.changed)
	p.changed = make(chan struct{})
}

// running waits for a run that has not ended, and returns it.
func (p *process) running(ctx context.Context) (*run, error) {
	for {
		p.mutex.Lock()
		current, finished, changed := p.current, p.finished, p.changed
		p.mutex.Unlock()
		if current != nil && !isClosed(current.done) {
			return current, nil
		}
		if finished {
			return nil, errors.New("the container has ended")
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// attach connects a client to the current run until the run ends.
func (p *process) attach(ctx context.Context, in io.Reader, out, errOut io.Writer,
	resize <-chan remotecommand.TerminalSize) error {
	current, err := p.running(ctx)
	if err != nil {
		return err
	}
	defer current.output.attach(&attachment{out, errOut})()
	go func() {
		for size := range resize {
			current.resize(size)
		}
	}()
	if in != nil && current.input != nil {
		go p.copyInput(current, in)
	}
	select {
	case <-current.done:
	case <-ctx.Done():
	}
	return nil
}

// copyInput copies a client's input, and then closes the container's input if stdinOnce is set.
func (p *process) copyInput(current *run, in io.Reader) {
	_, _ = io.Copy(current.input, in)
	if p.spec.StdinOnce && !p.spec.TTY {
		_ = current.input.Close()
	}
}

// sleep waits for that time, or until the context ends.
func sleep(ctx context.Context, pause time.Duration) {
	select {
	case <-time.After(pause):
	case <-ctx.Done():
	}
}

// isClosed reports whether the channel is closed.
func isClosed(done <-chan struct{}) bool {
	select {
	case <-done:
		return true
	default:
		return false
	}
}
