package doctor

import (
	"context"
	"sync"
	"time"
)

// Examine examines every part that the configuration names, concurrently, and returns the findings in a fixed order.
func Examine(ctx context.Context, cfg Config) []Finding {
	if cfg.Patience <= 0 {
		cfg.Patience = 10 * time.Second
	}
	return examineComponents(ctx, componentsOf(cfg), cfg.Patience)
}

// component is one of the parts of an installation.
type component struct {
	check   string // of the finding if the part does not answer
	do      string // what to do then
	examine func(context.Context) []Finding
}

// componentsOf lists the parts that the configuration names.
func componentsOf(cfg Config) []component {
	const patient = " Or look again with a longer --patience."
	const mounted = "See whether the disk answers: a network file system may be away, and ls hangs, too." + patient
	var parts []component
	add := func(named bool, p component) {
		if named {
			parts = append(parts, p)
		}
	}
	add(cfg.PostgresURL != "", component{
		"postgresql.reachable", "See why PostgreSQL does not answer: its log, its load." + patient,
		func(ctx context.Context) []Finding { return examinePostgres(ctx, cfg.PostgresURL) },
	})
	add(len(cfg.RedisNodes) > 0, component{
		"redis.reachable", "See why the nodes do not answer: their logs, their load." + patient,
		func(ctx context.Context) []Finding { return examineRedis(ctx, cfg) },
	})
	add(cfg.GatewayURL != "", component{
		"gateway.reachable", "See why the gateway does not answer: its log, its load." + patient,
		func(ctx context.Context) []Finding { return examineGateways(ctx, cfg) },
	})
	add(cfg.BlobDir != "", component{"blobs.writable", mounted, func(ctx context.Context) []Finding { return examineBlobs(ctx, cfg.BlobDir) }})
	add(cfg.BlobDir != "" && cfg.PostgresURL != "", component{
		"blobs.owner", mounted,
		func(ctx context.Context) []Finding { return examineOwner(ctx, cfg.PostgresURL, cfg.BlobDir) },
	})
	return parts
}

// examineComponents examines the parts concurrently, and returns their findings in the order of the parts.
func examineComponents(ctx context.Context, parts []component, patience time.Duration) []Finding {
	found := make([][]Finding, len(parts))
	var looks sync.WaitGroup
	for i, p := range parts {
		looks.Go(func() { found[i] = p.within(ctx, patience) })
	}
	looks.Wait()
	var all []Finding
	for _, f := range found {
		all = append(all, f...)
	}
	return all
}

// afterDeadline is how long a part whose time is over may take to report its findings.
const afterDeadline = time.Second

// within examines the part, and leaves it behind if it does not return: a system call on a file system that is away
// knows no deadline.
func (p component) within(ctx context.Context, patience time.Duration) []Finding {
	limited, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	found := make(chan []Finding, 1)
	go func() { found <- p.examine(limited) }()
	select {
	case f := <-found:
		return f
	case <-limited.Done():
	}
	late := time.NewTimer(afterDeadline)
	defer late.Stop()
	select {
	case f := <-found:
		return f
	case <-late.C:
	}
	if ctx.Err() != nil {
		return []Finding{fail(p.check, "did not answer before doctor was stopped", p.do)}
	}
	return []Finding{fail(p.check, "did not answer within "+patience.String(), p.do)}
}
