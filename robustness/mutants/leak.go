package mutants

// Leak is a bug for a soak: each request leaks a goroutine. It is in no list of mutants, because runs with faults
// restart gateways too often to notice it.
var Leak = Mutant{
	Name:   "goroutine-leak",
	What:   "Each request to the HTTP API leaves a goroutine.",
	Files:  []Replace{{File: "gateway/api/server.go", Old: "\t\tbegan := time.Now()\n\t\tif err := next(c); err != nil {", New: "\t\tgo func() { select {} }()\n\t\tbegan := time.Now()\n\t\tif err := next(c); err != nil {"}},
	Expect: []string{"leak"},
}
