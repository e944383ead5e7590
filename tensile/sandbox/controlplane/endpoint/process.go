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
	corev1 "k8s.io/api/core/v1"
	"k8s.io/cri-streaming/pkg/streaming/remotecommand"
)

const (
	firstPause  = 50 * time.Millisecond // before a container is started again, doubled each time
	longestWait = 10 * time.Second
	drain       = 200 * time.Millisecond // for output that is under way when a command ends
	steady      = time.Minute            // a container that ran for so long is started again without a wait
)

// ended is how one run of a container's process ended.
type ended struct {
	code         int
	begun, ended time.Time
}

// run is one run of a container's process.
type run struct {
	output *output
	input  io.WriteCloser // nil: it has none
	resize func(remotecommand.TerminalSize)
	done   chan struct{}
}

// process is a container whose command runs as a local process for as long as its pod is there.
type process struct {
	container
	spec   corev1.EphemeralContainerCommon
	report func(restarts int, begun time.Time, last *ended, again bool)
	policy corev1.RestartPolicy
	before int // how often it was started again by a server before this one

	mutex   sync.Mutex
	current *run
	gone    bool
	changed chan struct{} // closed when there is another run, or none will come
}

// keep runs the command again and again, as the pod's restart policy has it, until the context ends.
func (p *process) keep(ctx context.Context) {
	defer p.announce(nil, true)
	pause, last := firstPause, (*ended)(nil)
	for restarts := p.before; ctx.Err() == nil; restarts++ {
		begun := time.Now()
		p.report(restarts, begun, last, true)
		last = &ended{p.once(ctx), begun, time.Now()}
		if ctx.Err() != nil {
			return
		}
		if !p.again(last.code) {
			p.report(restarts, begun, last, false)
			return
		}
		if last.ended.Sub(begun) > steady {
			pause = firstPause
		}
		wait(ctx, pause)
		pause = min(2*pause, longestWait)
	}
}

// again tells whether the container is started once more after it ended with that code.
func (p *process) again(code int) bool {
	return p.policy == corev1.RestartPolicyAlways || p.policy == corev1.RestartPolicyOnFailure && code != 0
}

// once runs the command to its end and returns its exit code; what cannot be started ends with 128.
func (p *process) once(ctx context.Context) int {
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

// command is the container's command, not yet started.
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

// start starts the command on a terminal or on pipes, and lets those in who wait for it.
func (p *process) start(command *exec.Cmd, sink *output) error {
	current := &run{output: sink, done: make(chan struct{}), resize: func(remotecommand.TerminalSize) {}}
	if p.spec.TTY {
		return p.startOnTerminal(command, current)
	}
	command.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Pdeathsig: syscall.SIGKILL}
	command.Stdout, command.Stderr, command.WaitDelay = sink.stdout(), sink.stderr(), drain
	if p.spec.Stdin {
		input, err := command.StdinPipe()
		if err != nil {
			return err
		}
		current.input = input
	}
	if err := command.Start(); err != nil {
		return err
	}
	p.announce(current, false)
	return nil
}

// startOnTerminal gives the command a terminal, whose output ends when the command's last process does.
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
	p.announce(current, false)
	_, _ = io.Copy(out, terminal)
	_ = out.Close()
	return terminal.Close()
}

// finish waits for the command's end, and ends what it left running: a container ends with its first process.
func (p *process) finish(command *exec.Cmd) {
	_ = command.Wait()
	killGroup(command.Process.Pid)
	for _, sink := range []io.Writer{command.Stdout, command.Stderr} {
		if out, ok := sink.(*stream); ok {
			_ = out.Close()
		}
	}
	close(p.current.done)
}

// state is what the reader of the container's log asks: whether the run of this moment is over.
func (p *process) state() lasting {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	if p.current == nil {
		return lasting{done: p.changed}
	}
	return lasting{done: p.current.done}
}

// announce tells those who wait that there is another run, or that none will come any more.
func (p *process) announce(next *run, gone bool) {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	p.gone = gone
	if next != nil {
		p.current = next
	}
	close(p.changed)
	p.changed = make(chan struct{})
}

// running waits for a run that has not ended.
func (p *process) running(ctx context.Context) (*run, error) {
	for {
		p.mutex.Lock()
		current, gone, changed := p.current, p.gone, p.changed
		p.mutex.Unlock()
		if current != nil && !over(current.done) {
			return current, nil
		}
		if gone {
			return nil, errors.New("the container has ended")
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// attach connects a client to the run of this moment until that ends.
func (p *process) attach(ctx context.Context, in io.Reader, out, errOut io.Writer,
	resize <-chan remotecommand.TerminalSize) error {
	current, err := p.running(ctx)
	if err != nil {
		return err
	}
	defer current.output.watch(&watcher{out, errOut})()
	go func() {
		for size := range resize {
			current.resize(size)
		}
	}()
	if in != nil && current.input != nil {
		go p.feed(current, in)
	}
	select {
	case <-current.done:
	case <-ctx.Done():
	}
	return nil
}

// feed hands a client's input on, and ends the container's input with it when the pod says that one client is all.
func (p *process) feed(current *run, in io.Reader) {
	_, _ = io.Copy(current.input, in)
	if p.spec.StdinOnce && !p.spec.TTY {
		_ = current.input.Close()
	}
}

// wait returns after the pause, or when the context ends.
func wait(ctx context.Context, pause time.Duration) {
	select {
	case <-time.After(pause):
	case <-ctx.Done():
	}
}

// over tells whether the channel is closed.
func over(done <-chan struct{}) bool {
	select {
	case <-done:
		return true
	default:
		return false
	}
}
