// Package run measures contenders beside each other: they take turns, a slice of time each, for some rounds. Adjacent
// slices see the machine in the same state, so ratios are taken round by round, and their median counts.
//
// The guarantee: an operation that fails fails the benchmark, unless its contender may fail; then it is counted and
// shown.
//
//	results := b.Measure(ctx, run.Cell{Name: "insert.c16", Workers: 16}, unfenced, fenced)
//	b.AtLeast("fence.insert.c16", results, "fenced", "unfenced", 0.85)
//
// As in a test, what fails ends the benchmark where it stands: see [Check].
package run

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// Settings are the choices of who runs a benchmark.
type Settings struct {
	Parts   []string      // to be measured; empty: all that are not extra
	Only    []string      // contenders to be measured; empty: all
	Workers []int         // numbers of workers
	Slice   time.Duration // how long a contender works before the next one
	Rounds  int           // how often each contender has its slice
	Quick   bool          // small amounts of data: to see that it runs
	Data    string        // folder below which servers have their files; default: the system's temporary folder
}

// Bench is the benchmark of one subject. It collects goals.
type Bench struct {
	Settings

	Subject string
	Out     io.Writer
	Goals   []Goal // see Add

	header bool            // has been printed for this part
	there  map[string]bool // the names of contenders
}

// Contender is one of those that are compared.
type Contender struct {
	Name string
	// Op does one operation of a worker. n counts the contender's operations in the cell from 1, over all workers.
	Op func(ctx context.Context, worker int, n int64) error
	// Slice replaces Op: workers of another program work for that long, and it returns their rate.
	Slice func(ctx context.Context, workers int, d time.Duration) (float64, error)

	// Before and After each slice, outside of its time; they may [Check]. After also comes after a failure.
	Before, After func(ctx context.Context, round int)

	Meters  []Meter
	Peers   []string // to which its ratios are printed; default: the first contender
	Amount  float64  // that an operation adds to the rate; default: 1
	MayFail bool     // failed operations are counted, and do not fail the benchmark
}

// Meter reads a counter before and after each slice. Its result is the difference for each operation.
type Meter struct {
	Name string                            // with its unit, such as "µs of PostgreSQL"
	Read func(ctx context.Context) float64 // may [Check]
}

// Cell is one combination of what is varied: each contender is measured once in it.
type Cell struct {
	Name    string
	Workers int
	Unit    string // of rates; default: "/s"
	All     bool   // Settings.Only does not choose among these contenders

	Ops    int           // a slice ends sooner once each worker has done this many operations; default: it does not
	Slice  time.Duration // default: that of Settings
	Rounds int           // default: that of Settings
	Grace  time.Duration // for operations that the slice's end interrupts; default: two minutes
	Cold   bool          // no warm-up. Otherwise each contender has a quarter of a slice first.
}

// Result is what a contender did in a cell.
type Result struct {
	Rates  []float64            // per round
	Times  []time.Duration      // of operations
	Meters map[string][]float64 // per round, for each operation
	Failed map[string]int       // how often, by the error's text

	unit  string
	count *atomic.Int64
}

// Results are by the contenders' names.
type Results map[string]*Result

// Wants reports whether a part is to be measured.
func (s Settings) Wants(part string, extra bool) bool {
	return slices.Contains(s.Parts, part) || len(s.Parts) == 0 && !extra
}

// Chosen reports whether a contender, which there is, is to be measured.
func (b *Bench) Chosen(contender string) bool {
	if b.there == nil {
		b.there = map[string]bool{}
	}
	b.there[contender] = true
	return len(b.Only) == 0 || slices.Contains(b.Only, contender)
}

// Missing are those of Settings.Only that there were none of.
func (b *Bench) Missing() []string {
	return slices.DeleteFunc(slices.Clone(b.Only), func(name string) bool { return b.there[name] })
}

// choose leaves those that are chosen and, beside them, the first one, to which ratios are.
func (b *Bench) choose(all []Contender) []Contender {
	chosen := slices.DeleteFunc(slices.Clone(all), func(one Contender) bool { return !b.Chosen(one.Name) })
	if len(chosen) > 0 && chosen[0].Name != all[0].Name {
		chosen = slices.Insert(chosen, 0, all[0])
	}
	return chosen
}

// Part begins a part.
func (b *Bench) Part(name string) {
	b.header = false
	b.Printf("\n%s, %s\n", b.Subject, name)
}

// Printf prints a line of the report.
func (b *Bench) Printf(format string, args ...any) { _, _ = fmt.Fprintf(b.Out, format, args...) }

// Measure lets the contenders take turns, and prints a line for each. Rounds differ in who is first and who is next to
// whom.
func (b *Bench) Measure(ctx context.Context, c Cell, contenders ...Contender) Results {
	if !c.All {
		contenders = b.choose(contenders)
	}
	c.Slice, c.Rounds, c.Grace, c.Unit = cmp.Or(c.Slice, b.Slice), cmp.Or(c.Rounds, b.Rounds), cmp.Or(c.Grace, 2*time.Minute), cmp.Or(c.Unit, "/s")
	results := Results{}
	for _, one := range contenders {
		results[one.Name] = &Result{Meters: map[string][]float64{}, Failed: map[string]int{}, unit: c.Unit, count: new(atomic.Int64)}
		if warm := c; !c.Cold && one.Slice == nil { // that is a process of its own each time
			warm.Slice, warm.Ops = c.Slice/4, (c.Ops+3)/4
			one.turn(ctx, warm, 0, &Result{Meters: map[string][]float64{}, Failed: map[string]int{}, count: results[one.Name].count})
		}
	}
	for round := range c.Rounds {
		for _, i := range order(len(contenders), round) {
			contenders[i].turn(ctx, c, round, results[contenders[i].Name])
		}
	}
	for _, one := range contenders {
		b.print(c, one, contenders[0].Name, results)
	}
	return results
}

// order is who is first, second, … of n in a round. Of three, six rounds have all orders.
func order(n, round int) []int {
	all := make([]int, n)
	for i := range all {
		all[i] = (i + round/2) % n
	}
	if round%2 == 1 {
		slices.Reverse(all)
	}
	return all
}

// turn is a contender's slice in a round, and what surrounds it.
func (one Contender) turn(ctx context.Context, c Cell, round int, r *Result) {
	if one.Before != nil {
		one.Before(ctx, round)
	}
	if one.After != nil {
		defer one.After(ctx, round)
	}
	var before []float64
	for _, m := range one.Meters {
		before = append(before, m.Read(ctx))
	}
	done := len(r.Times)
	if err := one.slice(ctx, c, r); err != nil {
		Check(fmt.Errorf("%s, %s: %w", c.Name, one.Name, err))
	}
	for i, m := range one.Meters {
		r.Meters[m.Name] = append(r.Meters[m.Name], (m.Read(ctx)-before[i])/float64(max(1, len(r.Times)-done)))
	}
}

// slice lets the workers repeat the operation, at least once each. The first error ends it, unless the contender may
// fail. What came to nothing at its end counts as a failure, and not as time.
func (one Contender) slice(ctx context.Context, c Cell, r *Result) error {
	bounded, done := context.WithTimeout(ctx, c.Slice+c.Grace)
	defer done()
	if one.Slice != nil {
		rate, err := one.Slice(bounded, c.Workers, c.Slice)
		r.Rates = append(r.Rates, rate)
		return err
	}
	working, cancel := context.WithCancelCause(bounded)
	defer cancel(nil)
	var mu sync.Mutex
	var all sync.WaitGroup
	var spent time.Duration
	begun, before := time.Now(), len(r.Times)
	for worker := range c.Workers {
		all.Go(func() {
			times, failed, last := make([]time.Duration, 0, 1024), map[string]int{}, time.Duration(0)
			for n := 0; working.Err() == nil && (n == 0 || time.Since(begun) < c.Slice) && (c.Ops == 0 || n < c.Ops); n++ {
				start := time.Now()
				err := one.Op(working, worker, r.count.Add(1))
				now := time.Now()
				switch {
				case err == nil:
					times, last = append(times, now.Sub(start)), now.Sub(begun)
				case one.MayFail:
					failed[err.Error()]++
				default:
					cancel(err)
				}
			}
			mu.Lock()
			defer mu.Unlock()
			r.Times, spent = append(r.Times, times...), max(spent, last)
			for text, n := range failed {
				r.Failed[text] += n
			}
		})
	}
	all.Wait()
	r.Rates = append(r.Rates, float64(len(r.Times)-before)*cmp.Or(one.Amount, 1)/max(spent.Seconds(), 1e-9))
	if one.MayFail {
		return context.Cause(ctx)
	}
	return context.Cause(working)
}

// print prints a contender's line.
func (b *Bench) print(c Cell, one Contender, first string, results Results) {
	if !b.header {
		b.header = true
		b.Printf("%-30s %-22s %12s %9s %9s %9s\n", "", "", "rate", "p50", "p99", "longest")
	}
	r := results[one.Name]
	b.Printf("%-30s %-22s %12s", c.Name, one.Name, r.Show())
	if len(r.Times) > 0 {
		b.Printf(" %9v %9v %9v", r.Quantile(0.5), r.Quantile(0.99), r.Quantile(1))
	}
	if one.Peers == nil {
		one.Peers = []string{first}
	}
	for _, name := range one.Peers {
		if peer := results[name]; peer != nil && peer != r {
			of := r.Over(peer)
			b.Printf("  %.2f (%.2f-%.2f) of %s", Median(of), slices.Min(of), slices.Max(of), name)
		}
	}
	for _, m := range one.Meters {
		b.Printf("  %.4g %s", Median(r.Meters[m.Name]), m.Name)
	}
	for _, text := range slices.Sorted(maps.Keys(r.Failed)) {
		b.Printf("  %d failed: %.100s", r.Failed[text], text)
	}
	b.Printf("\n")
}

// Rate is the median of the rounds.
func (r *Result) Rate() float64 { return Median(r.Rates) }

// Show is the rate with its unit.
func (r *Result) Show() string {
	if rate := r.Rate(); rate < 100 {
		return fmt.Sprintf("%.1f%s", rate, r.unit)
	}
	return fmt.Sprintf("%.0f%s", r.Rate(), r.unit)
}

// Over are the rates over a peer's, round by round.
func (r *Result) Over(peer *Result) []float64 { return Ratios(r.Rates, peer.Rates) }

// Meter is the median of the rounds.
func (r *Result) Meter(name string) float64 { return Median(r.Meters[name]) }

// Quantile is that of all operations' times, in whole microseconds.
func (r *Result) Quantile(q float64) time.Duration { return Quantile(r.Times, q) }

// Quantile sorts the times. It is 0 of none.
func Quantile(times []time.Duration, q float64) time.Duration {
	if len(times) == 0 {
		return 0
	}
	slices.Sort(times)
	return times[min(int(q*float64(len(times))), len(times)-1)].Round(time.Microsecond)
}

// Median is 0 of none.
func Median(values []float64) float64 {
	n := len(values)
	if n == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(values))
	return (sorted[(n-1)/2] + sorted[n/2]) / 2
}

// Ratios are the values over the peer's, one by one. A peer that did nothing counts as very slow.
func Ratios(values, peers []float64) (all []float64) {
	for i := range values {
		all = append(all, values[i]/max(peers[i], 1e-9))
	}
	return all
}

// failure is what ends a benchmark.
type failure struct{ error }

// Check ends the benchmark if there is an error, which [Catch] then returns. Like t.Fatal, it is for the goroutine that
// measures, not for operations.
func Check(err error) {
	if err != nil {
		panic(failure{err})
	}
}

// Must is Check, and returns the value.
func Must[T any](v T, err error) T {
	Check(err)
	return v
}

// Catch, deferred, makes a function return the error of [Check].
func Catch(err *error) {
	switch f := recover().(type) {
	case nil:
	case failure:
		*err = f.error
	default:
		panic(f)
	}
}
