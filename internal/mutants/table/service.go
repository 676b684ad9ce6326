package table

// service lists the safeguards of the gateway: the rights of a
// handle, what is logged, and the addresses that clients get.
var service = []Mutant{
	{
		Name: "handle-version", What: "the MAC of a handle leaves its version out",
		File: "gateway/api/handle.go", Test: "gateway/api.TestAHandleIsOfItsPrincipalAndItsVersion",
		Old: "\th.Write(b)\n",
		New: "\th.Write(b[1:])\n",
	},
	{
		Name: "handle-principal", What: "the MAC of a handle leaves its principal out",
		File: "gateway/api/handle.go", Test: "gateway/api.TestAHandleIsOfItsPrincipalAndItsVersion",
		Old: "\th.Write(b)\n",
		New: "\t_, rest, _ := cutBytes(b[1:])\n\t_, rest, _ = cutBytes(rest)\n\th.Write(b[:2])\n\th.Write(rest)\n",
	},
	{
		Name: "handle-outlives-right", What: "a handle is worth what its bearer might when it was made",
		File: "gateway/api/auth.go", Test: "gateway/api.TestAHandleIsWorthWhatItsBearerMayNow",
		Old: "h.Principal == p.Name() && p.May(access.Acquire, h.Resource)",
		New: "h.Principal == p.Name()",
	},
	{
		Name: "handle-of-anybody", What: "another's lease is renewed without the right to manage it",
		File: "gateway/api/auth.go", Test: "gateway/api.TestAHandleIsWorthWhatItsBearerMayNow",
		Old: "return p.Check(access.Manage, h.Resource)",
		New: "return nil",
	},
	{
		Name: "credentials-outlive-right", What: "S3 credentials are issued without the right to acquire",
		File: "gateway/api/auth.go", Test: "gateway/api.TestAHandleIsWorthWhatItsBearerMayNow",
		Old: "\treturn p.Check(access.Acquire, h.Resource)\n",
		New: "\treturn nil\n",
	},
	{
		Name: "credentials-of-anybody", What: "S3 credentials are issued for another's lease",
		File: "gateway/api/auth.go", Test: "gateway/api.TestEveryEndpointNeedsItsRightAndNoOther",
		Old: "if h.Principal != p.Name() {",
		New: "if false {",
	},
	{
		Name: "reads-outlive-lease", What: "static credentials of a token that expires read on after the lease",
		File: "gateway/api/credentials.go", Test: "gateway.TestStaticCredentialsOfATokenThatExpiresReadNothingOnceTheLeaseIsOver",
		Old: "EndHeld: !body.Refreshing && p.Expires()",
		New: "EndHeld: false",
	},
	{
		Name: "audit-no-principal", What: "a line of the audit does not say who",
		File: "gateway/api/audit.go", Test: "cmd/fencegate.TestTheLogTellsWhoDidWhatAndNoSecret",
		Old: "\tif j.principals {\n\t\tattrs = append",
		New: "\tif false {\n\t\tattrs = append",
	},
	{
		Name: "audit-no-request", What: "a line of the audit has no request id",
		File: "gateway/api/requestid.go", Test: "cmd/fencegate.TestTheLogTellsWhoDidWhatAndNoSecret",
		Old: "if id := requestID(ctx); id != \"\" {",
		New: "if id := requestID(ctx); id == \"never\" {",
	},
	{
		Name: "audit-no-revocation", What: "a revocation is not written down",
		File: "gateway/api/resources.go", Test: "cmd/fencegate.TestTheLogTellsWhoDidWhatAndNoSecret",
		Old: "\tr.journal.audit(req, \"a resource was revoked\", \"resource\", resource, \"token\", token, \"by\", by)\n",
		New: "",
	},
	{
		Name: "audit-no-rules", What: "a change of the PostgreSQL port's rules is not written down",
		File: "gateway/pgwire/server.go", Test: "cmd/fencegate.TestTheLogTellsWhoDidWhatAndNoSecret",
		Old: "s.log.Info(\"the rules of the PostgreSQL port were replaced\", \"policies\", differ(*before, rules), \"sessions_ending\", ends)",
		New: "_, _ = before, ends",
	},
	{
		Name: "audit-no-principals", What: "a change of the principals does not say which",
		File: "gateway/principals.go", Test: "cmd/fencegate.TestTheLogTellsWhoDidWhatAndNoSecret",
		Old: ", \"changed\", change.Changed",
		New: "",
	},
	{
		Name: "audit-s3-no-request", What: "a line of the audit of the S3 port has no request id",
		File: "gateway/s3/rights.go", Test: "gateway/s3.TestADenialIsWrittenDownNowAndThen",
		Old: ", \"request_id\", r.id(),\n",
		New: ",\n",
	},
	{
		Name: "audit-no-config", What: "a change of the configuration does not say what was applied",
		File: "cmd/fencegate/reload.go", Test: "cmd/fencegate.TestTheLogTellsWhoDidWhatAndNoSecret",
		Old: ", \"applied\", keysOf(next, applied))",
		New: ")",
	},
	{
		Name: "own-pg-port", What: "clients receive the gateway's own PostgreSQL port",
		File: "gateway/endpoints.go", Test: "gateway.TestClientsAreToldTheBalancersPorts",
		Old: "if e.postgres.host != \"\" {",
		New: "if false {",
	},
	{
		Name: "own-s3-port", What: "clients receive the gateway's own S3 port",
		File: "gateway/endpoints.go", Test: "gateway.TestClientsAreToldTheBalancersPorts",
		Old: "cmp.Or(e.cfg.S3Advertise, scheme+",
		New: "cmp.Or(scheme+",
	},
	{
		Name: "any-pg-port", What: "an advertised PostgreSQL port needs neither a host nor a number",
		File: "gateway/endpoints.go", Test: "gateway.TestClientsAreToldTheBalancersPorts",
		Old: "if err != nil || host == \"\" || numberErr != nil || port == 0 {",
		New: "if err != nil && numberErr != nil {",
	},
	{
		Name: "drill-no-quarantine", What: "lost nodes are admitted at once, as a gateway's clients see it",
		File: "lock/internal/admission/admit.go", Test: "gateway.TestADrillOfAQuorumOfRedisNodes",
		Old: "a := Admission{Nonce: g.NewNonce(),",
		New: "longest = 0\n\ta := Admission{Nonce: g.NewNonce(),",
	},
	{
		Name: "drill-everything-at-once", What: "after a restart of everything, lost nodes are admitted at once",
		File: "lock/internal/admission/admit.go", Test: "gateway.TestADrillOfEverything",
		Old: "a := Admission{Nonce: g.NewNonce(),",
		New: "longest = 0\n\ta := Admission{Nonce: g.NewNonce(),",
	},
	{
		Name: "drill-renewal-asks", What: "a renewal needs PostgreSQL",
		File: "gateway/api/leases.go", Test: "gateway.TestADrillOfPostgreSQL",
		Old: "deadline, err := l.extend(ctx, h.Ref, ttl, left)",
		New: "if err := l.cfg.Checks[0].Run(ctx); err != nil {\n\t\treturn leaseError(ctx, err)\n\t}\n\tdeadline, err := l.extend(ctx, h.Ref, ttl, left)",
	},
	{
		Name: "goroutine-leak", What: "Each request to the HTTP API leaves a goroutine. Runs with faults restart gateways too often to notice it.",
		File: "gateway/api/server.go",
		Old:  "\t\tbegan := time.Now()\n\t\tif err := next(c); err != nil {",
		New:  "\t\tgo func() { select {} }()\n\t\tbegan := time.Now()\n\t\tif err := next(c); err != nil {",
		Run:  &Run{Soak: true, Expect: []string{"leak"}, Within: seldom},
	},
}
