package stages_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ringfence/router/internal/base/stages"
)

// protocol holds the steps of stages, in order.
type protocol struct {
	mu    sync.Mutex
	lines []string
}

func (d *protocol) write(line string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.lines = append(d.lines, line)
}

func (d *protocol) want(t *testing.T, want ...string) {
	t.Helper()
	d.mu.Lock()
	defer d.mu.Unlock()
	if !slices.Equal(d.lines, want) {
		t.Errorf("events:\n  %s\nwant:\n  %s", strings.Join(d.lines, "\n  "), strings.Join(want, "\n  "))
	}
}

// stage is ready a moment after its start, and drains for that long.
func (d *protocol) stage(name string, drain time.Duration) stages.Stage {
	ready := make(chan struct{})
	return stages.Stage{Name: name, Ready: ready, Run: func(ctx context.Context) error {
		d.write(name + " starts")
		time.Sleep(time.Millisecond)
		close(ready)
		<-ctx.Done()
		d.write(name + " drains")
		time.Sleep(drain)
		d.write(name + " ends")
		return nil
	}}
}

func TestStartsBottomUpAndStopsTopDown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var d protocol
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Minute, cancel)
		began := time.Now()
		err := stages.All(ctx, 10*time.Second, d.stage("source", time.Second), d.stage("mailbox", 2*time.Second), d.stage("member", 3*time.Second))
		if err != nil {
			t.Errorf("error %v", err)
		}
		if took := time.Since(began); took != time.Minute+6*time.Second {
			t.Errorf("took %v, want one minute and the three drains", took)
		}
		d.want(t, "member starts", "mailbox starts", "source starts",
			"source drains", "source ends", "mailbox drains", "mailbox ends", "member drains", "member ends")
	})
}

func TestContextOfAStageOutlivesTheCallers(t *testing.T) {
	type nameOfTest struct{}
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(context.WithValue(t.Context(), nameOfTest{}, t.Name()))
		cancelled := false
		below := stages.Stage{Name: "below", Run: func(own context.Context) error {
			if own.Value(nameOfTest{}) != t.Name() {
				t.Error("the values of the context are gone")
			}
			<-ctx.Done()
			synctest.Wait() // whatever follows from the end of ctx has followed, and above still drains
			cancelled = own.Err() != nil
			<-own.Done()
			return nil
		}}
		above := stages.Stage{Name: "above", Run: func(own context.Context) error {
			<-own.Done()
			time.Sleep(time.Second)
			return nil
		}}
		time.AfterFunc(time.Second, cancel)
		if err := stages.All(ctx, time.Minute, above, below); err != nil {
			t.Errorf("error %v", err)
		}
		if cancelled {
			t.Error("the lower stage was stopped while the upper one was draining")
		}
	})
}

func TestUnaskedReturnStopsAll(t *testing.T) {
	broken := errors.New("broken")
	for name, test := range map[string]struct{ returns, want error }{
		"with an error": {broken, broken},
		"without one":   {nil, stages.ErrReturned},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var d protocol
				quitter := stages.Stage{Name: "mailbox", Run: func(context.Context) error {
					time.Sleep(time.Hour)
					d.write("mailbox returns")
					return test.returns
				}}
				err := stages.All(t.Context(), 10*time.Second, d.stage("source", time.Second), quitter, d.stage("member", time.Second))
				if !errors.Is(err, test.want) || !strings.Contains(err.Error(), "run: stage mailbox: ") {
					t.Errorf("error %v, want %v of mailbox", err, test.want)
				}
				d.want(t, "member starts", "source starts", "mailbox returns", "source drains", "source ends", "member drains", "member ends")
			})
		})
	}
}

func TestStageAboveIsNotStartedWhenTheOneBelowFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var d protocol
		refused := errors.New("address in use")
		below := stages.Stage{Name: "app", Ready: make(chan struct{}), Run: func(context.Context) error { return refused }}
		err := stages.All(t.Context(), time.Second, d.stage("source", 0), below)
		if !errors.Is(err, refused) {
			t.Errorf("error %v", err)
		}
		d.want(t)
	})
}

func TestEndWhileAStageIsNotReady(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var d protocol
		never := stages.Stage{Name: "app", Ready: make(chan struct{}), Run: func(ctx context.Context) error {
			<-ctx.Done()
			d.write("app ends")
			return nil
		}}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := stages.All(ctx, time.Second, d.stage("source", 0), never); err != nil {
			t.Errorf("error %v", err)
		}
		d.want(t, "app ends")
	})
}

func TestNothingStartsWhenTheContextHasEnded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var d protocol
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if err := stages.All(ctx, time.Second, d.stage("source", 0)); err != nil {
			t.Errorf("error %v", err)
		}
		d.want(t)
	})
}

// A stuck drain is abandoned, but the stages below are still drained.
func TestDrainTimeoutNamesTheStage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var d protocol
		release := make(chan struct{})
		defer close(release) // the bubble must end
		stuck := stages.Stage{Name: "mailbox", Run: func(context.Context) error {
			<-release
			return nil
		}}
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Minute, cancel)
		began := time.Now()
		err := stages.All(ctx, 10*time.Second, d.stage("source", 4*time.Second), stuck, d.stage("member", time.Second/2))
		if !errors.Is(err, stages.ErrDrainTimeout) || err.Error() != "run: stage mailbox: drain timeout after 10s" {
			t.Errorf("error %v", err)
		}
		if took, want := time.Since(began), time.Minute+10*time.Second+time.Second; took < want-time.Millisecond || took > want {
			t.Errorf("took %v, want %v", took, want)
		}
		d.want(t, "member starts", "source starts", "source drains", "source ends", "member drains", "member ends")
	})
}

// The wait for stages that were cut is bounded however many of them are stuck.
func TestTwoStuckStages(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		defer close(release) // the bubble must end
		stuck := func(name string) stages.Stage {
			return stages.Stage{Name: name, Run: func(context.Context) error {
				<-release
				return nil
			}}
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		began := time.Now()
		if err := stages.All(ctx, 10*time.Second, stuck("source"), stuck("member")); !errors.Is(err, stages.ErrDrainTimeout) {
			t.Errorf("error %v", err)
		}
		if took := time.Since(began); took != time.Minute+11*time.Second {
			t.Errorf("took %v, want the drain timeout and a second", took)
		}
	})
}

// A stage that has returned is never the one that timed out, even if the time for the drain is over.
func TestReturnedStageHasNotTimedOut(t *testing.T) {
	for range 50 { // a select chooses at random
		synctest.Test(t, func(t *testing.T) {
			broken := errors.New("broken")
			err := stages.All(t.Context(), 0, stages.Stage{Name: "source", Run: func(context.Context) error { return broken }})
			if !errors.Is(err, broken) || errors.Is(err, stages.ErrDrainTimeout) {
				t.Fatalf("error %v", err)
			}
		})
	}
}

func TestEveryErrorOfADrainIsReported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		one, two := errors.New("one"), errors.New("two")
		failing := func(name string, err error) stages.Stage {
			return stages.Stage{Name: name, Run: func(ctx context.Context) error {
				<-ctx.Done()
				return err
			}}
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		err := stages.All(ctx, time.Second, failing("source", one), failing("member", two))
		if want := "run: stage source: one\nrun: stage member: two"; err == nil || err.Error() != want {
			t.Errorf("error %q, want %q", err, want)
		}
	})
}
