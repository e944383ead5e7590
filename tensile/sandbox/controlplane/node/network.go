package main

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"syscall"
	"time"

	"github.com/vishvananda/netlink"
)

const (
	bridge = "cni0" // of the node and its pods; they are one segment with the machine's end
	uplink = "eth0"
)

// connect makes the cable between the machine and the node, and serves the apiserver at the machine's end of it:
// apiservers of a sandbox listen on loopback, which nobody else can reach.
func connect(o options, pid int) error {
	cable := &netlink.Veth{
		LinkAttrs:     netlink.LinkAttrs{Name: o.device},
		PeerName:      uplink,
		PeerNamespace: netlink.NsPid(pid),
	}
	if err := plugIn(cable); err != nil {
		return fmt.Errorf("network device %s: %w", o.device, err)
	}
	if err := addressed(cable, o.gateway); err != nil {
		return fmt.Errorf("address %s: %w", o.gateway, err)
	}
	return relay(o)
}

// plugIn makes the cable. One of that name may be there for a moment after the node that it led to has ended.
func plugIn(cable *netlink.Veth) error {
	for end := time.Now().Add(10 * time.Second); ; time.Sleep(50 * time.Millisecond) {
		err := netlink.LinkAdd(cable)
		if !errors.Is(err, syscall.EEXIST) || time.Now().After(end) {
			return err
		}
	}
}

// addressed gives a device an address and switches it on.
func addressed(device netlink.Link, address string) error {
	parsed, err := netlink.ParseAddr(address)
	if err != nil {
		return err
	}
	if err := netlink.AddrAdd(device, parsed); err != nil {
		return err
	}
	return netlink.LinkSetUp(device)
}

// relay copies between the apiserver's port at the gateway and the apiserver.
func relay(o options) error {
	gateway, _, err := net.ParseCIDR(o.gateway)
	if err != nil {
		return err
	}
	_, port, err := net.SplitHostPort(o.api)
	if err != nil {
		return err
	}
	listening, err := net.Listen("tcp", net.JoinHostPort(gateway.String(), port))
	if err != nil {
		return err
	}
	go func() {
		for {
			caller, err := listening.Accept()
			if err != nil {
				return
			}
			go splice(caller.(*net.TCPConn), o.api)
		}
	}()
	return nil
}

// splice connects a caller with the apiserver until both have ended.
func splice(caller *net.TCPConn, to string) {
	defer caller.Close()
	connection, err := net.Dial("tcp", to)
	if err != nil {
		return
	}
	server := connection.(*net.TCPConn)
	defer server.Close()
	go func() {
		_, _ = io.Copy(server, caller)
		_ = server.CloseWrite()
	}()
	_, _ = io.Copy(caller, server)
	_ = caller.CloseWrite()
}

// ownNetwork joins the node's end of the cable with the bridge of its pods. There is no route to anywhere else.
func ownNetwork(o options) error {
	loopback, err := netlink.LinkByName("lo")
	if err != nil {
		return err
	}
	if err := netlink.LinkSetUp(loopback); err != nil {
		return err
	}
	cable, err := netlink.LinkByName(uplink)
	if err != nil {
		return err
	}
	made := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: bridge, HardwareAddr: cable.Attrs().HardwareAddr}}
	if err := netlink.LinkAdd(made); err != nil {
		return err
	}
	if err := netlink.LinkSetMaster(cable, made); err != nil {
		return err
	}
	if err := netlink.LinkSetUp(cable); err != nil {
		return err
	}
	if err := addressed(made, o.address); err != nil {
		return err
	}
	return os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0o644)
}
