package pulsarsend

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

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
