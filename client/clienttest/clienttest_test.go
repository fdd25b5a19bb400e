package clienttest_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/ringfence/router/client"
	"github.com/ringfence/router/client/clienttest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestOutcomes(t *testing.T) {
	tests := map[string]struct {
		handler client.Handler
		want    clienttest.Outcome
	}{
		"done": {
			handler: func(context.Context, *client.Event) error { return nil },
			want:    clienttest.Outcome{Kind: clienttest.Done},
		},
		"an error is a retry": {
			handler: func(context.Context, *client.Event) error { return errors.New("no database") },
			want:    clienttest.Outcome{Kind: clienttest.Retry, Reason: "no database"},
		},
		"a retry with its own delay": {
			handler: func(context.Context, *client.Event) error {
				return client.RetryAfter(errors.New("busy"), 90*time.Second)
			},
			want: clienttest.Outcome{Kind: clienttest.Retry, After: 90 * time.Second, Reason: "busy"},
		},
		"reject": {
			handler: func(context.Context, *client.Event) error { return client.Reject("not JSON") },
			want:    clienttest.Outcome{Kind: clienttest.Reject, Reason: "not JSON"},
		},
		"a panic is a retry": {
			handler: func(context.Context, *client.Event) error { panic("nil map") },
			want:    clienttest.Outcome{Kind: clienttest.Retry, Reason: "panic: nil map"},
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			r := clienttest.NewRouter(t)
			r.Start(test.handler)
			d := r.Deliver(&client.Event{Key: "k"})
			if got := d.Outcome(); got != test.want {
				t.Errorf("outcome = %v, want %v", got, test.want)
			}
			if got := d.Redeliver().Outcome(); got != test.want {
				t.Errorf("second outcome = %v, want %v", got, test.want)
			}
		})
	}
}
