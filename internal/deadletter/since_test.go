package deadletter

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ringfence/router/internal/base/event"
	"github.com/ringfence/router/internal/broker/entries"
)

// timedClient is a client of one topic partition, whose messages have the times that their producers claim.
type timedClient struct {
	Client
	times []time.Time
	shown int
}

// read implements Client.
func (c *timedClient) read(_ context.Context, _ string, from entries.Start, _ int) (reader, error) {
	r := &timedReader{client: c, at: len(c.times)}
	switch {
	case !from.Since.IsZero():
		r.seek(from.Since)
	case from.ID == entries.Earliest:
		r.at = 0
	case from.ID != entries.Latest:
		r.at = int(from.ID.Entry)
	}
	return r, nil
}

type timedReader struct {
	reader
	client *timedClient
	at     int
}

func (*timedReader) close() {}

// end implements reader.
func (r *timedReader) end(context.Context) (Place, error) {
	return Place{1, int64(len(r.client.times) - 1)}, nil
}

// next implements reader.
func (r *timedReader) next(ctx context.Context) (*message, error) {
	if r.at >= len(r.client.times) {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	m := &message{ID: event.MessageID{Ledger: 1, Entry: int64(r.at), Batch: -1}, Published: r.client.times[r.at]}
	r.at++
	r.client.shown++
	return m, nil
}

// seek seeks as brokers do: the first and the last message decide, else a binary search for the newest one before the time.
func (r *timedReader) seek(t time.Time) {
	times := r.client.times
	before := func(i int) bool { return times[i].Before(t) }
	switch last := len(times) - 1; {
	case !before(0):
		r.at = 0
	case before(last):
		r.at = last + 1
	default:
		low, high := 0, last
		for low+1 < high {
			if mid := (low + high) / 2; before(mid) {
				low = mid
			} else {
				high = mid
			}
		}
		r.at = high
	}
}

// TestALastMessageThatClaimsToBeOldHidesNothing: of a topic partition whose last message has an old time, a read from a time on shows what was published since;
// one without such messages is not read.
func TestALastMessageThatClaimsToBeOldHidesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		now := time.Now()
		since := now.Add(-time.Hour)
		cfg := DefaultConfig()
		for name, c := range map[string]struct {
			recent, claim int // how many of the newest messages were published since then, and how many behind them claim to be old
		}{
			"as it should be":       {500, 0},
			"the last one":          {500, 1},
			"as many as are looked": {500, tailMax - 1},
			"nothing since":         {0, 1000},
		} {
			client := &timedClient{}
			for i := range 3000 {
				client.times = append(client.times, now.Add(-24*time.Hour).Add(time.Duration(i)*time.Second))
			}
			var want []int64
			for range c.recent {
				want = append(want, int64(len(client.times)))
				client.times = append(client.times, now.Add(-time.Minute))
			}
			for range c.claim {
				client.times = append(client.times, now.Add(-48*time.Hour))
			}
			var got []int64
			_, unsure, err := New(cfg, client).readSince(t.Context(), "t", since, func(m *message) error {
				if m.Published.After(since) {
					got = append(got, m.ID.Entry)
				}
				return nil
			})
			if err != nil || !slices.Equal(got, want) {
				t.Errorf("%s: it reads %d of %d events published since then: %v", name, len(got), len(want), err)
			}
			if (unsure != "") != (c.recent == 0) {
				t.Errorf("%s: it says %q", name, unsure)
			}
			if most := len(client.times) + 2*tailMax; client.shown > 2*most || c.recent == 0 && client.shown > 2*tailMax+1 {
				t.Errorf("%s: it reads %d of %d messages", name, client.shown, len(client.times))
			}
		}
	})
}

// TestClocksThatDifferAreNamed: a read from a time on that may have missed events, since clocks of producers differ by more than the seek allows for, says so.
func TestClocksThatDifferAreNamed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		now := time.Now()
		for _, late := range []time.Duration{0, 9 * time.Minute, 2 * time.Hour} {
			missed := 0
			for run := range 10 {
				since, want, got := now.Add(-6*time.Hour+time.Duration(run)*time.Minute), 0, 0
				client := &timedClient{}
				for i := range 24 * 60 { // nine of ten have a late clock
					at := now.Add(time.Duration(i-24*60) * time.Minute)
					if i%10 > 0 {
						at = at.Add(-late)
					}
					if !at.Before(since) {
						want++
					}
					client.times = append(client.times, at)
				}
				_, unsure, err := New(DefaultConfig(), client).readSince(t.Context(), "t", since, func(m *message) error {
					if !m.Published.Before(since) {
						got++
					}
					return nil
				})
				if err != nil || got < want && unsure == "" || late < time.Hour && unsure != "" {
					t.Errorf("%v late: it reads %d of %d events and says %q, %v", late, got, want, unsure, err)
				}
				if got < want {
					missed++
				}
			}
			if (missed > 0) != (late > time.Hour) {
				t.Errorf("%v late: %d of 10 reads miss events", late, missed)
			}
		}
	})
}
