package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"math/big"
	"net"
	"time"

	"github.com/jackc/pgx/v5/pgproto3"
)

// dial connects to a relay, by TLS if requested. Every read and write has a timeout.
func dial(addr string, encrypted bool) (net.Conn, error) {
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		return nil, err
	}
	_ = conn.SetDeadline(time.Now().Add(30 * time.Second))
	if !encrypted {
		return conn, nil
	}
	secure := tls.Client(conn, &tls.Config{InsecureSkipVerify: true}) //nolint:gosec // the benchmark made this certificate itself, and measures speed only
	ask, _ := (&pgproto3.SSLRequest{}).Encode(nil)
	if _, err = conn.Write(ask); err == nil {
		if _, err = io.ReadFull(conn, make([]byte, 1)); err == nil {
			err = secure.Handshake()
		}
	}
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return secure, nil
}

// ownTLS uses a self-signed certificate.
func ownTLS() (*tls.Config, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(24 * time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		return nil, err
	}
	return &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}, SessionTicketsDisabled: true}, nil
}
