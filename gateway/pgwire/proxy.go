package pgwire

import (
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/netip"
)

// The PROXY protocol, version 2, with which a balancer names the client of a connection:
// https://www.haproxy.org/download/3.0/doc/proxy-protocol.txt
const (
	proxySignature = "\r\n\r\n\x00\r\nQUIT\n"
	proxyHeadBytes = len(proxySignature) + 4 // version and command, family, length
	maxProxyBytes  = 4 << 10                 // after the head; addresses take at most 216, the rest is extensions
	proxyLocal     = 0x20                    // the balancer's own connection, such as a health check
	proxyCommand   = 0x21
	proxyTCP4      = 0x11
	proxyTCP6      = 0x21
)

var errNoProxyHeader = errors.New("a connection from a network of proxies does not begin with a header of the PROXY protocol, version 2")

// behindProxy reports whether a connection comes from a balancer, in one of these networks, that sends the client's
// address.
func behindProxy(conn net.Conn, proxies []netip.Prefix) bool {
	addr, ok := conn.RemoteAddr().(*net.TCPAddr)
	if !ok {
		return false
	}
	from := addr.AddrPort().Addr().Unmap().WithZone("")
	for _, network := range proxies {
		if network.Contains(from) {
			return true
		}
	}
	return false
}

// readProxyHeader reads a header and nothing after it. The address is invalid for the proxy's own connection, and for a
// client that does not use TCP.
func readProxyHeader(r io.Reader) (client netip.AddrPort, err error) {
	var head [proxyHeadBytes]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return client, err
	}
	command, family := head[len(proxySignature)], head[len(proxySignature)+1]
	length := int(binary.BigEndian.Uint16(head[len(proxySignature)+2:]))
	if string(head[:len(proxySignature)]) != proxySignature || command != proxyLocal && command != proxyCommand || length > maxProxyBytes {
		return client, errNoProxyHeader
	}
	body := make([]byte, length)
	if _, err := io.ReadFull(r, body); err != nil {
		return client, err
	}
	if command == proxyLocal {
		return client, nil
	}
	size := map[byte]int{proxyTCP4: net.IPv4len, proxyTCP6: net.IPv6len}[family]
	switch {
	case size == 0:
		return client, nil
	case length < 2*size+4: // both addresses, both ports
		return client, errNoProxyHeader
	}
	addr, _ := netip.AddrFromSlice(body[:size])
	return netip.AddrPortFrom(addr.Unmap(), binary.BigEndian.Uint16(body[2*size:])), nil
}
