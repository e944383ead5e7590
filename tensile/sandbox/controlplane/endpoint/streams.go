package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"github.com/creack/pty"
	"k8s.io/cri-streaming/pkg/streaming/portforward"
	"k8s.io/cri-streaming/pkg/streaming/remotecommand"
	utilexec "k8s.io/utils/exec"
)

// copyBuffer is the size in bytes of the buffers for input of commands and for logs.
const copyBuffer = 64 * 1024

// streamIdleTimeout is the default of the kubelet.
const streamIdleTimeout = 4 * time.Hour

// streamer serves the routes that upgrade the connection.
type streamer struct {
	logs logServer
	work string
	pods *pods
}

// exec runs a command for one request.
func (s streamer) exec(w http.ResponseWriter, r *http.Request, t target) {
	streams, err := remotecommand.NewOptions(r)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	remotecommand.ServeExec(w, r, container{s, t}, t.pod, "", t.container, r.URL.Query()["command"], streams,
		streamIdleTimeout, remotecommand.DefaultStreamCreationTimeout, remotecommand.SupportedStreamingProtocols)
}

// attach connects to the container's process. If it has none, it shows what is logged from now on.
func (s streamer) attach(w http.ResponseWriter, r *http.Request, t target) {
	streams, err := remotecommand.NewOptions(r)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	remotecommand.ServeAttach(w, r, container{s, t}, t.pod, "", t.container, streams,
		streamIdleTimeout, remotecommand.DefaultStreamCreationTimeout, remotecommand.SupportedStreamingProtocols)
}

// portForward connects to a port of the loopback address, where the processes of pods listen.
func (s streamer) portForward(w http.ResponseWriter, r *http.Request) {
	options, err := portforward.NewV4Options(r)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	portforward.ServePortForward(w, r, loopback{}, r.PathValue("pod"), "", options,
		streamIdleTimeout, remotecommand.DefaultStreamCreationTimeout, portforward.SupportedProtocols)
}

// container implements the interfaces of the streaming server for one container.
type container struct {
	streamer
	target
}

// ExecInContainer runs the command as a local process and reports its exit code.
func (c container) ExecInContainer(ctx context.Context, _, _, _ string, command []string, in io.Reader,
	out, errOut io.WriteCloser, tty bool, resize <-chan remotecommand.TerminalSize, _ time.Duration) error {
	if len(command) == 0 {
		return errors.New("no command")
	}
	process, err := c.process(ctx, command)
	if err != nil {
		return err
	}
	if tty {
		err = c.runOnTerminal(process, in, out, resize)
	} else {
		err = c.run(process, in, out, errOut)
	}
	return withExitCode(process.ProcessState, err)
}

// process returns the command, not yet started, in the container's working directory.
func (c container) process(ctx context.Context, command []string) (*exec.Cmd, error) {
	directory := filepath.Join(c.work, c.namespace, c.pod, c.target.container)
	if err := os.MkdirAll(directory, 0o755); err != nil {
		return nil, err
	}
	process := exec.CommandContext(ctx, command[0], command[1:]...)
	process.Dir = directory
	process.Env = append(os.Environ(), "HOME="+directory, "HOSTNAME="+c.pod, "POD_NAMESPACE="+c.namespace)
	return process, nil
}

// run runs the command with pipes. Another goroutine copies the input, since a command may end before its input does.
func (c container) run(process *exec.Cmd, in io.Reader, out, errOut io.Writer) error {
	process.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if out != nil {
		process.Stdout = out
	}
	if errOut != nil {
		process.Stderr = errOut
	}
	if in != nil {
		pipe, err := process.StdinPipe()
		if err != nil {
			return err
		}
		go func() {
			_, _ = io.CopyBuffer(pipe, in, make([]byte, copyBuffer))
			_ = pipe.Close()
		}()
	}
	if err := process.Start(); err != nil {
		return err
	}
	defer c.pods.addCommand(c.target, process.Process.Pid)()
	return process.Wait()
}

// runOnTerminal runs the command on a new terminal, which is resized with the caller's.
func (c container) runOnTerminal(process *exec.Cmd, in io.Reader, out io.Writer,
	resize <-chan remotecommand.TerminalSize) error {
	terminal, err := pty.Start(process)
	if err != nil {
		return err
	}
	defer terminal.Close()
	defer c.pods.addCommand(c.target, process.Process.Pid)()
	go func() {
		for size := range resize {
			_ = pty.Setsize(terminal, &pty.Winsize{Rows: size.Height, Cols: size.Width})
		}
	}()
	if in != nil {
		go func() { _, _ = io.Copy(terminal, in) }()
	}
	if out != nil {
		_, _ = io.Copy(out, terminal) // ends with an error when the command closes its side
	}
	return process.Wait()
}

// exitCode returns the exit code of a command as a shell does.
func exitCode(state *os.ProcessState) int {
	if status, ok := state.Sys().(syscall.WaitStatus); ok && status.Signaled() {
		return 128 + int(status.Signal())
	}
	return state.ExitCode()
}

// withExitCode converts the error of a command that has ended to the one that the streaming server reports as a code.
func withExitCode(state *os.ProcessState, err error) error {
	var exited *exec.ExitError
	if !errors.As(err, &exited) {
		return err
	}
	code := exitCode(state)
	return utilexec.CodeExitError{Err: fmt.Errorf("command ended with exit code %d", code), Code: code}
}

// killGroup kills a process group.
func killGroup(pid int) { _ = syscall.Kill(-pid, syscall.SIGKILL) }

// AttachContainer connects to the container's process. If it has none, it follows the container's log from its end.
func (c container) AttachContainer(ctx context.Context, _, _, _ string, in io.Reader, out, errOut io.WriteCloser,
	tty bool, resize <-chan remotecommand.TerminalSize) error {
	var stdout, stderr io.Writer
	if out != nil {
		stdout = out
	}
	if errOut != nil && !tty {
		stderr = errOut
	}
	process, err := c.pods.process(ctx, c.target)
	if err != nil {
		return err
	}
	if process != nil {
		return process.attach(ctx, in, stdout, stderr, resize)
	}
	none := int64(0)
	return c.logs.read(ctx, c.target, logOptions{follow: true, tailLines: &none}, logOutput{stdout: stdout, stderr: stderr})
}

// loopback is the network of every pod.
type loopback struct{}

// PortForward copies between the stream and a connection to the port.
func (loopback) PortForward(ctx context.Context, _, _ string, port int32, stream io.ReadWriteCloser) error {
	var dialer net.Dialer
	connection, err := dialer.DialContext(ctx, "tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(int(port))))
	if err != nil {
		return err
	}
	defer connection.Close()
	go func() {
		_, _ = io.Copy(connection, stream)
		_ = connection.(*net.TCPConn).CloseWrite()
	}()
	_, err = io.Copy(stream, connection)
	return err
}
