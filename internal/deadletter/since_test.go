package deadletter

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
)

// timedClient is a client of one topic partition, whose messages have the times that their producers claim.
type timedClient struct {
	pulsar.Client
	times []time.Time
	read  int
}

type timedMessage struct {
	fakeMessage
	at time.Time
}

func (m timedMessage) PublishTime() time.Time { return m.at }

func (c *timedClient) id(i int) fakeID {
	return fakeOf(1, int64(i), 0, 1).id
}

// CreateReader implements pulsar.Client.
func (c *timedClient) CreateReader(o pulsar.ReaderOptions) (pulsar.Reader, error) {
	next := len(c.times)
	switch {
	case o.StartMessageID == pulsar.EarliestMessageID():
		next = 0
	case o.StartMessageIDInclusive:
		next = int(o.StartMessageID.EntryID())
	}
	return &timedReader{client: c, next: next}, nil
}

type timedReader struct {
	pulsar.Reader
	client *timedClient
	next   int
}

func (*timedReader) Close() {}

// GetLastMessageID implements pulsar.Reader.
func (r *timedReader) GetLastMessageID() (pulsar.MessageID, error) {
	return r.client.id(len(r.client.times) - 1), nil
}

// Next implements pulsar.Reader.
func (r *timedReader) Next(ctx context.Context) (pulsar.Message, error) {
	if r.next >= len(r.client.times) {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	m := timedMessage{fakeMessage{id: r.client.id(r.next)}, r.client.times[r.next]}
	r.next++
	r.client.read++
	return m, nil
}

// SeekByTime seeks as brokers do: the first and the last message decide, else a binary search for the newest one before the time.
func (r *timedReader) SeekByTime(t time.Time) error {
	times := r.client.times
	before := func(i int) bool { return times[i].Before(t) }
	switch last := len(times) - 1; {
	case !before(0):
		r.next = 0
	case before(last):
		r.next = last + 1
	default:
		low, high := 0, last
		for low+1 < high {
			if mid := (low + high) / 2; before(mid) {
				low = mid
			} else {
				high = mid
			}
		}
		r.next = high
	}
	return nil
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
			_, unsure, err := New(cfg, client).readSince(t.Context(), "t", since, func(m pulsar.Message) error {
				if m.PublishTime().After(since) {
					got = append(got, m.ID().EntryID())
				}
				return nil
			})
			if err != nil || !slices.Equal(got, want) {
				t.Errorf("%s: it reads %d of %d events published since then: %v", name, len(got), len(want), err)
			}
			if (unsure != "") != (c.recent == 0) {
				t.Errorf("%s: it says %q", name, unsure)
			}
			if most := len(client.times) + 2*tailMax; client.read > 2*most || c.recent == 0 && client.read > 2*tailMax+1 {
				t.Errorf("%s: it reads %d of %d messages", name, client.read, len(client.times))
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
				_, unsure, err := New(DefaultConfig(), client).readSince(t.Context(), "t", since, func(m pulsar.Message) error {
					if !m.PublishTime().Before(since) {
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
