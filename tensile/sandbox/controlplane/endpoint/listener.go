package main

import (
	"io"
	"net"
	"time"
)

// leaving is how long a peer has for reading what was sent to it before the connection ends.
const leaving = 30 * time.Second

// listener gives connections that end gently.
type listener struct{ net.Listener }

// Accept waits for the next connection.
func (l listener) Accept() (net.Conn, error) {
	accepted, err := l.Listener.Accept()
	if connection, ok := accepted.(*net.TCPConn); ok {
		return gentle{connection}, err
	}
	return accepted, err
}

// gentle is a connection that loses nothing when it is closed. A plain close while something that the
// peer sent is unread, such as a ping, resets the connection and drops what the peer has yet to receive.
type gentle struct{ *net.TCPConn }

// Close ends our side, and the connection when the peer has ended its own.
func (c gentle) Close() error {
	if c.CloseWrite() == nil && c.SetReadDeadline(time.Now().Add(leaving)) == nil {
		_, _ = io.Copy(io.Discard, c.TCPConn)
	}
	return c.TCPConn.Close()
}
