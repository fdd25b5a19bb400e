package sim

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/ringfence/router/internal/base/identity"
	"github.com/ringfence/router/internal/ownership"
)

// This file contains routers with settings other than their group's, fencing tokens that would fall,
// and the operator, who acts on the exit messages of routers.

// kindsOfSettings is the number of sets of settings. Each but the first differs from the first in
// one setting.
const kindsOfSettings = 4

// identityOf returns the identity that a router with these settings has.
func identityOf(settings int) identity.Identity {
	all := []identity.Setting{{Name: "key.from", Value: "message_key"}, {Name: "pulsar.subscription", Value: "s"}, {Name: "pulsar.topics.retry", Value: "r"}}
	if settings > 0 {
		all[settings-1].Value += " of others" //nolint:gosec // settings < kindsOfSettings, one more than all has
	}
	return identity.Of(all...)
}

// groupSettings returns the settings of the group that there is, or else of the newest one.
func (w *world) groupSettings() int {
	for _, m := range w.live {
		if m.takesPart() {
			w.settled = m.settings
			break
		}
	}
	return w.settled
}

// takesPart reports whether m is a FRESH member in the present log.
func (m *member) takesPart() bool {
	return m.ended == nil && m.machine != nil && m.feed.topic == m.w.log.topic && m.clock().Before(m.freshUntil) && m.isMember()
}

// checkGroup: members of one group have the same settings, and none that has an older generation
// of tokens set. m has just renewed its lease.
func (w *world) checkGroup(m *member, l ownership.Lease) {
	m.freshUntil = l.Until
	if !m.takesPart() {
		return
	}
	s := m.machine.State()
	w.hadGroup, w.hadGen, w.settled = true, max(w.hadGen, s.Gen), m.settings
	if m.cfg.Gen != 0 && m.cfg.Gen < s.Gen {
		w.fail("%s takes part with the generation %d set, and the tokens are of generation %d", m, m.cfg.Gen, s.Gen)
	}
	for _, o := range w.live {
		if o.settings != m.settings && o.takesPart() && o.machine.State().Genesis == s.Genesis {
			w.fail("%s and %s are members of one group, and their settings differ", m, o)
		}
	}
}

// checkSettingsExit: no member of a running group exits because of settings. The operator
// handles routers that do exit.
func (w *world) checkSettingsExit(m *member, reason string) {
	w.tracef("%s: exit for settings, %s", m, reason)
	w.count("exit_settings")
	if m.clock().Before(m.freshUntil) && m.isMember() && !w.beganInSilence() {
		w.fail("%s is a member of a running group, and exits: %s", m, reason)
	}
	if strings.Contains(reason, "ownership.generation") {
		w.refusedForTokens(m)
		return
	}
	w.count("settings_refused")
	p := m.pod
	w.after(w.between(time.Second, 6*time.Second), func() {
		switch {
		case w.chance(0.3): // started again as it was
		case p.extra:
			w.retire(p)
			return
		default:
			p.settings = w.groupSettings()
		}
		p.up()
	})
}

// beganInSilence reports whether the newest Genesis is one that the protocol allows: between
// the six Hellos before it there is no other router's Beat, Snap or Genesis in the log. Members
// that were paused or cut off all that time find another group in their place.
func (w *world) beganInSilence() bool {
	l := w.log
	i := len(l.records) - 1
	for ; i >= 0; i-- {
		if _, ok := l.records[i].record.Body.(*ownership.Genesis); ok {
			break
		}
	}
	if i < 0 {
		return false
	}
	author := l.records[i].record.Inc
	g := l.records[i].record.Body.(*ownership.Genesis)
	for hellos := 0; i >= 0; i-- {
		x := &l.records[i]
		if g.After.Before(x.at) {
			continue
		}
		switch x.record.Body.(type) {
		case *ownership.Hello:
			if x.record.Inc == author {
				hellos++
			}
		default:
			return false
		}
		if hellos == 6 {
			w.count("replaced_in_silence")
			return true
		}
	}
	return false
}

// refusedForTokens lets the operator follow the request in a router's exit message: restart it,
// and if no group results, stop all routers, raise the generation, and start them.
func (w *world) refusedForTokens(m *member) {
	w.count("generation_refused")
	w.spurious = true
	p := m.pod
	w.after(w.between(time.Second, 3*time.Second), p.up)
	if w.raising {
		return
	}
	w.raising = true
	w.promised++
	w.after(w.between(4*time.Second, 10*time.Second), func() {
		w.raising = false
		w.promised--
		if slices.ContainsFunc(w.live, (*member).takesPart) {
			return
		}
		w.count("generation_raised")
		gen := w.hadGen
		for _, p := range w.pods {
			gen = max(gen, p.gen)
		}
		w.setGeneration(gen + 1)
	})
}

// setGeneration stops all routers, and starts them with a generation of fencing tokens.
func (w *world) setGeneration(gen uint32) {
	w.spurious = true
	w.tracef("OPERATOR ownership.generation: %d", gen)
	for _, p := range w.pods {
		p.gen = gen
	}
	w.killRouters(2 * time.Second)
}

// killRouters kills all routers and starts each again within a time.
func (w *world) killRouters(within time.Duration) {
	for _, m := range slices.Clone(w.live) {
		m.kill(true)
		w.after(w.between(0, within), m.pod.up)
	}
}

// joinDiffering starts a router whose settings are not the group's: a new pod, or one that was
// there, as in a rolling change.
func (w *world) joinDiffering(p *pod) {
	other := (w.groupSettings() + 1 + w.rng.IntN(kindsOfSettings-1)) % kindsOfSettings
	if w.chance(0.5) {
		p = w.newPod(fmt.Sprintf("x%d", len(w.pods)))
		p.extra, p.gen, p.settings = true, w.pods[0].gen, other
		p.up()
		return
	}
	p.settings = other
	if m := p.member; m != nil && !m.process.dead {
		m.kill(true)
		w.restart(p, time.Second)
	}
}

// startCold kills all routers and starts them at once, one or some with other settings. The author
// of the first Genesis has the group, and routers with other settings exit.
func (w *world) startCold() {
	w.spurious = true
	other := (w.groupSettings() + 1 + w.rng.IntN(kindsOfSettings-1)) % kindsOfSettings
	most := 1 + w.rng.IntN(2)
	for _, p := range w.pods {
		if !p.gone && most > 0 && w.chance(0.5) {
			p.settings = other
			most--
		}
	}
	w.killRouters(50 * time.Millisecond)
}

// foreignGenesis lets a Genesis of other settings land that lost the race of a cold start, and
// was on its way since.
func (w *world) foreignGenesis(m *member) {
	if !m.takesPart() {
		return
	}
	s := m.machine.State()
	after := ownership.Position{Ledger: s.Genesis.Ledger, Entry: s.Genesis.Entry - 1}
	if s.Genesis.Entry == 0 {
		after = ownership.Position{Ledger: s.Genesis.Ledger - 1, Entry: 5}
	}
	w.count("foreign_genesis")
	w.landGenesis(ownership.Incarnation{0xf, byte(w.rng.Uint32() | 1)}, fmt.Sprintf("x%d", len(w.pods)), m.cfg, identityOf((m.settings+1)%kindsOfSettings), after, s.Gen)
}

// landGenesis lets the Genesis of a process land.
func (w *world) landGenesis(inc ownership.Incarnation, name string, cfg ownership.Config, settings identity.Identity, after ownership.Position, gen uint32) {
	reserved, _ := w.log.reserved(ownership.Position{Ledger: after.Ledger, Entry: after.Entry + 1}, w.p.partitions)
	w.log.land(ownership.Record{LogVersion: ownership.LogVersionMax, Group: "g", Inc: inc, Body: &ownership.Genesis{
		Reserved: reserved, Gen: gen, HashID: "h", Partitions: uint32(w.p.partitions), Table: make([]uint16, w.p.partitions), Identity: settings, After: after, Base: after,
		Members: []ownership.Node{{Name: name, Inc: inc, Lease: cfg.Timing.Lease, GRPCAddr: cfg.GRPCAddr, LogVersion: ownership.LogVersionMax}},
	}}, w.now)
}

// repair lets the operator give all routers the settings of their group.
func (w *world) repair() {
	settings := w.groupSettings()
	for _, p := range w.pods {
		switch {
		case p.gone || p.settings == settings:
		case p.extra:
			w.retire(p)
		default:
			p.settings = settings
		}
	}
}
