//nolint:testableexamples // they need a cluster and a database
package kubelock_test

import (
	"context"
	"errors"
	"log"
	"os/signal"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"k8s.io/apimachinery/pkg/types"
	coordinationclient "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/client-go/rest"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/leasing"
	"github.com/fencegate/fencegate/fence/pgfence"
	"github.com/fencegate/fencegate/lock/kubelock"
)

// A pod closes orders while it leads. A pod that was paused and superseded closes none.
func ExampleRun() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	config, err := rest.InClusterConfig()
	if err != nil {
		log.Print(err)
		return
	}
	client, err := coordinationclient.NewForConfig(config)
	if err != nil {
		log.Print(err)
		return
	}
	armers, err := pgxpool.New(ctx, "postgres://gateway@db/shop") // its login is in fence_gateway
	if err != nil {
		log.Print(err)
		return
	}
	defer armers.Close()
	writers, err := pgxpool.New(ctx, "postgres://app@db/shop") // its login is in fence_writer
	if err != nil {
		log.Print(err)
		return
	}
	defer writers.Close()

	election := kubelock.Config{
		Client: client, Lease: types.NamespacedName{Namespace: "shop", Name: "orders"}, Resource: "orders", Armer: pgfence.New(armers),
	}
	for ctx.Err() == nil {
		err := kubelock.Run(ctx, election, func(ctx context.Context, grant fence.Grant) error {
			for ctx.Err() == nil {
				err := pgfence.InTx(ctx, writers, grant, func(tx pgx.Tx) error {
					_, err := tx.Exec(ctx, `UPDATE orders SET closed = now() WHERE closed IS NULL AND due < now()`)
					return err
				})
				if err != nil {
					return err
				}
				pause(ctx, time.Minute)
			}
			return nil
		})
		if err != nil && ctx.Err() == nil {
			log.Printf("the term is over: %v (lost: %v)", err, errors.Is(err, leasing.ErrLost))
			pause(ctx, time.Second)
		}
	}
}

func pause(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}
