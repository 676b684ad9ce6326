package main

// service lists the safeguards of the gateway: the rights of a
// handle, what is logged, and the addresses that clients get.
var service = []mutant{
	{
		name: "handle-version", what: "the MAC of a handle leaves its version out",
		file: "gateway/api/handle.go", in: "gateway/api", test: "TestAHandleIsOfItsPrincipalAndItsVersion",
		old: "\th.Write(b)\n",
		new: "\th.Write(b[1:])\n",
	},
	{
		name: "handle-principal", what: "the MAC of a handle leaves its principal out",
		file: "gateway/api/handle.go", in: "gateway/api", test: "TestAHandleIsOfItsPrincipalAndItsVersion",
		old: "\th.Write(b)\n",
		new: "\t_, rest, _ := cutBytes(b[1:])\n\t_, rest, _ = cutBytes(rest)\n\th.Write(b[:2])\n\th.Write(rest)\n",
	},
	{
		name: "handle-outlives-right", what: "a handle is worth what its bearer might when it was made",
		file: "gateway/api/auth.go", in: "gateway/api", test: "TestAHandleIsWorthWhatItsBearerMayNow",
		old: "h.Principal == p.Name() && p.May(access.Acquire, h.Resource)",
		new: "h.Principal == p.Name()",
	},
	{
		name: "handle-of-anybody", what: "another's lease is renewed without the right to manage it",
		file: "gateway/api/auth.go", in: "gateway/api", test: "TestAHandleIsWorthWhatItsBearerMayNow",
		old: "return p.Check(access.Manage, h.Resource)",
		new: "return nil",
	},
	{
		name: "credentials-outlive-right", what: "S3 credentials are issued without the right to acquire",
		file: "gateway/api/auth.go", in: "gateway/api", test: "TestAHandleIsWorthWhatItsBearerMayNow",
		old: "\treturn p.Check(access.Acquire, h.Resource)\n",
		new: "\treturn nil\n",
	},
	{
		name: "credentials-of-anybody", what: "S3 credentials are issued for another's lease",
		file: "gateway/api/auth.go", in: "gateway/api", test: "TestEveryEndpointNeedsItsRightAndNoOther",
		old: "if h.Principal != p.Name() {",
		new: "if false {",
	},
	{
		name: "reads-outlive-lease", what: "static credentials of a token that expires read on after the lease",
		file: "gateway/api/credentials.go", in: "gateway", test: "TestStaticCredentialsOfATokenThatExpiresReadNothingOnceTheLeaseIsOver",
		old: "EndHeld: !body.Refreshing && p.Expires()",
		new: "EndHeld: false",
	},
	{
		name: "audit-no-principal", what: "a line of the audit does not say who",
		file: "gateway/api/audit.go", in: "cmd/fencegate", test: "TestTheLogTellsWhoDidWhatAndNoSecret",
		old: "\tif j.principals {\n\t\tattrs = append",
		new: "\tif false {\n\t\tattrs = append",
	},
	{
		name: "audit-no-request", what: "a line of the audit has no request id",
		file: "gateway/api/requestid.go", in: "cmd/fencegate", test: "TestTheLogTellsWhoDidWhatAndNoSecret",
		old: "if id := requestID(ctx); id != \"\" {",
		new: "if id := requestID(ctx); id == \"never\" {",
	},
	{
		name: "audit-no-revocation", what: "a revocation is not written down",
		file: "gateway/api/resources.go", in: "cmd/fencegate", test: "TestTheLogTellsWhoDidWhatAndNoSecret",
		old: "\tr.journal.audit(req, \"a resource was revoked\", \"resource\", resource, \"token\", token, \"by\", by)\n",
		new: "",
	},
	{
		name: "audit-no-rules", what: "a change of the PostgreSQL port's rules is not written down",
		file: "gateway/pgwire/server.go", in: "cmd/fencegate", test: "TestTheLogTellsWhoDidWhatAndNoSecret",
		old: "s.log.Info(\"the rules of the PostgreSQL port were replaced\", \"policies\", differ(*before, rules), \"sessions_ending\", ends)",
		new: "_, _ = before, ends",
	},
	{
		name: "audit-no-principals", what: "a change of the principals does not say which",
		file: "gateway/principals.go", in: "cmd/fencegate", test: "TestTheLogTellsWhoDidWhatAndNoSecret",
		old: ", \"changed\", change.Changed",
		new: "",
	},
	{
		name: "audit-s3-no-request", what: "a line of the audit of the S3 port has no request id",
		file: "gateway/s3/rights.go", in: "gateway/s3", test: "TestADenialIsWrittenDownNowAndThen",
		old: ", \"request_id\", r.id(),\n",
		new: ",\n",
	},
	{
		name: "audit-no-config", what: "a change of the configuration does not say what was applied",
		file: "cmd/fencegate/reload.go", in: "cmd/fencegate", test: "TestTheLogTellsWhoDidWhatAndNoSecret",
		old: ", \"applied\", keysOf(next, applied))",
		new: ")",
	},
	{
		name: "own-pg-port", what: "clients receive the gateway's own PostgreSQL port",
		file: "gateway/endpoints.go", in: "gateway", test: "TestClientsAreToldTheBalancersPorts",
		old: "if e.postgres.host != \"\" {",
		new: "if false {",
	},
	{
		name: "own-s3-port", what: "clients receive the gateway's own S3 port",
		file: "gateway/endpoints.go", in: "gateway", test: "TestClientsAreToldTheBalancersPorts",
		old: "cmp.Or(e.cfg.S3Advertise, scheme+",
		new: "cmp.Or(scheme+",
	},
	{
		name: "any-pg-port", what: "an advertised PostgreSQL port needs neither a host nor a number",
		file: "gateway/endpoints.go", in: "gateway", test: "TestClientsAreToldTheBalancersPorts",
		old: "if err != nil || host == \"\" || numberErr != nil || port == 0 {",
		new: "if err != nil && numberErr != nil {",
	},
	{
		name: "drill-no-quarantine", what: "lost nodes are admitted at once, as a gateway's clients see it",
		file: "lock/internal/admission/admit.go", in: "gateway", test: "TestADrillOfAQuorumOfRedisNodes",
		old: "a := Admission{Nonce: g.NewNonce(),",
		new: "longest = 0\n\ta := Admission{Nonce: g.NewNonce(),",
	},
	{
		name: "drill-everything-at-once", what: "after a restart of everything, lost nodes are admitted at once",
		file: "lock/internal/admission/admit.go", in: "gateway", test: "TestADrillOfEverything",
		old: "a := Admission{Nonce: g.NewNonce(),",
		new: "longest = 0\n\ta := Admission{Nonce: g.NewNonce(),",
	},
	{
		name: "drill-renewal-asks", what: "a renewal needs PostgreSQL",
		file: "gateway/api/leases.go", in: "gateway", test: "TestADrillOfPostgreSQL",
		old: "deadline, err := l.extend(ctx, h.Ref, ttl, left)",
		new: "if err := l.cfg.Checks[0].Run(ctx); err != nil {\n\t\treturn leaseError(ctx, err)\n\t}\n\tdeadline, err := l.extend(ctx, h.Ref, ttl, left)",
	},
}
