package conformance

import (
	"fmt"
	"slices"
	"time"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	appv1 "github.com/ringfence/router/proto/ringfence/app/v1"
)

// slowScenes begin first.
var slowScenes = []scene{{rules: []string{"silence"}, play: playSilence}}

var sessionScenes = []scene{
	{rules: []string{"hello", "declared", "pings", "receipts-exact", "results-numbers"}, play: playHello},
	{rules: []string{"version"}, play: playVersion, setup: func(r *router) { r.welcome.Version = 99 }},
	{rules: []string{"token"}, play: playToken},
	{rules: []string{"unknown"}, play: playUnknown, setup: addUnknown},
	{rules: []string{"go-away"}, play: playGoAway},
	{rules: []string{"reconnect"}, play: playReconnect},
	{rules: []string{"old-deadline"}, play: playOldDeadline},
}

// The capabilities of the protocol that rules are about.
const (
	conformant = "conformant" // of a worker
	intervals  = "intervals"  // of the router
)

// silenceMax is how long a worker waits for a frame, and silenceLate what more it may take.
const (
	silenceMax  = 10 * time.Second
	silenceLate = 5 * time.Second
)

// firstPingMax is the time for the first Ping, which needs no timer.
const firstPingMax = 5 * time.Second

func playHello(r *router) {
	r.change(func() { r.lease = long })
	s := r.stream("hello", 1)
	r.check(slices.Contains(s.hello.GetCapabilities(), conformant), "declared", "the capabilities of Hello are %q", s.hello.GetCapabilities())
	s.renew(long) // the stream may be older than the lease
	for range 5 {
		s.want("answered-once", s.give(task{do: "done"}), kindDone)
	}
	s.pinged(5)
	r.await("pings", "Ping", func() bool {
		if late := time.Duration(s.pings[0] - s.at); late > firstPingMax {
			r.violated("pings", "the first Ping came %v after Hello", late)
		}
		return true
	})
}

func playVersion(r *router) {
	s := r.stream("version", 1)
	r.await("version", "end of the stream by the worker", func() bool { return s.gone })
	r.change(func() { r.welcome.Version, r.lease = 1, long })
	// Before that change a worker may have dialed any number of times.
	r.await("pings", "three Pings on a stream with a version that Hello offered", func() bool {
		s = r.streams[len(r.streams)-1]
		return s.version == 1 && len(s.pings) >= 3
	})
	s.want("version", s.give(task{do: "done"}), kindDone)
}

func playToken(r *router) {
	s := r.stream("token", 1)
	r.check(s.token == "Bearer secret-1", "token", "the header authorization is %q, want %q", s.token, "Bearer secret-1")
	r.writeToken("secret-2")
	s.pinged(1)
	s.breakOff()
	s = r.stream("token", 2)
	r.check(s.token == "Bearer secret-2", "token", "the header authorization of the next stream is %q, want %q", s.token, "Bearer secret-2")
}

// addUnknown makes each frame one of a later router.
func addUnknown(r *router) {
	r.welcome.Capabilities = []string{"conformance_1", "conformance_2"}
	unknown := protowire.AppendBytes(protowire.AppendTag(nil, 1000, protowire.BytesType), []byte("later"))
	unknown = protowire.AppendVarint(protowire.AppendTag(unknown, 1001, protowire.VarintType), 7)
	add := func(m proto.Message) { m.ProtoReflect().SetUnknown(unknown) }
	r.adorn = func(m proto.Message) {
		add(m)
		f, ok := m.(*appv1.WorkResponse)
		if !ok {
			return
		}
		switch frame := f.GetFrame().(type) {
		case *appv1.WorkResponse_Welcome:
			add(frame.Welcome)
			add(frame.Welcome.GetLimits())
		case *appv1.WorkResponse_Pong:
			add(frame.Pong)
		case *appv1.WorkResponse_Deliveries:
			add(frame.Deliveries)
			for _, d := range frame.Deliveries.GetDeliveries() {
				add(d)
			}
		}
	}
}

func playUnknown(r *router) {
	r.change(func() { r.lease = long })
	s := r.stream("unknown", 1)
	s.renew(long) // the stream may be older than the lease
	s.want("unknown", s.give(task{do: "done"}), kindDone)
	s.send(&appv1.WorkResponse{}) // a frame of an unknown kind
	s.want("unknown", s.give(task{do: "done"}), kindDone)
	s.pinged(1)
	r.await("unknown", "the stream", func() bool { return !s.gone && len(r.streams) == 1 })
}

// awayFor is longer than the first delay of a worker.
const awayFor = 1500 * time.Millisecond

func playGoAway(r *router) {
	r.change(func() { r.lease = long })
	s := r.stream("go-away", 1)
	s.renew(long) // the stream may be older than the lease
	s.want("go-away", s.give(task{do: "done"}), kindDone)
	at := bootTime()
	s.send(&appv1.WorkResponse{Frame: &appv1.WorkResponse_GoAway{GoAway: &appv1.GoAway{Reason: "the scene", RetryAfterMs: uint32(awayFor.Milliseconds())}}})
	s.breakOff()
	next := r.stream("go-away", 2)
	next.want("go-away", next.give(task{do: "done"}), kindDone)
	r.check(next.at-at >= int64(awayFor), "go-away", "it dialed again after %v, and retry_after_ms was %d", time.Duration(next.at-at), awayFor.Milliseconds())
}

func playSilence(r *router) {
	s := r.stream("silence", 1)
	id, until := s.runBriefly("silence", task{do: "sleep", ms: 60_000})
	r.change(func() { r.lease = long }) // before the stream can end: the worker may dial again before the kit notices
	last := bootTime()
	end := r.finished("silence", id)
	r.check(end < until+int64(r.patience), "silence", "the handler ended %v after its deadline", time.Duration(end-until))
	r.awaitFor(silenceMax+silenceLate+r.patience, "silence", "end of the silent stream by the worker", func() bool { return s.gone })
	r.await("silence", "the stream", func() bool {
		// Its last frame may be an answer's receipt, which is later than the last Pong.
		if after := time.Duration(s.goneAt - last); after < silenceMax/2 && r.dead == "" {
			r.violated("silence", "it gave the stream up after %v already", after)
		}
		return true
	})
	next := r.stream("silence", 2)
	next.want("silence", next.give(task{do: "done"}), kindDone)
}

func playReconnect(r *router) {
	s := r.stream("reconnect", 1)
	ran := s.give(task{do: "sleep", ms: 1000})
	s.renew(long)
	r.started("reconnect", ran)
	s.suspend()
	waited := s.give(task{do: "done"})
	s.receipted()
	r.change(func() { r.lease = long })
	s.breakOff()
	next := r.stream("reconnect", 2)
	next.want("reconnect", next.give(task{do: "done"}), kindDone)
	r.finished("reconnect", ran)
	next.pinged(3)
	next.want("reconnect", next.give(task{do: "done"}), kindDone)
	r.never("reconnect", waited, fmt.Sprintf("its stream had broken while it waited: it runs at the same time elsewhere (delivery %d)", waited))
}

func playOldDeadline(r *router) {
	s := r.stream("old-deadline", 1)
	id, until := s.runBriefly("old-deadline", task{do: "sleep", ms: 60_000})
	r.change(func() { r.lease = long })
	s.breakOff()
	next := r.stream("old-deadline", 2)
	next.want("old-deadline", next.give(task{do: "done"}), kindDone)
	end := r.finished("old-deadline", id)
	r.check(end < until+int64(r.patience), "old-deadline", "the handler ended %v after its deadline", time.Duration(end-until))
}
