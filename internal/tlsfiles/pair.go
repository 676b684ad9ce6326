package tlsfiles

import (
	"crypto/tls"

	"github.com/fencegate/fencegate/internal/regular"
)

// Pair reads a certificate chain and its key. Unlike [tls.LoadX509KeyPair] it refuses files that may block, such as
// pipes.
func Pair(cert, key string) (tls.Certificate, error) {
	chain, err := regular.Read(cert, regular.MaxBytes)
	if err != nil {
		return tls.Certificate{}, err
	}
	secret, err := regular.Read(key, regular.MaxBytes)
	if err != nil {
		return tls.Certificate{}, err
	}
	return tls.X509KeyPair(chain, secret)
}
