package runner

import (
	"net"
	"net/url"
	"strconv"
	"strings"

	"github.com/fencegate/fencegate/client"
	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/wire"
)

// variableJDBC holds the address for JDBC, which ignores libpq's variables.
const variableJDBC = "JDBC_URL"

// schemeJDBC begins the addresses that PostgreSQL's JDBC driver takes.
const schemeJDBC = "jdbc:postgresql:"

// addresses rewrites the database's addresses in variables: those in names, and JDBC's. Each leads to the gateway, with
// the grants in its options; the rest of an inherited address stays.
func addresses(inherited []string, names []string, leases []client.Lease, at wire.PostgresEndpoint) (map[string]string, error) {
	all := map[string]string{}
	for _, name := range names {
		was := variable(inherited, name)
		if was == "" {
			all[name] = through("postgresql:", "", inherited, leases, at)
			continue
		}
		scheme, rest, ok := strings.Cut(was, "//")
		if !ok || !strings.HasPrefix(scheme, "postgres") || !strings.HasSuffix(scheme, ":") {
			return nil, &fence.InvalidError{Field: "pg-url-env", Reason: "names " + name + ", whose value does not begin with postgres:// or postgresql://"}
		}
		all[name] = through(scheme, "//"+rest, inherited, leases, at)
	}
	if was := variable(inherited, variableJDBC); was == "" {
		all[variableJDBC] = through(schemeJDBC, "", inherited, leases, at)
	} else if rest, ok := strings.CutPrefix(was, schemeJDBC); ok {
		all[variableJDBC] = through(schemeJDBC, rest, inherited, leases, at)
	}
	return all, nil
}

// through returns an address that leads through the gateway. rest is the old address after its scheme:
// //user@hosts/database?parameters, or a database's name.
func through(scheme, rest string, inherited []string, leases []client.Lease, at wire.PostgresEndpoint) string {
	rest, query, _ := strings.Cut(rest, "?")
	user, database := "", rest // jdbc:postgresql:database
	if authority, ok := strings.CutPrefix(rest, "//"); ok {
		authority, database, _ = strings.Cut(authority, "/")
		if i := strings.LastIndexByte(authority, '@'); i >= 0 {
			user = authority[:i+1]
		}
	}
	given := parameters(query)
	jdbc := scheme == schemeJDBC
	if rest == "" { // without an old address, the values come from the other variables
		if name := variable(inherited, "PGUSER"); name != "" && jdbc {
			given = append(given, parameter{"user", name}, parameter{"password", variable(inherited, "PGPASSWORD")})
		} else if name != "" {
			user = url.PathEscape(name) + "@"
		}
		database = url.PathEscape(variable(inherited, "PGDATABASE"))
	}
	database = strings.TrimPrefix(database, "/")
	if database == "" {
		database = url.PathEscape(at.Database)
	}
	was := ""
	var kept []string
	for _, p := range given {
		switch {
		case p.name == "options":
			was = strings.TrimSpace(was + " " + p.value)
		case p.value != "" && !leadsAround(p.name):
			kept = append(kept, p.name+"="+escaped(p.value))
		}
	}
	kept = append(kept, "options="+escaped(options(was, leases)))
	return scheme + "//" + user + net.JoinHostPort(at.Host, strconv.Itoa(at.Port)) + "/" + database + "?" + strings.Join(kept, "&")
}

// leadsAround reports whether a parameter would bypass the gateway.
func leadsAround(name string) bool {
	switch name {
	case "host", "hostaddr", "port", "service", "servicefile", "targetServerType", "target_session_attrs", "loadBalanceHosts", "load_balance_hosts":
		return true
	}
	return false
}

type parameter struct{ name, value string }

// parameters parses a query in order. Drivers disagree on the meaning of +, so it is left.
func parameters(query string) (all []parameter) {
	for part := range strings.SplitSeq(query, "&") {
		name, v, _ := strings.Cut(part, "=")
		if plain, err := url.PathUnescape(v); err == nil {
			v = plain
		}
		if name != "" {
			all = append(all, parameter{name, v})
		}
	}
	return all
}

// escaped escapes a query value. A space becomes %20, which every driver reads.
func escaped(v string) string { return strings.ReplaceAll(url.QueryEscape(v), "+", "%20") }

// options returns the options of a connection that presents the grants, after the existing ones. Grants in those, from
// an outer run, are reset.
func options(was string, leases []client.Lease) string {
	presented := "-c fence.grants=" + grantList(leases)
	if len(leases) == 1 {
		presented = "-c fence.resource=" + fence.EscapeResource(leases[0].Resource) + " -c fence.token=" + leases[0].Presented
		if strings.Contains(was, "fence.grants") {
			presented = "-c fence.grants= " + presented
		}
	} else if strings.Contains(was, "fence.resource") || strings.Contains(was, "fence.token") {
		presented = "-c fence.resource= -c fence.token= " + presented
	}
	return strings.TrimSpace(was + " " + presented)
}

// grantList formats the grants for the setting fence.grants.
func grantList(leases []client.Lease) string {
	all := make([]string, len(leases))
	for i, lease := range leases {
		all[i] = fence.EscapeResource(lease.Resource) + "=" + lease.Presented
	}
	return strings.Join(all, ",")
}
