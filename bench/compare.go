package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"math"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/jackc/pgx/v5"

	"github.com/fencegate/fencegate/bench/internal/run"
	"github.com/fencegate/fencegate/client"
	"github.com/fencegate/fencegate/internal/stack"
	"github.com/fencegate/fencegate/wire"
)

// compareSubject checks whether this tree is slower than an older commit. Three gateways take turns, each on its own
// PostgreSQL and Redis: the commit, the tree, and the commit again. The difference between the commit's two gateways is
// the noise. It fails if the tree is slower than the commit by more than the noise and by more than 5 %. Slower means
// fewer operations a second, or more processor time of gateway, PostgreSQL and Redis for each.
//
// PostgreSQL runs without durability here: the disk would hide the programs' cost.
func compareSubject() subject {
	s := subject{name: "compare", workers: []int{4}, slice: time.Second, rounds: 12, alone: true, base: true, whole: compare}
	for _, k := range compareKinds {
		s.parts = append(s.parts, part{name: k.name})
	}
	return s
}

// sideNames are the contenders of a comparison of versions. The second one of the base shows the noise.
var sideNames = []string{"base", "tree", "again"}

// versions builds fencegate as it was at a commit, and in the tree, and returns the programs of the sides.
func versions(ctx context.Context, s *stack.Stack, commit string) []string {
	if commit == "" {
		run.Check(errors.New("-base is missing: the commit to compare with"))
	}
	tree, source, old := run.Must(s.Program(ctx)), filepath.Join(s.Dir, "source"), filepath.Join(s.Dir, "fencegate-base")
	output(exec.CommandContext(ctx, "sh", "-c", `cd "$3" && mkdir "$2" && git archive "$1" | tar -x -C "$2" && test -e "$2/go.mod"`, "sh", commit, source, run.Must(stack.Root())))
	run.Check(stack.Build(ctx, source, "./cmd/fencegate", old, "-buildvcs=false"))
	return []string{old, tree, old}
}

func output(cmd *exec.Cmd) {
	if out, err := cmd.CombinedOutput(); err != nil {
		run.Check(fmt.Errorf("%s: %w: %s", cmd, err, out))
	}
}

// migrateBy migrates a database by a program.
func migrateBy(program string) func(context.Context, string) error {
	return func(ctx context.Context, address string) (err error) {
		defer run.Catch(&err)
		up := exec.CommandContext(ctx, program, "migrate", "up")
		up.Env = append(os.Environ(), "FENCEGATE_POSTGRES_URL="+address)
		output(up)
		return nil
	}
}

// side is one gateway with its services. It is used through its ports only, because the other side may be of any
// version.
type side struct {
	*s3Client

	api      *client.Client
	sessions []*pgx.Conn // one per client
	spent    func() time.Duration
	logTail  func() string
}

// compareObjects are the objects and rows to read, in turn.
const compareObjects = 1000

var compareKinds = []struct {
	name string
	do   func(ctx context.Context, s *side, client int, n int64) error
}{
	{"s3-put-4KiB", func(ctx context.Context, s *side, client int, n int64) error {
		return s.put(ctx, fmt.Sprintf("put/%d-%d", client, n%compareObjects), 4<<10)
	}},
	{"s3-get-4KiB", func(ctx context.Context, s *side, client int, n int64) error {
		return s.get(ctx, fmt.Sprintf("get/%04d", (n+int64(client)*101)%compareObjects), 4<<10)
	}},
	{"s3-list-of-100", func(ctx context.Context, s *side, client int, n int64) error {
		text, err := s.send(ctx, http.MethodGet, fmt.Sprintf("/%s?list-type=2&max-keys=100&prefix=get%%2F&start-after=get%%2F%04d", bucket, (n*7+int64(client))%800), nil, 0)
		if keys := strings.Count(text, "<Key>"); err == nil && keys != 100 {
			err = fmt.Errorf("a list of 100 has %d keys", keys)
		}
		return err
	}},
	{"http-lease", func(ctx context.Context, s *side, client int, n int64) error {
		return overHTTP(ctx, s.api, fmt.Sprintf("compare/%d/%d", client, n%100))
	}},
	{"pg-select", func(ctx context.Context, s *side, client int, n int64) error {
		var status string
		return s.sessions[client].QueryRow(ctx, "SELECT status FROM compare WHERE id = $1", n%compareObjects).Scan(&status)
	}},
	{"pg-insert", func(ctx context.Context, s *side, client int, _ int64) error {
		_, err := s.sessions[client].Exec(ctx, "INSERT INTO compare_log (status) VALUES ($1)", "new")
		return err
	}},
}

func compare(ctx context.Context, b *bench, s *stack.Stack) {
	clients := slices.Max(b.Workers)
	var sides []*side
	for _, program := range versions(ctx, s, b.base) {
		on := run.Must(stack.New(s.Dir))
		s.AtClose(on.Close)
		sides = append(sides, startSide(ctx, on, program, clients))
	}
	for _, k := range compareKinds {
		if !b.Wants(k.name, false) {
			continue
		}
		var contenders []run.Contender
		for i, one := range sides {
			contenders = append(contenders, run.Contender{
				Name: sideNames[i], Meters: cost("processor", one.spent),
				Op: func(ctx context.Context, client int, n int64) error {
					err := k.do(ctx, one, client, n)
					if err != nil && ctx.Err() == nil {
						err = fmt.Errorf("%w%s", err, one.logTail())
					}
					return err
				},
			})
		}
		results := b.Measure(ctx, run.Cell{Name: k.name, Workers: clients, All: true}, contenders...)
		addVersionGoal(b, "compare."+k.name, results, "", true)
		addVersionGoal(b, "compare."+k.name, results, "µs of processor", true)
	}
}

// startSide starts a gateway, acquires the lease of the bucket and the table, creates the objects for the reads, and
// opens the sessions. The tree's client does so at either side. It asks for the lease until it has it, because another
// version's /readyz may answer before leases are granted.
func startSide(ctx context.Context, s *stack.Stack, program string, clients int) *side {
	nodes := run.Must(s.Redis(ctx, 1))
	pg := run.Must(s.Postgres(ctx, stack.PostgresConfig{
		Settings: map[string]string{"autovacuum": "off", "checkpoint_timeout": "1h", "max_wal_size": "4GB", "jit": "off", "shared_buffers": "128MB"},
		Database: stack.Database{Migrate: migrateBy(program), Then: []string{
			"CREATE TABLE compare (id int PRIMARY KEY, status text)", "CREATE TABLE compare_log (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, status text)",
			fmt.Sprintf("INSERT INTO compare SELECT n, 'new' FROM generate_series(0, %d) n", compareObjects), "SELECT fence.protect('compare_log', resource => '" + bucket + "')",
			"GRANT SELECT, INSERT ON compare, compare_log TO " + stack.Writer, "ANALYZE",
		}},
	}))
	token := rand.Text()
	g := run.Must(s.Serve(ctx, stack.GatewayConfig{
		Program: program, URL: pg.As(stack.Gateway), Redis: nodes.Addrs(), Token: token, S3Secret: rand.Text(), Flags: []string{"--max-ttl", "1h"},
	}))
	one := &side{api: newClient(g.API, token, 2*clients), logTail: g.LogTail, spent: func() time.Duration {
		return spentBy(g.Process().Pid(), nodes[0].Pid()) + spentByTree(pg.Pid())
	}}
	run.Must(one.api.SetBucket(ctx, bucket, wire.BucketRequest{Rule: "bucket"}))
	var lease client.Lease
	bounded, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	run.Check(stack.Until(bounded, "the lease of the bucket", func(ctx context.Context) (err error) {
		lease, err = one.api.Acquire(ctx, client.AcquireRequest{Resource: bucket, TTL: time.Hour})
		return err
	}))
	keys := run.Must(one.api.Credentials(ctx, wire.CredentialsRequest{Handle: lease.Handle}))
	one.s3Client = newS3Client(s, g.S3, aws.Credentials{AccessKeyID: keys.AccessKeyID, SecretAccessKey: keys.SecretAccessKey, SessionToken: keys.SessionToken})
	for n := range compareObjects {
		run.Check(one.put(ctx, fmt.Sprintf("get/%04d", n), 4<<10))
	}
	cfg, through := run.Must(pgx.ParseConfig(pg.As(stack.Writer))), run.Must(pgx.ParseConfig("postgres://"+g.PG))
	cfg.Port, cfg.RuntimeParams["fence.resource"], cfg.RuntimeParams["fence.token"] = through.Port, bucket, lease.Presented
	for range clients {
		one.sessions = append(one.sessions, connect(ctx, s, cfg))
	}
	return one
}

// judge returns the median ratio of tree and base, and the least that is no slowdown: 1 less the noise, or 5 % if the
// noise is smaller. The noise is the median difference of the base's two programs, plus two standard errors of that
// median. A speed is higher for a faster program. Ratios are taken within a round, and handled as logarithms, so that
// twice as fast and half as fast are equally far from 0.
func judge(base, tree, again []float64) (ratio, least float64) {
	logs := func(speeds []float64) []float64 {
		all := run.Ratios(speeds, base)
		for i := range all {
			all[i] = math.Log(all[i])
		}
		return all
	}
	bases := logs(again)
	same := run.Median(bases)
	var apart []float64
	for _, x := range bases {
		apart = append(apart, math.Abs(x-same))
	}
	const normal = 1.4826 * 1.2533 // from the median deviation to the standard error of a median
	noise := math.Abs(same) + 2*normal*run.Median(apart)/math.Sqrt(float64(len(bases)))
	return math.Exp(run.Median(logs(tree))), min(math.Exp(-noise), 0.95)
}

// addVersionGoal adds the goal that the tree is no slower, by its rate or by a meter of what an operation costs, if that
// was measured.
func addVersionGoal(b *bench, name string, results run.Results, meter string, compulsory bool) {
	if _, measured := results[sideNames[0]].Meters[meter]; meter != "" && !measured {
		return
	}
	of := func(side int) (speeds []float64, shown string) {
		r := results[sideNames[side]]
		if meter == "" {
			return r.Rates, r.Show()
		}
		for _, cost := range r.Meters[meter] {
			speeds = append(speeds, 1/max(cost, 1e-3))
		}
		return speeds, fmt.Sprintf("%.0fµs", r.Meter(meter))
	}
	base, baseShown := of(0)
	tree, treeShown := of(1)
	again, _ := of(2)
	ratio, least := judge(base, tree, again)
	kind := map[bool]string{true: ".rate", false: ".processor"}[meter == ""]
	b.Add(run.Goal{Name: name + kind, Ours: treeShown, Peer: "base:" + baseShown, Ratio: ratio, Want: least, Compulsory: compulsory})
}
