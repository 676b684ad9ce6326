// Package gateway puts the parts of a gateway together: leases over Redis and
// the fence in PostgreSQL, behind an HTTP API, a PostgreSQL port and an S3 port.
//
// The guarantee: the gateway keeps no state of its own. Any number of gateways may stand behind a balancer with the
// same PostgreSQL, Redis nodes, blobs and master keys. When one dies, its grants stay granted and its refusals stay
// refused, because the fence in PostgreSQL decides.
//
//	g, err := gateway.New(gateway.Config{
//		PostgresURL: "postgres://fencegate@db/shop", // a login in fence_gateway
//		RedisNodes:  []lock.Node{{Addr: "r1:6379"}, {Addr: "r2:6379"}, {Addr: "r3:6379"}},
//		MasterKey:   keys, // "id:hex", the same for all replicas
//		APIListen:   "127.0.0.1:7070", PGListen: "127.0.0.1:7432",
//	})
//	if err != nil {
//		return err // *fence.InvalidError: names the field
//	}
//	return g.Run(ctx) // until ctx ends, then drains
package gateway
