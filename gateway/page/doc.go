// Package page is the live page of a gateway, for people: it shows who holds what, which writes were refused, and the
// state of the nodes and PostgreSQL, and can take a resource from its holder.
//
// The guarantee: it shows and does only what the logged-in principal may; a view ends when its session or its
// principal's rights do. A token is posted once and kept in memory; it never appears in a URL, a page or a cookie. Text
// from others is escaped, and the page runs only its own script. Another site can neither read it nor act through it.
//
//	p := page.New(page.Config{Know: principals.Authenticate, Status: status, ListHeld: held, …})
//	mux.Handle("/", p)
package page
