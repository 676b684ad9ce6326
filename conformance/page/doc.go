// Package page opens the live page of real gateways in a real Chromium, without a window.
//
// Its tests show what a person gets: who holds what, with a deadline that counts down; refused writes
// as they happen; the search; revoking, also by the keyboard; logging in and out; and what the page says
// while PostgreSQL is away. No view may make the browser complain, of an error or of the page's policy.
//
//	make page-test        # runs them
//	make page-pictures    # the same, and writes the pictures in docs anew
package page
