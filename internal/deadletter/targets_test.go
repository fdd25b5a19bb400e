package deadletter

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// An admin API that does not answer costs an act a few seconds, however many topics it sends to: a router gives an act 45 s, and reads letters for 10 s of them.
func TestSubscriptionsThatNobodyTells(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const topics = 5
		asked := 0
		b := &Broker{cfg: Config{Subscriptions: func(ctx context.Context, _ string) (map[string][]string, error) {
			asked++
			limited, done := context.WithTimeout(ctx, 30*time.Second) // as pulsaradmin has it
			defer done()
			<-limited.Done()
			return nil, limited.Err()
		}}}
		all, began := newTargets(b), time.Now()
		for n := range topics {
			if fault := all.fault(t.Context(), strings.Repeat("t", 1+n)); fault != "" {
				t.Errorf("a fault: %s", fault)
			}
		}
		if took := time.Since(began); took > subscriptionsMax || asked != 1 {
			t.Errorf("%d questions took %v", asked, took)
		}
		if len(all.unsure) != 1 || !strings.Contains(all.unsure[0], "does not answer") || all.missing() != nil {
			t.Errorf("unsure about %q, missing %q", all.unsure, all.missing())
		}
	})
}
