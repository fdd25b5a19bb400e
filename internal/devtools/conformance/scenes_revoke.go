package conformance

import (
	appv1 "github.com/ringfence/router/proto/ringfence/app/v1"
)

var revokeScenes = []scene{
	{rules: []string{"revoke-waiting", "revoke-earlier"}, play: playRevokeWaiting},
	{rules: []string{"revoke-running", "draining"}, play: playRevokeRunning},
	{rules: []string{"revoke-single"}, play: playRevokeSingle},
	{rules: []string{"suspend"}, play: playSuspend},
}

func playRevokeWaiting(r *router) {
	const rule = "revoke-waiting"
	s := r.stream(rule, 1)
	ids := s.deliver(task{do: "done", partition: 1}, task{do: "done", partition: 2}, task{do: "done", partition: 3})
	s.receipted()
	s.revoke(&appv1.Revoke{Partitions: []uint32{1, 3}})
	s.renew(long)
	s.want(rule, ids[0], kindNotStarted)
	s.want(rule, ids[1], kindDone)
	s.want(rule, ids[2], kindNotStarted)
	s.want("revoke-earlier", s.give(task{do: "done", partition: 1}), kindDone)
	s.pinged(2)
	r.never(rule, ids[0], "it was revoked before the Pong")
	r.never(rule, ids[2], "it was revoked before the Pong")

	s.suspend()
	waits := s.give(task{do: "done", partition: 4})
	s.receipted()
	s.revoke(&appv1.Revoke{All: true})
	s.resume()
	s.want(rule, waits, kindNotStarted)
	s.want("revoke-earlier", s.give(task{do: "done", partition: 4}), kindDone)
	r.never(rule, waits, "all deliveries were revoked before the worker could start it")
}

func playRevokeRunning(r *router) {
	const rule = "revoke-running"
	s := r.stream(rule, 1)
	for try, drained := 1, false; !drained; try++ {
		ids := s.deliver(task{do: "sleep", ms: 4500, partition: 1}, task{do: "sleep", ms: 60_000, partition: 2})
		s.renew(generous)
		r.started(rule, ids[0])
		r.started(rule, ids[1])
		s.revoke(&appv1.Revoke{All: true})
		r.change(func() { s.draining = ids[:1] })
		s.lost(rule, ids[1])
		drained = s.outlasts("draining", ids[0], try)
	}

	id := s.give(task{do: "sleep", ms: 60_000, partition: 3})
	r.started(rule, id)
	s.revoke(&appv1.Revoke{Partitions: []uint32{3}})
	r.change(func() { s.draining = []uint64{id} })
	s.pinged(2)
	r.change(func() { s.draining = nil }) // only a Pong that lists it moves its deadline
	s.lost(rule, id)
}

func playRevokeSingle(r *router) {
	const rule = "revoke-single"
	s := r.stream(rule, 1)
	s.renew(long)
	ran := s.give(task{do: "sleep", ms: 60_000})
	r.started(rule, ran)
	s.suspend()
	waits := s.give(task{do: "done"})
	s.receipted()
	s.revoke(&appv1.Revoke{DeliveryIds: []uint64{ran, waits}})
	s.lost(rule, ran)
	r.finished(rule, ran)
	s.resume()
	s.want(rule, waits, kindNotStarted)
	s.want(rule, s.give(task{do: "done"}), kindDone)
	r.never(rule, waits, "it was revoked before")
}

func playSuspend(r *router) {
	const rule = "suspend"
	s := r.stream(rule, 1)
	s.renew(long)
	ran := s.give(task{do: "sleep", ms: 500})
	r.started(rule, ran)
	s.suspend()
	waits := s.give(task{do: "done"})
	s.receipted()
	s.want(rule, ran, kindDone)
	s.pinged(2)
	at := bootTime()
	s.resume()
	r.notBefore(rule, waits, at, "the worker was suspended")
	s.want(rule, waits, kindDone)
}
