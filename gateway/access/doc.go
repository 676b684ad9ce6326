// Package access decides who may do what at a gateway: principals, and what each of them
// may do with which resources.
//
// The guarantee: what no rule allows is refused. A principal's rights are checked at each use, so a principal whose
// rights are removed loses them at once.
//
//	all, err := access.New([]access.Definition{{
//		Name: "worker", Tokens: []access.Digest{access.DigestOf(token)},
//		Rules: []access.Rule{{Resources: "orders/*", Verbs: []access.Verb{access.Acquire}}},
//	}})
//	p, err := all.Authenticate(ctx, presented)
//	if err != nil || !p.May(access.Revoke, "orders/1001") {
//		return p.Denied(access.Revoke, "orders/1001")
//	}
package access
