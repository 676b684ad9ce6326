// Package jwt verifies JSON Web Tokens that others issue (RFC 7519), so that they can be a
// principal's.
//
// The guarantee: a token counts only where a key of its configured issuer has signed it, by an
// asymmetric algorithm that is configured, for the configured audience, and it has an end that
// has not come. Keys come from the configured place alone: what a token says about keys (jku,
// jwk, x5u, x5c) is not read, but for the name of one (kid).
//
//	v, err := jwt.New([]jwt.Issuer{{
//		URL: "https://idp.example", Audience: "fencegate",
//		Algorithms: []string{"RS256"}, Keys: "https://idp.example/jwks.json",
//	}}, logger)
//	all, err := access.New(definitions, access.VerifiedBy(v))
package jwt
