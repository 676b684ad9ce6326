// Package page is the live page of a gateway, for people: who holds what, which writes were
// refused, how the nodes and PostgreSQL are, and taking a resource from its holder.
//
// The guarantee: it shows and does what the principal may that logged in, and no more; a view
// ends when its session or its principal's rights do. A token is posted once and kept in
// memory; it reaches no URL, no page and no cookie. What others chose is escaped, and the
// page runs no script but its own. Another site can neither read it nor act through it.
//
//	p := page.New(page.Config{Know: principals.Authenticate, Status: status, Held: held, …})
//	mux.Handle("/", p)
package page
