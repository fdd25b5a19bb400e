package eventually_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ringfence/router/internal/testing/eventually"
)

func TestAsk(t *testing.T) {
	no := errors.New("not yet")
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	for name, c := range map[string]struct {
		ctx  context.Context
		ask  func(n int) error
		want error
		asks int // at least
		took time.Duration
	}{
		"at once": {t.Context(), func(int) error { return nil }, nil, 1, 0},
		"the third": {t.Context(), func(n int) error {
			if n < 3 {
				return no
			}
			return nil
		}, nil, 3, 3 * time.Millisecond},
		"never":            {t.Context(), func(int) error { return no }, no, 50, 10 * time.Second},
		"in vain":          {t.Context(), func(int) error { return eventually.ErrInVain }, eventually.ErrInVain, 1, 0},
		"an ended context": {ended, func(int) error { return no }, no, 1, 0},
	} {
		synctest.Test(t, func(t *testing.T) {
			asks, from := 0, time.Now()
			err := eventually.Ask(c.ctx, 10*time.Second, "the moon is blue", func() error { asks++; return c.ask(asks) })
			if !errors.Is(err, c.want) || asks < c.asks || time.Since(from) != c.took {
				t.Errorf("%s: %v after %d questions and %v, want %v after %d and %v", name, err, asks, time.Since(from), c.want, c.asks, c.took)
			}
			if errors.Is(err, no) && !strings.Contains(err.Error(), "the moon is blue") {
				t.Errorf("%s: %v does not name the condition", name, err)
			}
		})
	}
}
