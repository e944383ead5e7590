package main

import (
	"io"
	"net"
	"time"
)

// closeTimeout is the time that a peer has for reading what was sent to it, before the connection is closed.
const closeTimeout = 30 * time.Second

// listener accepts connections that are closed without a reset.
type listener struct{ net.Listener }

// Accept waits for the next connection.
func (l listener) Accept() (net.Conn, error) {
	accepted, err := l.Listener.Accept()
	if connection, ok := accepted.(*net.TCPConn); ok {
		return lingeringConn{connection}, err
	}
	return accepted, err
}

// lingeringConn is a connection that loses no data when it is closed. A plain close while data of the peer is unread,
// such as a ping, resets the connection and drops what the peer has not received yet.
type lingeringConn struct{ *net.TCPConn }

// Close closes the sending side, and the connection when the peer has closed its own side.
func (c lingeringConn) Close() error {
	if c.CloseWrite() == nil && c.SetReadDeadline(time.Now().Add(closeTimeout)) == nil {
		_, _ = io.Copy(io.Discard, c.TCPConn)
	}
	return c.TCPConn.Close()
}
