package core

import (
	"context"
	"errors"
	"testing"

	"github.com/fencegate/fencegate/fence"
)

// What refuses the question says nothing about the transaction.
func TestARefusalOfTheQuestionIsNotTheTransactions(t *testing.T) {
	t.Parallel()
	lost := &fence.UnknownError{XID: "1", Run: "run", Err: errors.New("connection lost")}
	err := Outcome(t.Context(), lost, func(context.Context, *fence.UnknownError) (string, error) {
		return "", &fence.StaleError{Resource: "orders", Presented: 1, Recorded: 2}
	}, func(error) bool { return true })
	if !errors.Is(err, fence.ErrUnknown) || errors.Is(err, fence.ErrStale) {
		t.Errorf("got %v", err)
	}
}
