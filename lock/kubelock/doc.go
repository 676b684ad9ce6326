// Package kubelock elects a leader over a Kubernetes Lease, and gives the leader a grant for the fence.
//
// The guarantee: each update that takes the Lease raises a counter in its annotation fencegate.dev/token above the
// counter's value and the fence's. The counter is the leader's fencing token; renewals keep it. The tokens of a Lease
// are unique and rise as long as the cluster keeps what it acknowledged. With an Armer they also rise if the Lease was
// deleted, or if the cluster was restored from an older state. The fence is armed before the leader's work begins: a
// leader that was paused and superseded changes nothing that the fence guards.
//
//	err := kubelock.Run(ctx, kubelock.Config{
//		Client:   clientset.CoordinationV1(),
//		Lease:    types.NamespacedName{Namespace: "shop", Name: "orders"},
//		Resource: "orders",
//		Armer:    pgfence.New(pool),
//	}, func(ctx context.Context, grant fence.Grant) error {
//		return pgfence.InTx(ctx, writers, grant, func(tx pgx.Tx) error { … })
//	})
//
// The election is client-go's own (tools/leaderelection). [Lock] is a resourcelock.Interface, so a framework can run
// the elector. The Lease's leaseTransitions is no fencing token: it stays the same when one identity takes the Lease
// again, and restarts when the Lease was deleted.
//
// This is no leasing.Source: each election has one Lease, not each resource; each renewal is an update in the cluster's
// etcd; and candidates ask for the Lease every RetryPeriod. For many short leases use another source.
package kubelock
