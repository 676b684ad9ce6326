package gateway

import (
	"github.com/fencegate/fencegate/lock"
)

// openSource makes the source of leases: the one that the configuration gives,
// or the Redis nodes. From here on nobody knows which.
func (g *Gateway) openSource() (err error) {
	cfg, armer := g.cfg, sealing{trusting{announcer{g.fence, g.superseded}, g.remains}}
	if cfg.Leases != nil {
		g.source, err = cfg.Leases(armer)
		return err
	}
	locker, err := lock.New(lock.Config{
		Nodes: cfg.RedisNodes, Armer: armer, Epochs: g.fence, MaxTTL: cfg.MaxTTL, DefaultTTL: cfg.DefaultTTL,
		NodeTimeout: cfg.NodeTimeout, KeyPrefix: cfg.KeyPrefix, Embedded: cfg.EmbeddedNodes, Logger: g.log, Metrics: g.leasing,
	})
	if err != nil {
		return err
	}
	g.source, g.admit = locker.Source(), locker.Init
	return nil
}
