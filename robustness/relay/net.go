package relay

import (
	"errors"
	"slices"
	"strings"
	"sync"
)

// Net holds one relay for each pair of a client and a server. The zero value is ready.
type Net struct {
	mu     sync.Mutex
	relays map[[2]string]*Relay
	order  []*Relay
}

// Between returns the relay between the two, and creates it with the server's address if there is none yet.
func (n *Net) Between(from, to, server string) (*Relay, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if r, ok := n.relays[[2]string{from, to}]; ok {
		return r, nil
	}
	r, err := New(server)
	if err != nil {
		return nil, err
	}
	r.From, r.To = from, to
	if n.relays == nil {
		n.relays = map[[2]string]*Relay{}
	}
	n.relays[[2]string{from, to}] = r
	n.order = append(n.order, r)
	return r, nil
}

// Find returns the relays whose ends begin with from and to, in the order of their creation; "" matches any.
func (n *Net) Find(from, to string) []*Relay {
	n.mu.Lock()
	defer n.mu.Unlock()
	var found []*Relay
	for _, r := range n.order {
		if strings.HasPrefix(r.From, from) && strings.HasPrefix(r.To, to) {
			found = append(found, r)
		}
	}
	return found
}

// Heal ends every fault of every relay.
func (n *Net) Heal() {
	for _, r := range n.Find("", "") {
		r.Heal()
	}
}

// Remove closes the relays of a client that is gone.
func (n *Net) Remove(from string) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	var errs []error
	for key, r := range n.relays {
		if r.From == from {
			errs = append(errs, r.Close())
			delete(n.relays, key)
		}
	}
	n.order = slices.DeleteFunc(n.order, func(r *Relay) bool { return r.From == from })
	return errors.Join(errs...)
}

// Close closes every relay. It may be called more than once.
func (n *Net) Close() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	var errs []error
	for _, r := range n.order {
		errs = append(errs, r.Close())
	}
	n.relays, n.order = nil, nil
	return errors.Join(errs...)
}
