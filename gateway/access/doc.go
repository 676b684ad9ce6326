// Package access decides who may do what at a gateway: principals, and what each of them
// may do with which resources.
//
// The guarantee: what no rule allows is refused. A principal's rights are looked at each
// time they are used, so that one whose rights were taken away loses them at once.
//
//	p := access.Of(request.Context())
//	if !p.May(access.Revoke, "orders/1001") {
//		return &access.DeniedError{Principal: p.Name(), Verb: access.Revoke, Resource: "orders/1001"}
//	}
package access
