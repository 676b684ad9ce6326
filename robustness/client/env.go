package client

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"sync"
	"time"

	"github.com/fencegate/fencegate/client"
)

// makers makes the surfaces by name. All workers of a client share one of each.
var makers = map[string]func(*env) (surface, error){}

// env is what surfaces are made from. It is safe for concurrent use.
type env struct {
	cfg  Config
	dice *dice
	http *http.Client     // without a timeout: each call has its own
	apis []*client.Client // one for each gateway in cfg.Gateways
	idle []func()         // close a surface's idle connections
}

// newEnv returns an env. turn distinguishes the lives of a restarted client, so that each acts differently.
func newEnv(cfg Config, turn uint64) (*env, error) {
	if len(cfg.Gateways) == 0 {
		return nil, errors.New("a client needs a gateway")
	}
	e := &env{
		cfg:  cfg,
		dice: newDice(cfg.Seed, uint64(cfg.Number)<<40|turn),
		http: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 8, IdleConnTimeout: 5 * time.Second}},
	}
	for _, g := range cfg.Gateways {
		api, err := client.New(client.Config{URL: g.API, Token: cfg.Token, HTTPClient: e.http})
		if err != nil {
			return nil, fmt.Errorf("gateway %s: %w", g.API, err)
		}
		e.apis = append(e.apis, api)
	}
	return e, nil
}

// gateway picks the index of a gateway in cfg.Gateways and apis.
func (e *env) gateway() int { return e.dice.below(len(e.apis)) }

func (e *env) close() {
	e.http.CloseIdleConnections()
	for _, closeIdle := range e.idle {
		closeIdle()
	}
}

// dice are random numbers from a seed, safe for concurrent use.
type dice struct {
	mu   sync.Mutex
	rand *rand.Rand
}

func newDice(seed, stream uint64) *dice {
	return &dice{rand: rand.New(rand.NewPCG(seed, stream))}
}

// below returns a number from 0 to n-1.
func (d *dice) below(n int) int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.rand.IntN(n)
}

// chance is true once in the given number of times.
func (d *dice) chance(in int) bool { return d.below(in) == 0 }

// between returns a duration from lo to hi.
func (d *dice) between(lo, hi time.Duration) time.Duration {
	if hi <= lo {
		return lo
	}
	return lo + time.Duration(d.below(int(hi-lo)))
}
