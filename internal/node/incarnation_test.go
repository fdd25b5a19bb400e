package node

import (
	"encoding/base64"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/ringfence/router/internal/base/clock"
	"github.com/ringfence/router/internal/controllog"
	"github.com/ringfence/router/internal/membership"
	"github.com/ringfence/router/internal/ownership"
)

// hearing is a machine that notes what it hears of the application, and ends when there is one.
type hearing struct{ heard []bool }

func (h *hearing) Step(_ clock.Instant, in ownership.Input) []ownership.Effect {
	app, ok := in.(ownership.AppReady)
	if !ok {
		return nil
	}
	h.heard = append(h.heard, app.Ready)
	if app.Ready {
		return []ownership.Effect{ownership.Left{}}
	}
	return nil
}

func (*hearing) Next() clock.Instant { return clock.Forever }

func (*hearing) Status(clock.Instant) ownership.Status { return ownership.Status{} }

// A machine hears the number of workers as it is when the driver takes it: one that was read before, and is delivered
// after a newer one, would be the last that it hears.
func TestAMachineHearsTheNewestOfTheApplication(t *testing.T) {
	_, before := standing(t)
	n := before.node
	changes := []int{1, 0, 2}
	for _, name := range []string{"the number changes while the incarnation begins", "it changed before"} {
		m := &hearing{}
		l := &incarnation{node: n}
		l.drive(m, nil)
		n.incarnation.Store(l)
		n.replayInputs(l)
		for _, workers := range changes {
			n.workersChanged(workers)
		}
		changes = nil
		if l.driver.run(t.Context()); !slices.Equal(m.heard, []bool{true}) {
			t.Errorf("%s: heard %v, want true, once", name, m.heard)
		}
	}
}

// TestANewIncarnationSuspectsNobody: a suspicion of an earlier incarnation's gossip says nothing about now. The gossip of the next one finds the
// suspect alive before the log has named anybody, so nothing would ever end the suspicion, and the suspect could not join.
func TestANewIncarnationSuspectsNobody(t *testing.T) {
	t.Parallel()
	g := newGroup(t)
	b := g.start("b", nil) // without an application: no member
	g.fails(b.Probes().Startup, "")
	a := g.startWith("a", func(c *Config) { c.Membership.Seeds = []string{b.incarnation.Load().gossip.Addr()} }, func(p *Parts) {
		p.ControlLog = func() (controllog.Transport, error) {
			time.Sleep(500 * time.Millisecond) // a real one is read later than gossip, too
			return g.log, nil
		}
	})
	c := g.start("c", nil)
	g.serve(a, done)
	g.serve(c, done)
	g.ready(a, c)
	suspect := b.self.Load().inc
	g.eventually("a's gossip knows b", func() error {
		l := a.incarnation.Load()
		if _, named := l.entryOf(suspect); !named || !slices.ContainsFunc(l.gossip.Members(), func(m membership.Member) bool { return m.Inc == suspect }) {
			return errors.New("not yet")
		}
		return nil
	})
	a.reach.gossip(membership.Evidence{Kind: membership.Suspect, Member: membership.Member{Name: "b", Inc: suspect}}) // as when b was paused
	g.drainAndUndrain(a)
	g.ready(a)
	if got := a.reach.word(suspect); got != "unknown" {
		t.Errorf("b is %s to a", got)
	}
	g.serve(b, done)
	g.ready(b)
}

// TestComesBackWithABrokenKeyFile: a file of gossip keys that breaks while the node runs does not end the process when the node comes back; it
// goes on with the keys that it has.
func TestComesBackWithABrokenKeyFile(t *testing.T) {
	t.Parallel()
	g := newGroup(t)
	path := filepath.Join(t.TempDir(), "keys")
	if err := os.WriteFile(path, []byte(base64.StdEncoding.EncodeToString(make([]byte, 32))), 0o600); err != nil {
		t.Fatal(err)
	}
	a := g.startWith("a", func(c *Config) { c.Membership.EncryptionKeysFile = path }, nil)
	g.serve(a, done)
	g.ready(a)
	if err := os.WriteFile(path, []byte("half a ke"), 0o600); err != nil {
		t.Fatal(err)
	}
	g.drainAndUndrain(a)
	g.ready(a)
}
