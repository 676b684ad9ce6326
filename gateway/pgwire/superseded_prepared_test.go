//go:build unix

package pgwire_test

import (
	"crypto/rand"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/pgfence"
	"github.com/fencegate/fencegate/internal/testenv"
)

// A transaction that a session has prepared for two-phase commit outlives the session and its grant. The next holder
// waits until some session has committed it or rolled it back.
func TestAPreparedTransactionHoldsItsGrantBeyondItsSession(t *testing.T) {
	t.Parallel()
	w := setup(t)
	admin := w.pg.Pool(t)
	for _, sql := range []string{"CREATE TABLE t (n int)", "GRANT ALL ON t TO fence_writer", "SELECT fence.protect('t', resource => 'a')"} {
		if _, err := admin.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	f := pgfence.New(testenv.PoolOf(t, w.pg.GatewayURL), pgfence.WithGrace(10*time.Millisecond))
	arm := func(token fence.Token) (fence.Grant, error) {
		g := fence.Grant{Resource: "a", Token: token, Seal: fence.NewSeal()}
		return g, f.Arm(t.Context(), fence.Arming{Resource: g.Resource, Token: token, SealHash: g.Seal.Hash(), Holder: "test"})
	}
	for i, end := range []string{"ROLLBACK PREPARED", "COMMIT PREPARED"} {
		token := fence.Token(10*i + 1)
		g, err := arm(token)
		if err != nil {
			t.Fatal(err)
		}
		conn := w.carrying(fmt.Sprintf("-c fence.resource=a -c fence.token=%s", g.Presented()))
		gid := rand.Text()
		for _, sql := range []string{"BEGIN", "INSERT INTO t VALUES (1)", "PREPARE TRANSACTION '" + gid + "'"} {
			if _, err := conn.Exec(t.Context(), sql); err != nil {
				t.Fatalf("%s: %v", sql, err)
			}
		}
		_ = conn.Close(t.Context())
		if _, err := arm(token + 1); sqlState(err) != "ZF005" || !strings.Contains(err.Error(), gid) {
			t.Errorf("armed over what is prepared: %v, want ZF005 and %s", err, gid)
		}
		if _, err := w.carrying("").Exec(t.Context(), end+" '"+gid+"'"); err != nil {
			t.Errorf("%s by another session: %v", end, err)
		}
		if _, err := arm(token + 2); err != nil {
			t.Errorf("after %s: %v", end, err)
		}
		var rows int
		if err := admin.QueryRow(t.Context(), "SELECT count(*) FROM t").Scan(&rows); err != nil || rows != i {
			t.Errorf("after %s: %d rows, %v", end, rows, err)
		}
	}
}
