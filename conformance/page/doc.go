// Package page opens the live page of real gateways in a real Chromium, headless.
//
// Its tests show what a user sees: who holds what, with a deadline that counts down; refused writes as they happen; the
// search; revoking, also with the keyboard; logging in and out; and the message while PostgreSQL is unavailable. The
// browser must not report an error or a policy violation in any view.
//
//	make test-page        # runs them
//	make test-page PICTURES=1    # the same, and rewrites the pictures in docs
package page
