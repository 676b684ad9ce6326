// Package jwt verifies JSON Web Tokens (RFC 7519) of external issuers, so that they can identify principals.
//
// The guarantee: a token counts only if a key of its configured issuer has signed it, by a configured asymmetric
// algorithm, for the configured audience, and it has an expiry that has not passed. Keys come only from the configured
// place: of what a token says about keys, only the name (kid) is used; jku, jwk, x5u and x5c are ignored.
//
//	v, err := jwt.New([]jwt.Issuer{{
//		URL: "https://idp.example", Audience: "fencegate",
//		Algorithms: []string{"RS256"}, Keys: "https://idp.example/jwks.json",
//	}}, logger)
//	all, err := access.New(definitions, access.VerifiedBy(v))
package jwt
