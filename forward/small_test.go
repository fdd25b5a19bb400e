package forward

import (
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	"github.com/ringfence/router/internal/base/event"
	peerv1 "github.com/ringfence/router/proto/ringfence/peer/v1"
	"github.com/ringfence/router/ring"
)

// smallConfig is that of the smallest frames.
func smallConfig() Config {
	config := DefaultConfig()
	config.FrameMax = 64 << 10
	config.FrameBytesMax, config.FrameEventsMax = config.FrameMax, frameItemsMax
	return config
}

// Verdicts of any kind and size leave in frames that are not too large to be sent, each once.
func TestFramesOfVerdictsAreBounded(t *testing.T) {
	most := 0
	rapid.Check(t, func(t *rapid.T) {
		config := smallConfig()
		in := &inbound{sets: rapid.Bool().Draw(t, "reads sets"), server: &Server{config: config}, link: &link{wakeup: make(chan struct{}, 1)}}
		n := 0
		for burst := range rapid.Uint64Range(1, 6).Draw(t, "bursts") {
			size := rapid.SampledFrom([]int{0, 1, 100, 4 << 10, 30 << 10, 70 << 10}).Draw(t, "bytes")
			kind := rapid.SampledFrom([]event.VerdictKind{event.Done, event.NotOwner, event.Failed, event.Answered}).Draw(t, "kind")
			text, apart := strings.Repeat("x", size), rapid.SampledFrom([]int{1, 7, 64, 1000, 1 << 13}).Draw(t, "apart")
			count := rapid.SampledFrom([]int{1, 50, 5000}).Draw(t, "verdicts")
			if size > 100 {
				count = min(count, 50)
			}
			if kind == event.Answered && rapid.Bool().Draw(t, "fills the frame") { // nearly
				size, count = config.FrameMax-verdictsHeadMax-longMax-rapid.IntRange(-1, 40).Draw(t, "bytes left"), 1
				text = strings.Repeat("x", size)
			}
			var verdicts []event.Verdict
			n += count
			for i := range count {
				serial := 1<<40 + burst<<20 + uint64(i*apart/event.EntryEventsMax)
				v := event.Verdict{Handle: event.NewRelayedHandle(serial, i*apart%event.EntryEventsMax), Kind: kind}
				switch kind {
				case event.Failed:
					v.Detail = &event.Detail{Delay: time.Hour, Attempts: 1 << 31, Crashes: 1 << 31, Reason: text, FirstError: text, Owner: text}
				case event.Answered:
					v.Detail = &event.Detail{Reply: &event.Reply{Outcome: event.CallReplied, Payload: []byte(text)}}
				}
				verdicts = append(verdicts, v)
			}
			in.answer(verdicts)
		}
		got := 0
		for batch := in.take(); batch.n > 0; batch = in.take() {
			f := &verdictsFrame{receipt: 1 << 62, number: 1 << 62, epoch: event.Position{Ledger: 1 << 62, Entry: 1 << 62}, batch: batch}
			out := f.marshal()
			b := out.Materialize()
			out.Free()
			if most = max(most, len(b)); len(b) > config.FrameMax {
				t.Fatalf("a frame of %d verdicts has %d bytes", batch.n, len(b))
			}
			var read verdictsFrame
			if err := read.parse(b); err != nil {
				t.Fatal(err)
			}
			got += len(read.verdicts) + len(handlesIn(read.done))
		}
		if got != n {
			t.Fatalf("%d verdicts leave, want %d", got, n)
		}
	})
	if least := smallConfig().FrameMax * 9 / 10; most < least {
		t.Errorf("the longest frame has %d bytes; this run proves little", most)
	}
}

// A reply without room in a frame becomes a failure, so that its caller hears that the handler ran. One that just has room is sent.
func TestRepliesWithoutRoom(t *testing.T) {
	config := smallConfig()
	largest := config.FrameMax - verdictsHeadMax - longMax
	for size, want := range map[int]event.Reply{
		largest:               {Outcome: event.CallReplied},
		largest + 1:           {Outcome: event.CallFailed, Code: event.CodeTooLarge},
		event.CallPayloadMax:  {Outcome: event.CallFailed, Code: event.CodeTooLarge},
		config.FrameMax:       {Outcome: event.CallFailed, Code: event.CodeTooLarge},
		config.FrameMax / 2:   {Outcome: event.CallReplied},
		largest - largest/100: {Outcome: event.CallReplied},
	} {
		in := &inbound{server: &Server{config: config}, link: &link{wakeup: make(chan struct{}, 1)}}
		reply := &event.Reply{Outcome: event.CallReplied, Payload: make([]byte, size)}
		in.answer([]event.Verdict{{Handle: 1, Kind: event.Done}, {Handle: 2, Kind: event.Answered, Detail: &event.Detail{Reply: reply}}, {Handle: 3, Kind: event.Done}})
		var read []event.Verdict
		for batch := in.take(); batch.n > 0; batch = in.take() {
			f := readBatch(t, batch)
			read = append(read, slices.Clone(f.verdicts)...)
		}
		if len(read) != 3 || read[0].Handle != 1 || read[1].Handle != 2 || read[2].Handle != 3 {
			t.Fatalf("%d bytes: read %+v", size, read)
		}
		got := read[1].DetailOrZero()
		if got.Reply.Outcome != want.Outcome || got.Reply.Code != want.Code || (got.Reason != "") != (want.Code != "") || want.Code == "" && len(got.Reply.Payload) != size {
			t.Errorf("%d bytes: %v %q, %q, %d bytes", size, got.Reply.Outcome, got.Reply.Code, got.Reason, len(got.Reply.Payload))
		}
		if reply.Outcome != event.CallReplied || len(reply.Payload) != size {
			t.Error("the reply was written to, which is remembered for repeats")
		}
	}
}

// frames records the frames of a stream.
type frames []proto.Message

func (f *frames) SendMsg(m any) error {
	*f = append(*f, m.(proto.Message))
	return nil
}

// calling and called are the ends of a stream that is recorded.
type calling struct {
	peerStream
	*frames
}

func (s calling) SendMsg(m any) error { return s.frames.SendMsg(m) }

type called struct {
	grpc.BidiStreamingServer[peerv1.ForwardRequest, peerv1.ForwardResponse]
	*frames
}

func (s called) SendMsg(m any) error { return s.frames.SendMsg(m) }

// wantSizes checks that there are several frames, none of which is too large.
func (f frames) wantSizes(t *testing.T, config *Config) {
	t.Helper()
	for _, m := range f {
		if n := proto.Size(m); n > config.FrameMax {
			t.Errorf("a frame has %d bytes", n)
		}
	}
	if len(f) < 2 {
		t.Errorf("all is sent in %d frames; this proves nothing", len(f))
	}
}

// As many cancels, renewals and answers to them as may wait are sent in frames that are not too large.
func TestSmallFramesAreBounded(t *testing.T) {
	config := smallConfig()
	var calls []event.Handle
	var renewals []event.Renewal
	var cancels []Cancel
	asked := 0
	for i := range uint64(cancelledMax) {
		calls = append(calls, event.NewCallHandle(1<<40+i))
		if cancels = append(cancels, Cancel{Handle: calls[i], Confirm: i%3 > 0}); i%3 > 0 {
			asked++
		}
	}
	for i := range uint64(renewalsMax) {
		renewals = append(renewals, event.Renewal{Handle: event.NewCallHandle(1<<40 + i), Number: 1<<63 + i, Permission: event.Permission{Remaining: time.Hour, Covered: i%3 > 0}})
	}
	t.Run("cancels", func(t *testing.T) {
		var sent frames
		out := outEnd{peer: &outbound{pool: &Pool{config: config}, cancelled: cancels}, stream: calling{frames: &sent}}
		if err := out.sendSmall(1 << 62); err != nil {
			t.Fatal(err)
		}
		sent.wantSizes(t, &config)
		var got []event.Handle
		confirmed := map[uint64]bool{}
		for _, m := range sent {
			for _, h := range m.(*peerv1.ForwardRequest).GetCancel().GetHandles() {
				got = append(got, event.Handle(h))
			}
			renewals := m.(*peerv1.ForwardRequest).GetRenewals()
			for i, h := range renewals.GetHandles() {
				if confirmed[h] = renewals.GetNumbers()[i] == confirmation; !slices.Contains(got, event.Handle(h)) {
					t.Errorf("%d is to be confirmed before its Cancel", h)
				}
			}
		}
		for _, c := range cancels {
			if confirmed[uint64(c.Handle)] != c.Confirm || len(confirmed) != asked {
				t.Fatalf("%+v is confirmed: %t, as %d others", c, !c.Confirm, len(confirmed))
			}
		}
		if !slices.Equal(got, calls) {
			t.Errorf("%d cancels are sent, want %d", len(got), len(calls))
		}
	})
	t.Run("renewals", func(t *testing.T) {
		var sent frames
		out := outEnd{peer: &outbound{pool: &Pool{config: config}, renewals: renewals}, stream: calling{frames: &sent}}
		if err := out.sendSmall(1 << 62); err != nil {
			t.Fatal(err)
		}
		sent.wantSizes(t, &config)
		n := 0
		for _, m := range sent {
			f := m.(*peerv1.ForwardRequest).GetRenewals()
			asked, err := renewalsOf(f.GetHandles(), f.GetNumbers(), nil, nil)
			if err != nil {
				t.Fatal(err)
			}
			for _, r := range asked {
				if r.Handle != renewals[n].Handle || r.Number != renewals[n].Number {
					t.Fatalf("renewal %d is %+v", n, r)
				}
				n++
			}
		}
		if n != len(renewals) {
			t.Errorf("%d renewals are sent, want %d", n, len(renewals))
		}
	})
	t.Run("answers", func(t *testing.T) {
		var sent frames
		in := &inbound{server: &Server{config: config, streams: map[StreamID]*inbound{}}, link: &link{wakeup: make(chan struct{}, 1)}, stream: called{frames: &sent}}
		in.server.streams[1] = in
		for range 2 { // more than may wait
			in.server.Renewed(1, renewals)
		}
		if err := in.sendSmall(1 << 62); err != nil {
			t.Fatal(err)
		}
		sent.wantSizes(t, &config)
		var got []event.Renewal
		for _, m := range sent {
			f := m.(*peerv1.ForwardResponse).GetRenewed()
			answers, err := renewalsOf(f.GetHandles(), f.GetNumbers(), f.GetRemainingNs(), f.GetCovered())
			if err != nil {
				t.Fatal(err)
			}
			got = append(got, answers...)
		}
		if !slices.Equal(got, renewals) {
			t.Errorf("%d answers are sent, want %d", len(got), len(renewals))
		}
	})
}

// TestAConfirmationIsNoEarlierThanVerdicts: an owner that has given a reservation back, and then gets its Cancel,
// confirms what has freed nothing. The consumer node has to hear first that the reservation is not there.
func TestAConfirmationIsNoEarlierThanVerdicts(t *testing.T) {
	config := smallConfig()
	var sent frames
	in := &inbound{server: &Server{config: config, streams: map[StreamID]*inbound{}}, link: &link{wakeup: make(chan struct{}, 1)}, stream: called{frames: &sent}}
	in.server.streams[1] = in
	numbers := func() (numbers []uint64) {
		t.Helper()
		if err := in.sendSmall(0); err != nil {
			t.Fatal(err)
		}
		for _, m := range sent {
			numbers = append(numbers, m.(*peerv1.ForwardResponse).GetRenewed().GetNumbers()...)
		}
		sent = nil
		return numbers
	}
	in.server.Answer(1, slices.Repeat([]event.Verdict{{Handle: event.NewCallHandle(1), Kind: event.NotOwner}}, config.FrameEventsMax+1))
	in.server.Renewed(1, []event.Renewal{{Number: confirmation}, {Number: 7}, {Number: confirmation}, {Number: 8}})
	if got := numbers(); !slices.Equal(got, []uint64{7, 8}) {
		t.Errorf("answered before the verdicts: %v", got)
	}
	in.take()
	in.server.Answer(1, []event.Verdict{{Handle: event.NewCallHandle(2), Kind: event.NotOwner}}) // a later one
	in.server.Renewed(1, []event.Renewal{{Number: 9}})
	if got := numbers(); !slices.Equal(got, []uint64{9}) {
		t.Errorf("answered before the second frame of verdicts: %v", got)
	}
	in.take()
	if got := numbers(); !slices.Equal(got, []uint64{confirmation, confirmation}) {
		t.Errorf("answered behind the verdicts: %v", got)
	}
	in.server.Renewed(1, []event.Renewal{{Number: confirmation}})
	if got := numbers(); !slices.Equal(got, []uint64{confirmation}) {
		t.Errorf("answered when no verdict waits: %v", got)
	}
}

// Renewals whose lists do not fit each other are refused.
func TestCrookedRenewals(t *testing.T) {
	two := []uint64{1, 2}
	if got, err := renewalsOf(two, two, two, []uint32{0, 1}); err != nil || !got[0].Covered || !got[1].Covered {
		t.Fatalf("%v, %v", got, err)
	}
	for name, read := range map[string]func() ([]event.Renewal, error){
		"fewer numbers":   func() ([]event.Renewal, error) { return renewalsOf(two, two[:1], nil, nil) },
		"more numbers":    func() ([]event.Renewal, error) { return renewalsOf(two[:1], two, nil, nil) },
		"fewer durations": func() ([]event.Renewal, error) { return renewalsOf(two, two, two[:1], nil) },
		"too many": func() ([]event.Renewal, error) {
			all := make([]uint64, renewalsMax+1)
			return renewalsOf(all, all, nil, nil)
		},
		"one that is none": func() ([]event.Renewal, error) { return renewalsOf(two, two, two, []uint32{2}) },
		"one twice":        func() ([]event.Renewal, error) { return renewalsOf(two, two, two, []uint32{1, 1}) },
		"out of order":     func() ([]event.Renewal, error) { return renewalsOf(two, two, two, []uint32{1, 0}) },
	} {
		if got, err := read(); err == nil {
			t.Errorf("%s: read %v", name, got)
		}
	}
}

// A peer that takes no verdicts gets no receipts, and so may send no more events, until few verdicts wait.
func TestReceiptsWaitForVerdicts(t *testing.T) {
	config := smallConfig()
	in := &inbound{server: &Server{config: config}, link: &link{wakeup: make(chan struct{}, 1)}}
	taken := func(want uint64, when string) {
		t.Helper()
		if got := in.link.takenIn.Load(); got != want {
			t.Errorf("%s frame %d has its receipt, want %d", when, got, want)
		}
	}
	fill := func(frames int) {
		for len(in.queued) < frames {
			in.answer([]event.Verdict{{Handle: 1, Kind: event.Failed, Detail: &event.Detail{Reason: strings.Repeat("x", config.FrameMax/2)}}})
		}
	}
	fill(queuedMax)
	in.took(1)
	taken(1, "with as many frames of verdicts as may wait")
	fill(queuedMax + 2)
	in.took(2)
	taken(1, "with more")
	in.take()
	taken(1, "with one more")
	in.take()
	taken(2, "when no more wait than may")
	if in.owed != 0 {
		t.Errorf("the receipt for frame %d is still owed", in.owed)
	}
	for range 3 * queuedMax {
		in.take()
	}
	in.took(3)
	taken(3, "when nothing waits")
}

// More cancels and renewals than may wait for a stream are not queued.
func TestSmallQueuesAreBounded(t *testing.T) {
	var s outbound
	for i := range uint64(cancelledMax + 10) {
		s.cancel(Cancel{Handle: event.NewCallHandle(i + 1)})
		s.renew(event.Renewal{Handle: event.NewCallHandle(i + 1)})
	}
	calls, renewals := s.takeSmall()
	if len(calls) != cancelledMax || len(renewals) != renewalsMax || calls[0].Handle != event.NewCallHandle(1) {
		t.Errorf("%d cancels and %d renewals wait, want %d and %d, the oldest", len(calls), len(renewals), cancelledMax, renewalsMax)
	}
	if calls, renewals = s.takeSmall(); len(calls)+len(renewals) > 0 {
		t.Errorf("%d cancels and %d renewals are sent twice", len(calls), len(renewals))
	}
}

// The losses of streams that are remembered are the newest.
func TestLossesAreBounded(t *testing.T) {
	p := &Pool{}
	p.noteUnanswered(peerNumber(1), 0)
	for i := range unansweredMax + 3 {
		p.noteUnanswered(peerNumber(1), i+1)
	}
	got := p.Unanswered()
	if len(got) != unansweredMax || got[0].Events != 4 || got[len(got)-1].Events != unansweredMax+3 {
		t.Errorf("%d losses are remembered, %+v to %+v", len(got), got[0], got[len(got)-1])
	}
}

// A reservation is granted, renewed and released over a stream, as at this node itself.
func TestReservationsOverTheWire(t *testing.T) {
	for name, owner := range map[string]int{"a peer": 1, "this node": 0} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				nodes := threeNodes(t, &pipes{}, DefaultConfig(), bubbleClock())[:2]
				a, b := nodes[0], nodes[owner]
				b.verdict = func(*event.Event, int) (event.Verdict, bool) { return event.Verdict{Kind: event.Granted}, true }
				for _, n := range nodes {
					n.start()
					defer n.stop()
				}
				a.route(fixedRoute{owners: []Peer{b.identity.Incarnation}, epoch: event.Position{Ledger: 1}}, nodes...)
				time.Sleep(time.Second)
				reserve := func(serial uint64, call event.Call) event.Handle {
					ev := a.events(int(serial), 1)[0]
					call.ID, call.Reservation = "id", true
					ev.Call, ev.Handle, ev.ID = &call, event.NewCallHandle(serial), event.CallMessageID(ev.Key, "id", serial)
					e := event.NewEntry(event.Message{Event: ev, Key: string(ev.Key)})
					e.First, e.Fresh = ev.Handle, event.AllBits(1)
					a.pool.Hold(e)
					time.Sleep(time.Second)
					return ev.Handle
				}
				short, long := reserve(1, event.Call{}), reserve(2, event.Call{TTL: event.TTLLeast})
				a.mu.Lock()
				granted := len(a.granted)
				a.mu.Unlock()
				if granted != 2 {
					t.Fatalf("%d reservations are granted, want 2", granted)
				}
				a.pool.Renew(event.Renewal{Handle: short, Number: 7})
				time.Sleep(time.Second)
				a.mu.Lock()
				renewed := slices.Clone(a.renewed)
				a.mu.Unlock()
				if len(renewed) != 1 || renewed[0].Handle != short || renewed[0].Number != 7 {
					t.Errorf("the answers to the renewal are %+v", renewed)
				}
				a.pool.GiveUp(short)
				a.pool.GiveUp(long) // whose owner has to confirm it
				time.Sleep(time.Second)
				b.mu.Lock()
				cancelled := slices.Clone(b.cancelled)
				b.mu.Unlock()
				if len(cancelled) != 2 || cancelled[0].call != short || cancelled[1].call != long || (cancelled[0].from == 0) != (owner == 0) {
					t.Errorf("the owner is told %+v", cancelled)
				}
				a.await(2)
				if s := a.pool.Stats(); s.Events != 0 || s.Forgotten != 0 {
					t.Errorf("stats = %+v, want nothing left, and no release without a confirmation", s)
				}
			})
		})
	}
}

// A release is not confirmed while the verdict that says what became of the reservation is on its way.
func TestAnEndedReservationIsNotConfirmedHere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newNode(t, &pipes{}, 1, DefaultConfig(), bubbleClock())
		a.verdict = func(*event.Event, int) (event.Verdict, bool) { return event.Verdict{Kind: event.Granted}, true }
		a.start()
		defer a.stop()
		a.route(fixedRoute{owners: []Peer{a.identity.Incarnation}, epoch: event.Position{Ledger: 1}}, a)
		ev := a.events(1, 1)[0]
		ev.Handle, ev.ID = event.NewCallHandle(1), event.CallMessageID(ev.Key, "id", 0)
		ev.Call = &event.Call{ID: "id", Reservation: true, TTL: event.TTLLeast}
		e := event.NewEntry(event.Message{Event: ev, Key: string(ev.Key)})
		e.First, e.Fresh = ev.Handle, event.AllBits(1)
		a.before = []event.Handle{ev.Handle}
		a.pool.Hold(e)
		a.pool.GiveUp(ev.Handle)
		if n := len(a.settled); n != 0 || len(a.cancelled) != 1 {
			t.Errorf("%d reservations are settled, and cancelled are %v, want none before the verdict", n, a.cancelled)
		}
		a.pool.Settle(Local, nil, []event.Verdict{{Handle: ev.Handle, Kind: event.Answered, Detail: &event.Detail{Reply: &event.Reply{Outcome: event.CallReplied}}}})
		a.await(1)
	})
}

// slowMailbox gets its events late.
type slowMailbox struct {
	*node

	asked, goOn chan struct{}
	steps       []string
}

func (s *slowMailbox) Deliver([]event.Ref) {
	close(s.asked)
	<-s.goOn
	s.steps = append(s.steps, "delivered")
}

func (s *slowMailbox) Cancel([]event.Handle) []event.Handle {
	s.steps = append(s.steps, "cancelled")
	return nil
}

// A caller may go while another goroutine brings its call to the local mailbox: a Cancel that came first would find
// nothing, and nobody would give back a reservation that is granted then.
func TestCancelComesBehindItsCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newNode(t, &pipes{}, 1, DefaultConfig(), bubbleClock())
		slow := &slowMailbox{node: a, asked: make(chan struct{}), goOn: make(chan struct{})}
		a.pool.sink = slow
		a.pool.SetRoute(a.identity.Incarnation, fixedRoute{owners: []Peer{a.identity.Incarnation}, epoch: event.Position{Ledger: 1}})
		ev := a.events(1, 1)[0]
		ev.Handle, ev.ID = event.NewCallHandle(1), event.CallMessageID(ev.Key, "id", 0)
		ev.Call = &event.Call{ID: "id", Reservation: true}
		e := event.NewEntry(event.Message{Event: ev, Key: string(ev.Key)})
		e.First, e.Fresh = ev.Handle, event.AllBits(1)
		var holding sync.WaitGroup
		holding.Go(func() { a.pool.Hold(e) })
		<-slow.asked
		a.pool.GiveUp(ev.Handle)
		a.await(1) // its caller need not wait
		close(slow.goOn)
		holding.Wait()
		if !slices.Equal(slow.steps, []string{"delivered", "cancelled"}) || len(a.pool.delivering) != 0 {
			t.Errorf("the mailbox gets %v, and %d calls are on their way to it, want it delivered, then cancelled, and none", slow.steps, len(a.pool.delivering))
		}
	})
}

// Events that a peer keeps after others have taken its partitions over are sent again, also while its stream lasts. Those that the source has
// settled another way are forgotten.
func TestTakeoverOverTheWire(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		nodes := threeNodes(t, &pipes{}, DefaultConfig(), bubbleClock())
		a, b, c := nodes[0], nodes[1], nodes[2]
		b.verdict = func(*event.Event, int) (event.Verdict, bool) { return event.Verdict{}, false } // it is cut off, and answers nothing
		for _, n := range nodes {
			n.start()
			defer n.stop()
		}
		a.route(fixedRoute{owners: []Peer{b.identity.Incarnation}, epoch: event.Position{Ledger: 1}}, nodes...)
		events := a.events(1, 3)
		a.hold(events)
		time.Sleep(time.Second)
		first := events[0].Handle
		if got := a.pool.Newest([]event.Handle{first, first + 100}, nil); len(got) != 2 || got[0] == nil || got[0].ID != events[0].ID || got[1] != nil {
			t.Errorf("held are %v, want the first event and none", got)
		}
		a.pool.Drop([]event.Handle{first})
		if s := a.pool.Stats(); s.Events != 2 {
			t.Errorf("%d events are held, want 2 after one was dropped", s.Events)
		}
		a.route(fixedRoute{owners: []Peer{c.identity.Incarnation}, epoch: event.Position{Ledger: 2}}, nodes...)
		time.Sleep(time.Second)
		if len(c.handled()) != 0 {
			t.Error("events that may run are sent to the next owner before a takeover")
		}
		a.pool.TakenOver(b.identity.Incarnation, func(ring.Partition) bool { return true })
		a.await(2)
		if got, want := a.pool.Unanswered(), (Unanswered{b.identity.Incarnation, 2}); len(got) != 1 || got[0] != want || len(c.handled()) != 2 {
			t.Errorf("unanswered: %v, and the next owner got %d events, want %v and 2", got, len(c.handled()), want)
		}
	})
}
