package pulsarsend

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
)

func TestGaveUp(t *testing.T) {
	for name, c := range map[string]struct {
		err  error
		want bool
	}{
		"sent":         {nil, false},
		"no topic":     {errors.Join(pulsar.ErrTopicNotfound, errors.New("TopicNotFound")), true},
		"terminated":   {errors.Join(pulsar.ErrTopicTerminated, errors.New("TopicTerminatedError")), true},
		"fenced":       {errors.Join(pulsar.ErrProducerFenced, errors.New("ProducerFenced")), true},
		"closed":       {pulsar.ErrProducerClosed, true},
		"over quota":   {errors.Join(pulsar.ErrProducerBlockedQuotaExceeded, errors.New("quota")), false},
		"queue full":   {pulsar.ErrSendQueueIsFull, false},
		"out of time":  {ErrTimeout, false},
		"out of words": {errors.New("TopicNotFound"), false},
	} {
		t.Run(name, func(t *testing.T) {
			if got := GaveUp(c.err); got != c.want {
				t.Errorf("GaveUp(%v) = %v, want %v", c.err, got, c.want)
			}
		})
	}
}

func TestWithin(t *testing.T) {
	broken := errors.New("broken")
	for name, c := range map[string]struct {
		after time.Duration // of the answer; 0: none
		err   error
		want  error
	}{
		"in time":            {time.Second, nil, nil},
		"in time, an error":  {time.Second, broken, broken},
		"too late":           {3 * time.Second, nil, ErrTimeout},
		"too late, an error": {3 * time.Second, broken, ErrTimeout},
		"never":              {0, nil, ErrTimeout},
		"just in time":       {2*time.Second - 1, nil, nil},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var got []error
				answer := Within(2*time.Second, func(err error) { got = append(got, err) })
				if c.after > 0 {
					time.AfterFunc(c.after, func() { answer(c.err) })
				}
				time.Sleep(time.Minute)
				synctest.Wait()
				if len(got) != 1 || !errors.Is(got[0], c.want) || c.want == nil && got[0] != nil {
					t.Errorf("done was called with %v, want once with %v", got, c.want)
				}
			})
		})
	}
}
