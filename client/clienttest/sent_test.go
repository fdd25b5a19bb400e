package clienttest_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ringfence/router/client"
	"github.com/ringfence/router/client/clienttest"
)

// Timers that a handler sets come when they are due, on the time of the test, and only from a handler that has done its
// work. A second run of the same event sets no second one.
func TestTimersOfHandlers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		router := clienttest.NewRouter(t)
		fail := true
		var came atomic.Pointer[client.Event]
		router.Start(func(_ context.Context, e *client.Event) error {
			if e.Timer != nil {
				came.Store(e)
				return nil
			}
			e.After(15*time.Minute, "expire", []byte("p"))
			if fail {
				return errors.New("no")
			}
			return nil
		})
		d := router.Deliver(&client.Event{Key: "order-7"})
		if d.Outcome().Kind != clienttest.Retry || len(router.Sent()) != 0 {
			t.Fatalf("a failed handler: %v, %d timers", d.Outcome(), len(router.Sent()))
		}
		fail = false
		router.RefuseSends(errors.New("no broker"))
		if d = d.Redeliver(); d.Outcome().Kind != clienttest.Retry || len(router.Sent()) != 0 {
			t.Fatalf("without a broker: %v, %d timers", d.Outcome(), len(router.Sent()))
		}
		router.RefuseSends(nil)
		for range 2 {
			if d = d.Redeliver(); d.Outcome().Kind != clienttest.Done {
				t.Fatalf("the handler: %v", d.Outcome())
			}
		}
		sent := router.Sent()
		if len(sent) != 1 || sent[0].Key != "order-7" || sent[0].Name != "expire" || string(sent[0].Payload) != "p" {
			t.Fatalf("sent: %+v", sent)
		}
		set := time.Now()
		time.Sleep(time.Until(sent[0].Due) - time.Second)
		if came.Load() != nil {
			t.Error("it came too early")
		}
		if sent[0].Delivery.Outcome().Kind != clienttest.Done || time.Since(set) < 14*time.Minute || time.Since(set) > 16*time.Minute {
			t.Errorf("it came after %v", time.Since(set))
		}
		got := came.Load()
		if got.Timer.Name != "expire" || got.Key != "order-7" || string(got.Payload) != "p" || !got.Timer.Due.Equal(sent[0].Due) {
			t.Errorf("it came as %+v, %+v", got, got.Timer)
		}
		if id, err := router.Lane().Send(t.Context(), "order-8", nil, client.WithSendID("x")); err != nil || id.Ledger < 1<<61 {
			t.Errorf("a Send: %v, %v", id, err)
		}
		if sent := router.Sent(); sent[1].Delivery.Outcome().Kind != clienttest.Done { // its own handler sets no timer
			t.Errorf("what was sent: %v", sent[1].Delivery.Outcome())
		}
	})
}
