package runner

import (
	"net/url"
	"strings"
	"testing"

	"github.com/fencegate/fencegate/client"
	"github.com/fencegate/fencegate/wire"
)

// Each database address is rewritten to the gateway with the grant, and keeps the rest.
func TestAddressesLeadThroughTheGateway(t *testing.T) {
	t.Parallel()
	lease := []client.Lease{{Resource: "orders/10 01", Presented: "34.00112233445566778899aabbccddeeff"}}
	at := wire.PostgresEndpoint{Host: "gw", Port: 7432, Database: "shop"}
	const grant = "-c fence.resource=orders/10%2001 -c fence.token=34.00112233445566778899aabbccddeeff"
	login := []string{"PGUSER=app", "PGPASSWORD=pass word"}
	for _, c := range []struct {
		name, was, want string
		options         string
		inherited       []string
	}{
		{"DATABASE_URL", "postgres://app:p%40ss@db:5432/orders?sslmode=disable", "postgres://app:p%40ss@gw:7432/orders?sslmode=disable", "", nil},
		{"DATABASE_URL", "postgresql+asyncpg://app@db1:5432,db2:5433/orders?host=db3&port=1&target_session_attrs=read-write", "postgresql+asyncpg://app@gw:7432/orders", "", nil},
		{"DATABASE_URL", "postgres://db", "postgres://gw:7432/shop", "", login},
		{"DATABASE_URL", "postgres:///orders?options=-c%20statement_timeout=5s", "postgres://gw:7432/orders", "-c statement_timeout=5s ", nil},
		{"DATABASE_URL", "", "postgresql://gw:7432/shop", "", nil},
		{"DATABASE_URL", "", "postgresql://app@gw:7432/shop", "", login},
		{"JDBC_URL", "jdbc:postgresql://db:5432,db2/orders?user=app&password=a%26b&targetServerType=primary", "jdbc:postgresql://gw:7432/orders?user=app&password=a%26b", "", nil},
		{"JDBC_URL", "jdbc:postgresql:orders", "jdbc:postgresql://gw:7432/orders", "", login},
		{"JDBC_URL", "", "jdbc:postgresql://gw:7432/shop?user=app&password=pass%20word", "", login},
		{"JDBC_URL", "", "jdbc:postgresql://gw:7432/shop", "", nil},
	} {
		inherited := append([]string{c.name + "=" + c.was}, c.inherited...)
		all, err := addresses(inherited, []string{"DATABASE_URL"}[:map[bool]int{true: 1}[c.name == "DATABASE_URL"]], lease, at)
		if err != nil {
			t.Errorf("%s: %v", c.was, err)
			continue
		}
		got, options, ok := strings.Cut(all[c.name], "options=")
		plain, err := url.PathUnescape(options)
		if !ok || err != nil || strings.TrimRight(got, "?&") != c.want || plain != c.options+grant || strings.ContainsAny(options, "+ &") {
			t.Errorf("%s=%s became %s, want %s with the options %s", c.name, c.was, all[c.name], c.want, c.options+grant)
		}
	}
	if all, err := addresses([]string{"JDBC_URL=jdbc:mysql://db/x"}, nil, lease, at); err != nil || len(all) != 0 {
		t.Errorf("another database's address: %v, %v", all, err)
	}
	if _, err := addresses([]string{"DATABASE_URL=host=db dbname=orders password=secret"}, []string{"DATABASE_URL"}, lease, at); err == nil || strings.Contains(err.Error(), "secret") {
		t.Errorf("what is no URL: %v", err)
	}
}
