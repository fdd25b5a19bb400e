package forward

import (
	"fmt"
	"slices"
	"time"

	"pgregory.net/rapid"

	"github.com/ringfence/router/internal/base/event"
	"github.com/ringfence/router/ring"
)

// This file contains the calls of the model.

// call makes an entry of a call.
func (m *model) call(t *rapid.T) *event.Entry {
	m.serials[2]++
	key, h := rapid.IntRange(0, 9).Draw(t, "key"), event.NewCallHandle(m.serials[2])
	ev := &event.Event{
		Handle: h, Key: event.Key(fmt.Sprint("key", key)), Partition: ring.Partition(key),
		Payload: make([]byte, rapid.OneOf(rapid.IntRange(0, 300), rapid.IntRange(0, 1500)).Draw(t, "payload")),
		Call:    &event.Call{Method: "m", Deadline: m.now.Add(time.Hour)},
	}
	if rapid.Bool().Draw(t, "id") {
		ev.Call.ID = "id"
	}
	if ev.Call.ID != "" && rapid.Bool().Draw(t, "reservation") {
		ev.Call.Method, ev.Call.Reservation = "", true
		if rapid.Bool().Draw(t, "ttl") {
			ev.Call.TTL = event.TTLLeast
			ev.Call.Resume = rapid.IntRange(0, 3).Draw(t, "comes back") == 0
		}
	}
	m.granted[h] = ev.Call.Resume
	e := event.NewEntry(event.Message{Event: ev, Key: string(ev.Key)})
	e.First, e.Fresh = h, event.AllBits(1)
	m.handles = append(m.handles, h)
	m.open[h] = true
	m.entries[h], m.heldAt[h] = e, m.now
	return e
}

func (m *model) isOnce(h event.Handle) bool { return m.entries[h].Call(0).Once() }

func (m *model) isReservation(h event.Handle) bool {
	return h.IsCall() && m.entries[h] != nil && m.entries[h].Call(0).Reservation
}

// goesOn reports whether the holder of a reservation may have the key beyond the death of its owner: it is never told that no owner can be reached.
func (m *model) goesOn(h event.Handle) bool {
	return m.isReservation(h) && m.granted[h] && m.entries[h].Call(0).TTL > 0
}

// mayHaveRun: of a reservation its holder knows whether it was granted.
func (m *model) mayHaveRun(h event.Handle) bool { return m.mayRun[h] && !m.isReservation(h) }

// begun checks that the holders of exactly these reservations are told that they have begun.
func (m *model) begun(t fataler, want []event.Verdict) {
	if len(m.out.Granted) != len(want) {
		t.Fatalf("granted %+v, want %+v", m.out.Granted, want)
	}
	for i, v := range m.out.Granted {
		if v.Handle != want[i].Handle || v.Detail != want[i].Detail {
			t.Fatalf("granted %+v, want %+v", m.out.Granted, want)
		}
	}
}

// renew asks for new permission: of the peer that has the reservation, if one has it.
func (m *model) renew(t fataler, h event.Handle) {
	r := event.Renewal{Handle: h, Number: uint64(m.now)}
	var want []Renew
	for peer, with := range m.with {
		if with[h] && h.IsCall() {
			want = []Renew{{peer, r}}
			m.counts["renewed"]++
		}
	}
	if m.table.Renew(r, &m.out); !slices.Equal(m.out.Renew, want) || m.out.Empty() == (len(want) > 0) {
		t.Fatalf("renewals %+v, want %+v", m.out.Renew, want)
	}
}

// forgetCall ends a call at this node alone.
func (m *model) forgetCall(t fataler, h event.Handle) {
	switch m.table.Forget(h); {
	case !h.IsCall() || !m.open[h]:
	case m.released[h] != 0:
		m.alone[h] = true
		m.counts["left alone"]++
	default:
		m.counts["forgotten"]++
		m.forget(h)
	}
}

// confirmed notes that a release was handled at a peer. It is over if the peer is the owner; otherwise the owner is told, too.
func (m *model) confirmed(peer Peer, h event.Handle) {
	if m.table.owners.of(m.partitionOf(h)) != m.table.find(peer) {
		m.counts["confirmed by a former owner"]++
		delete(m.with[peer], h)
	}
}

// confirm makes a peer answer that it has handled the release of its reservations. Others cannot, nor can it for
// reservations that it has not granted.
func (m *model) confirm(t fataler, from Peer) {
	var answers []event.Renewal
	var over []event.Handle
	for _, h := range m.handles {
		if !h.IsCall() {
			continue
		}
		answers = append(answers, event.Renewal{Handle: h, Number: confirmation}, event.Renewal{Handle: h, Number: 1})
		if m.open[h] && m.with[from][h] && m.released[h] != 0 && m.here[h] {
			if m.confirmed(from, h); m.with[from][h] {
				m.counts["confirmed"]++
				over = append(over, h)
			}
		}
	}
	asked := len(answers) / 2
	others := m.table.Confirmed(from, answers, &m.out)
	if len(others) != asked || slices.ContainsFunc(others, confirms) {
		t.Fatalf("of %d answers to holders, %+v are passed on", asked, others)
	}
	var settled []event.Handle
	for i, v := range m.out.Verdicts {
		settled = append(settled, v.Handle)
		if v.DetailOrZero().Reply.Code != event.CodeTimeout || len(m.out.Settled) <= i {
			t.Fatalf("a confirmed release is settled as %+v", v.Detail)
		}
	}
	if !slices.Equal(settled, over) || len(m.out.Cancel) > 0 {
		t.Fatalf("%s has confirmed the release of %v, settled are %v; cancelled %+v", from, over, settled, m.out.Cancel)
	}
}

// owners returns all that may have events: this node, and the peers.
func (m *model) owners() []Peer { return append([]Peer{Local}, m.peers[1:]...) }

func (m *model) confirmAll(t fataler) {
	for _, peer := range m.owners() {
		m.confirm(t, peer)
		m.perform(t)
	}
}

// checkReleases: the table keeps the releases of the reservations that are held, and no others.
func (m *model) checkReleases(t fataler) {
	n, alone, bytes := 0, 0, 0
	for h := range m.open {
		if m.released[h] == 0 {
			continue
		}
		n++
		if m.alone[h] {
			alone++
			bytes += m.entries[h.First()].Bytes
		}
	}
	if rs := &m.table.releases; len(rs.all) != n || rs.alone != alone || rs.aloneBytes != bytes || !slices.IsSortedFunc(rs.all, byDue) {
		t.Fatalf("%d releases are kept, %d alone with %d bytes, want %d, %d and %d: %+v", len(rs.all), rs.alone, rs.aloneBytes, n, alone, bytes, rs.all)
	}
}

// giveCall: no call goes to a peer that takes none, and one without an id goes to no further owner after one may have begun it.
func (m *model) giveCall(t fataler, peer Peer, h event.Handle, call *event.Call) {
	if call.Resume != m.granted[h] || call.Reservation != m.isReservation(h) {
		t.Fatalf("%d is given to %s as %+v, granted before: %t", h, peer, call, m.granted[h])
	}
	if call.Resume && len(m.ever[h]) > 0 {
		m.counts["resumed"]++
	}
	if m.noCalls[peer] {
		t.Fatalf("call %d is given to %s, whose release takes none", h, peer)
	}
	if m.mayRun[h] && m.isOnce(h) {
		t.Fatalf("call %d without an id is given to %s, and an earlier owner may have run it", h, peer)
	}
	if m.mayRun[h] {
		m.counts["sent again"]++
	}
	if m.refused[h] {
		m.counts["refused"]++
	}
	m.refused[h] = false
}

// checkCall: a call waits only for a stream, a route, or after its own refusal.
func (m *model) checkCall(t fataler, h event.Handle, place Place) {
	noOwner := len(m.route.owners) == 0
	if !noOwner {
		_, located := m.route.Locate(m.partitionOf(h))
		noOwner = !located
	}
	owner := m.table.owners.of(m.partitionOf(h))
	kept := m.goesOn(h) && !(m.up[owner.peer] && !m.noCalls[owner.peer]) // for an owner that takes it
	switch {
	case place == Full, place == Delayed && !m.refused[h], place == Refused && !m.refused[h] && !noOwner && !kept:
		t.Fatalf("call %d is %s, and was not refused", h, place)
	case m.isOnce(h) && m.mayRun[h] && place != Sent:
		t.Fatalf("call %d without an id is %s, and an earlier owner may have run it", h, place)
	}
	if kept && place == Refused && !m.refused[h] && !noOwner {
		m.counts["kept"]++
	}
	if place == Queued && (m.up[owner.peer] && m.noCalls[owner.peer] || owner.via != nil) {
		t.Fatalf("call %d waits for %s, which takes no calls, or cannot be reached", h, owner.peer)
	}
}

// answered checks the end of a call.
func (m *model) answered(t fataler, v *event.Verdict) {
	d := v.DetailOrZero()
	if v.Kind == event.Rejected && m.mayHaveRun(v.Handle) || v.Kind == event.Answered && d.Reply.Outcome == event.CallNotRun && m.mayHaveRun(v.Handle) {
		t.Fatalf("call %d has not run, says %+v, and an earlier owner may have run it", v.Handle, d)
	}
	if v.Kind != event.Answered {
		return
	}
	if due := m.released[v.Handle]; due != 0 && d.Reply.Outcome == event.CallUnknown && d.Reply.Code == event.CodeUnreachable {
		if m.now.Before(due) {
			t.Fatalf("the release of %d is forgotten %v early", v.Handle, due.Sub(m.now))
		}
		m.counts["unconfirmed"]++
		return
	}
	if d.Reply.Code == event.CodeUnreachable && m.goesOn(v.Handle) {
		t.Fatalf("reservation %d is over, since an owner cannot be reached: %+v", v.Handle, d)
	}
	switch what := d.Reply.Outcome; {
	case d.Reply.Code != "":
		m.counts[d.Reply.Code]++
	case d.Reason == "an earlier owner of the key may have run it":
		m.counts["no stream, unknown"]++
	case what == event.CallUnknown && d.Reason != "" && d.Reason != "its time was up":
		m.counts["corrected"]++
	default:
		m.counts[what.String()]++
	}
}

// giveUp gives a call up, or something that is none.
func (m *model) giveUp(t fataler, h event.Handle) {
	m.table.GiveUp(m.now, h, &m.out)
	if !h.IsCall() || !m.open[h] {
		if !m.out.Empty() || len(m.out.Cancel) > 0 {
			t.Fatalf("given up %d, which is no call that is held: %+v", h, m.out)
		}
		return
	}
	if m.goesOn(h) {
		m.release(t, h)
		return
	}
	var want []Cancel
	for peer, with := range m.with {
		if with[h] {
			want = []Cancel{{Peer: peer, Handle: h}}
			m.counts["cancelled"]++
		}
	}
	outcome := event.CallNotRun
	if (m.mayRun[h] || len(want) > 0) && !m.isReservation(h) {
		outcome = event.CallUnknown
	}
	m.counts["given up"]++
	if len(m.out.Cancel) != len(want) || len(want) > 0 && m.out.Cancel[0] != want[0] || len(m.out.Verdicts) != 1 || m.out.Verdicts[0].DetailOrZero().Reply.Outcome != outcome {
		t.Fatalf("given up call %d: cancels %+v, want %+v; settled %+v, want %v", h, m.out.Cancel, want, m.out.Verdicts, outcome)
	}
}

// release checks that a reservation that goes on is released: the owner is told that has granted it, and the release is
// kept until one has confirmed it.
func (m *model) release(t fataler, h event.Handle) {
	var want []Cancel
	if m.released[h] == 0 {
		m.released[h] = m.now.Add(m.entries[h].Call(0).TTL + releaseMargin)
		for peer, with := range m.with {
			if with[h] && m.here[h] {
				want = []Cancel{{peer, h, true}}
			}
		}
	}
	if !slices.Equal(m.out.Cancel, want) || len(m.out.Verdicts) > 0 {
		t.Fatalf("released %d: cancels %+v, want %+v; settled %+v", h, m.out.Cancel, want, m.out.Verdicts)
	}
}

// grantAndRelease lets the owner grant a reservation with a ttl, if one has it, and its holder release it, who may be gone then.
func (m *model) grantAndRelease(t fataler, h event.Handle, forget bool) {
	if !m.open[h] || !m.isReservation(h) || m.entries[h].Call(0).TTL == 0 {
		return
	}
	for _, peer := range append([]Peer{Local}, m.peers...) {
		if !m.with[peer][h] || m.released[h] != 0 {
			continue
		}
		v := event.Verdict{Handle: h, Kind: event.Granted, Detail: &event.Detail{Grant: &event.Grant{Remaining: time.Second}}}
		m.table.Settle(m.now, peer, []event.Verdict{v}, &m.out)
		m.begun(t, []event.Verdict{v})
		m.granted[h], m.here[h] = true, true
		m.perform(t)
	}
	if m.goesOn(h) {
		m.giveUp(t, h)
		m.perform(t)
	}
	if forget && m.released[h] != 0 {
		m.forgetCall(t, h)
		m.perform(t)
	}
}
