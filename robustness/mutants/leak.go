package mutants

// Leak is what a soak must find: each request leaves a goroutine behind. It is in no list of
// mutants, for a run under faults restarts gateways too often to see it.
var Leak = Mutant{
	Name:   "goroutine-leak",
	What:   "Each request to the HTTP API leaves a goroutine.",
	Files:  []Replace{{File: "gateway/api/server.go", Old: "\t\tbegan := time.Now()\n\t\tif err := next(c); err != nil {", New: "\t\tgo func() { select {} }()\n\t\tbegan := time.Now()\n\t\tif err := next(c); err != nil {"}},
	Expect: []string{"leak"},
}
