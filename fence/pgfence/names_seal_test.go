package pgfence_test

import (
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/fencegate/fencegate/fence"
)

// A caller that swaps the resource and the token passes the seal as a name, and names are shown in errors.
func TestNoRefusalRepeatsASealThatWasGivenAsAName(t *testing.T) {
	t.Parallel()
	w := setup(t)
	armed(t, w)
	writer, gateway := w.session(t), connect(t, w.pg.GatewayURL)
	escaped := "34%2e" + sealA
	cases := []struct {
		name string
		conn *pgx.Conn
		sql  string
		args []any
		code string
	}{
		{"use, swapped", writer, `SELECT fence.use($1, $2)`, []any{"34." + sealA, orders}, "ZF003"},
		{"use, the grant twice", writer, `SELECT fence.use($1, $1)`, []any{"34." + sealA}, "ZF003"},
		{"use, the seal as a name", writer, `SELECT fence.use($1, '34')`, []any{sealA}, "ZF003"},
		{"use, the seal as a name and as a seal", writer, `SELECT fence.use($1, '34.' || $1)`, []any{sealA}, "ZF003"},
		{"use, a space before it", writer, `SELECT fence.use(' ' || $1, $1)`, []any{"34." + sealA}, "ZF003"},
		{"use, a line's end behind it", writer, `SELECT fence.use($1 || chr(10), $2)`, []any{"34." + sealA, orders}, "ZF003"},
		{"use of several, swapped", writer, `SELECT fence.use($1::text[], $2::text[])`, []any{[]string{orders, "34." + sealA}, []string{"34." + sealA, orders}}, "ZF003"},
		{"settings, swapped", writer, `SELECT set_config('fence.resource', $1, true), set_config('fence.token', $2, true), fence.check()`, []any{"34." + sealA, orders}, "ZF003"},
		{"settings, swapped and escaped", writer, `SELECT set_config('fence.resource', $1, true), set_config('fence.token', $2, true), fence.check()`, []any{escaped, orders}, "ZF003"},
		{
			"settings, swapped and too long", writer, `SELECT set_config('fence.resource', $1, true), set_config('fence.token', $2, true), fence.check()`,
			[]any{strings.Repeat("x", 490) + escaped, orders},
			"ZF003",
		},
		{"a list, swapped", writer, `SELECT set_config('fence.grants', $1, true), fence.check()`, []any{"34." + sealA + "=orders"}, "ZF003"},
		{
			"a guarded write under the seal as a name", writer, `SELECT set_config('fence.resource', $1, true), set_config('fence.token', '34.' || $1, true), fence.check('orders/1001')`,
			[]any{sealA},
			"ZF004",
		},
		{"the grant as what is needed", writer, `SELECT fence.check($1)`, []any{"34." + sealA}, "ZF002"},
		{
			"the grant as what is needed beside another", writer, `SELECT set_config('fence.resource', 'orders/1001', true), set_config('fence.token', $1, true), fence.check($1)`,
			[]any{"34." + sealA},
			"ZF004",
		},
		{"a token checked elsewhere", gateway, `SELECT fence.check_issued($1, 34)`, []any{"34." + sealA}, "ZF003"},
		{"raising", gateway, `SELECT fence.raise($1, 35, NULL, '')`, []any{"34." + sealA}, "22023"},
		{"arming", gateway, `SELECT fence.arm($1, 35, NULL, '')`, []any{"34." + sealA}, "22023"},
		{"protecting", connect(t, w.pg.URL), `SELECT fence.protect('work', resource => $1)`, []any{"34." + sealA}, "22023"},
	}
	for _, c := range cases {
		err := pgx.BeginFunc(t.Context(), c.conn, func(tx pgx.Tx) error {
			rows, err := tx.Query(t.Context(), c.sql, c.args...)
			if err == nil {
				rows.Close()
				err = rows.Err()
			}
			return err
		})
		pg := refusalOf(t, err)
		if pg.Code != c.code {
			t.Errorf("%s: got %s %q, want %s", c.name, pg.Code, pg.Message, c.code)
		}
		hidden(t, pg, sealA, sealA[:16])
	}
}

// Names of 32 hexadecimal digits are valid. They are shown if there is a fence of that name.
func TestANameThatLooksLikeASealIsShownWhereItHasAFence(t *testing.T) {
	t.Parallel()
	w := setup(t)
	name := strings.Repeat("5e", 16)
	for _, resource := range []string{name, "thumbs/34." + name} {
		w.acquire(t, resource, 7)
		_, err := w.session(t).Exec(t.Context(), `SELECT fence.use($1, $2)`, resource, "6."+sealA)
		pg := refusalOf(t, err)
		if want := (&fence.StaleError{Resource: resource, Presented: 6, Recorded: 7}).Error(); pg.Message != want || !strings.Contains(pg.Detail, `"`+resource+`"`) {
			t.Errorf("got %q with DETAIL %s, want %q", pg.Message, pg.Detail, want)
		}
	}
}
