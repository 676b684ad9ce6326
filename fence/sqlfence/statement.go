package sqlfence

import (
	"context"
	"database/sql/driver"
	"strings"

	"github.com/fencegate/fencegate/fence"
)

// exec runs a statement that returns no rows.
func (c *conn) exec(ctx context.Context, query string, do func() (driver.Result, error)) (result driver.Result, err error) {
	alone, err := c.before(ctx, query)
	if err != nil {
		return nil, err
	}
	if !alone {
		result, err = do()
		return result, c.after(err)
	}
	t, err := c.begin(ctx, driver.TxOptions{}, presented(ctx), !reads(query))
	if err != nil {
		return nil, err
	}
	result, err = do()
	if err != nil {
		t.abandon()
		return nil, Translate(err)
	}
	if err := t.finish(ctx); err != nil {
		return nil, err
	}
	return result, nil
}

// query runs a statement that returns rows. Outside of a transaction it commits before it returns the rows, so a
// caller that has them knows the statement's outcome. Beyond [maxHeld] bytes of rows it commits at their end.
func (c *conn) query(ctx context.Context, query string, do func() (driver.Rows, error)) (driver.Rows, error) {
	alone, err := c.before(ctx, query)
	if err != nil {
		return nil, err
	}
	if !alone {
		inner, err := do()
		if err = c.after(err); err != nil {
			return nil, err
		}
		return &rows{inner: inner, conn: c}, nil
	}
	t, err := c.begin(ctx, driver.TxOptions{}, presented(ctx), !reads(query))
	if err != nil {
		return nil, err
	}
	inner, err := do()
	if err != nil {
		t.abandon()
		return nil, Translate(err)
	}
	return hold(ctx, t, inner)
}

// before refuses statements that would leave the transaction that presents the grants, and reports whether a
// statement needs a transaction of its own.
func (c *conn) before(ctx context.Context, query string) (alone bool, err error) {
	switch {
	case c.tx != nil:
		if err := agree(ctx, c.tx.grants); err != nil {
			return false, err
		}
		if len(c.tx.grants) > 0 && controls(query) {
			return false, errControl
		}
		c.note(query)
		return false, nil
	case len(presented(ctx)) == 0:
		c.note(query)
		return false, nil
	case controls(query):
		return false, errControl
	}
	c.note(query)
	return true, nil
}

// after records the result of a statement of the open transaction.
func (c *conn) after(err error) error {
	if err == nil {
		if c.tx != nil {
			c.tx.failed = false // only ROLLBACK TO succeeds in a failed one
		}
		return nil
	}
	c.failed(err)
	return Translate(err)
}

var errControl = &fence.InvalidError{
	Field:  "statement",
	Reason: "begins or ends a transaction by its text: under a grant use BeginTx, Commit and Rollback",
}

// note checks what a statement may leave on the session: a transaction, or a grant. A false positive only costs a
// check in [conn.outside] and [conn.ResetSession].
func (c *conn) note(query string) {
	c.mayBeSet = c.mayBeSet || has(query, "fence.") || has(query, "fence\"")
	c.mayBeOpen = c.mayBeOpen || c.tx == nil && begins(query)
}

// begins reports whether a text, of one or several statements, may begin a transaction.
func begins(query string) bool {
	if !has(query, "begin") && !has(query, "start") {
		return false
	}
	for one := range strings.SplitSeq(query, ";") {
		if first, _ := word(one); first == "BEGIN" || first == "START" {
			return true
		}
	}
	return strings.Contains(query, ";") && (strings.Contains(query, "--") || strings.Contains(query, "/*"))
}

// has reports whether text contains an ASCII word, ignoring case.
func has(text, lower string) bool {
	for i := 0; i+len(lower) <= len(text); i++ {
		if text[i]|0x20 == lower[0]|0x20 && strings.EqualFold(text[i:i+len(lower)], lower) {
			return true
		}
	}
	return false
}

// controls reports whether a statement of a text begins or ends a transaction. A session may have turned
// standard_conforming_strings off, so a text with a backslash is read both ways.
func controls(query string) bool {
	if !strings.Contains(query, ";") {
		return controlsAlone(query)
	}
	return controlsAmong(query, false) || strings.Contains(query, `\`) && controlsAmong(query, true)
}

func controlsAmong(query string, escapes bool) bool {
	for one := range statements(query, escapes) {
		if controlsAlone(one) {
			return true
		}
	}
	return false
}

// controlsAlone is controls for one statement. ROLLBACK TO a savepoint neither begins nor ends a transaction.
func controlsAlone(query string) bool {
	first, rest := word(query)
	switch first {
	case "BEGIN", "START", "COMMIT", "END", "ABORT":
		return true
	case "PREPARE":
		second, _ := word(rest)
		return second == "TRANSACTION"
	case "ROLLBACK":
		for second, rest := word(rest); ; second, rest = word(rest) {
			if second != "WORK" && second != "TRANSACTION" {
				return second != "TO"
			}
		}
	}
	return false
}

// reads reports whether a statement's first word is that of a reading one. If a function in it writes, the outcome of
// an unanswered COMMIT can't be resolved.
func reads(query string) bool {
	switch first, _ := word(query); first {
	case "SELECT", "TABLE", "VALUES", "SHOW":
		return true
	}
	return false
}

// word returns the first word of a statement, in upper case, and the rest.
func word(query string) (first, rest string) {
	for {
		query = strings.TrimLeft(query, " \t\r\n\f\v;(")
		switch {
		case strings.HasPrefix(query, "--"):
			query = afterLine(query)
		case strings.HasPrefix(query, "/*"):
			query = afterComment(query)
		default:
			end := strings.IndexFunc(query, func(r rune) bool { return (r|0x20 < 'a' || r|0x20 > 'z') && r != '_' })
			if end < 0 {
				end = len(query)
			}
			return strings.ToUpper(query[:end]), query[end:]
		}
	}
}
