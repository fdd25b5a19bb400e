package lane

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/ringfence/router/internal/base/clock"
	"github.com/ringfence/router/internal/base/event"
	"github.com/ringfence/router/internal/base/partition"
	"github.com/ringfence/router/internal/base/signal"
)

// The bounds of reservations.
const (
	WaitMax       = time.Hour // for a reservation
	reservationID = 16        // bytes of an id

	// waitLeast is the shortest wait: the owner of a free key may take this long to grant it.
	waitLeast = 100 * time.Millisecond

	// resumeWait limits the wait for the owner's answer to a returning holder. After it the holder tries again.
	resumeWait = 500 * time.Millisecond
)

// Ask is a request for a reservation, as its holder makes it.
type Ask struct {
	Key    event.Key
	ID     string        // 16 random bytes, a secret: a request with the same id resumes the reservation
	Wait   time.Duration // how long to wait for it, 0 to WaitMax
	Resume bool          // it was granted before, and no new one may begin
	Path   []partition.KeyHash
	TTL    time.Duration // the time for which each renewal promises the key, even if its owner dies; 0: no longer than a lease
}

func (a *Ask) check() error {
	switch {
	case a.Key == "" || len(a.Key) > event.KeyMax:
		return fmt.Errorf("%w: a key of %d bytes: want 1 to %d", ErrRequest, len(a.Key), event.KeyMax)
	case len(a.ID) != reservationID:
		return fmt.Errorf("%w: an id of %d bytes: want %d random ones", ErrRequest, len(a.ID), reservationID)
	case a.Wait < 0 || a.Wait > WaitMax:
		return fmt.Errorf("%w: a wait of %v: want at most %v", ErrRequest, a.Wait, WaitMax)
	case a.TTL != 0 && (!event.IsTTL(a.TTL) || a.TTL%time.Millisecond != 0):
		return fmt.Errorf("%w: a ttl of %v: want %v to %v in milliseconds, or none", ErrRequest, a.TTL, event.TTLLeast, event.TTLMost)
	case len(a.Path) > event.CallPathMax:
		return fmt.Errorf("%w: a reservation behind %d calls: want at most %d", ErrRequest, len(a.Path), event.CallPathMax)
	}
	return nil
}

// Reservation is a reservation that is held or waited for through this node. One goroutine uses it: it receives from news,
// and then calls Next.
type Reservation struct {
	lane    *Lane
	handle  event.Handle
	news    chan struct{} // of capacity one: there is something for Next
	timeout *time.Timer

	released bool // its holder has released it
	resumes  bool // granted before: its holder may still have permission

	// Guarded by the lock of the lane.
	granted  *event.Grant
	answered *event.Renewal // the newest
	over     *Answer
	gaveUp   bool // the wait for an answer is over: a later grant is not passed on
	releases bool // it is released as soon as its owner has answered
}

// ErrUnreached says that the owner of a key has not answered a holder that came back. The reservation may continue: the
// holder comes back again, as long as it has permission.
var ErrUnreached = errors.New("the owner of the key has not answered")

// Reserve asks for a reservation. It returns an error, an [ErrRequest], only for a request that breaks the bounds. The
// caller must finally call Forget or Release.
func (l *Lane) Reserve(a Ask) (*Reservation, error) {
	if err := a.check(); err != nil {
		l.metrics.refused.WithLabelValues(badRequest).Inc()
		return nil, err
	}
	r := &Reservation{lane: l, news: make(chan struct{}, 1), resumes: a.Resume}
	if a.TTL > 0 && !a.Resume && !l.NotExclusive && (l.Covers == nil || !l.Covers()) {
		// A member of an older release would grant it for a lease only, since it does not know the ttl.
		r.end(refused(event.CodeNotCovered, "a router of the group is of a release that does not know covered reservations, or the control log is in an older version"))
		return r, nil
	}
	serial, no := l.admitReservation(&a, r)
	if no != nil {
		r.end(*no)
		return r, nil
	}
	r.handle = event.NewCallHandle(serial)
	wait := max(a.Wait, waitLeast)
	if a.Resume {
		wait = max(wait, resumeWait)
	}
	l.sender.Call(&event.Event{
		Handle: r.handle, ID: event.CallMessageID(a.Key, "reservation\x00"+a.ID, 0), Key: a.Key, Partition: partition.HashOf(string(a.Key)).Partition(),
		Call: &event.Call{ID: a.ID, Deadline: l.now().Add(wait), Path: a.Path, Reservation: true, Resume: a.Resume, TTL: a.TTL},
	})
	// After Call, since the sender must have the call before it is given up. The owner's answer may come a little after the
	// end of the wait, and decides whether the grant or the timeout was first.
	r.timeout = time.AfterFunc(wait+OwnerGrace, r.giveUpWaiting)
	return r, nil
}

// admitReservation admits a reservation. It returns the answer instead if there can be none, the router leaves, or it
// has no room. A returning holder is not refused because the router leaves or other reservations use the room: the
// refusal would end its reservation.
func (l *Lane) admitReservation(a *Ask, r *Reservation) (serial uint64, no *Answer) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.NotExclusive:
		return 0, &Answer{Reply: event.Reply{Outcome: event.CallNotRun, Code: event.CodeNotExclusive}, Text: "ownership.mode is gossip, which is not exclusive"}
	case l.leaving.Load() && !a.Resume && len(a.Path) == 0:
		l.refuse(leavingGroup)
		return 0, leavingAnswer()
	case l.isFull(a.Resume):
		l.refuse(limitReservations)
		full := refused(event.CodeOverloaded, "too many reservations are held or waited for through this router")
		return 0, &full
	}
	l.held++
	l.last++
	l.waiting[event.NewCallHandle(l.last)] = r
	return l.last, nil
}

// isFull reports whether there is no room for a reservation. For returning holders the bound is twice as high. The lock
// is held.
func (l *Lane) isFull(resume bool) bool {
	if resume {
		return l.held/2 >= l.config.ReservationsMax
	}
	return l.held >= l.config.ReservationsMax
}

func (r *Reservation) end(a Answer) {
	r.over = &a
	signal.Set(r.news)
}

// hear implements waiter.
func (r *Reservation) hear(v *event.Verdict) (last bool) {
	if d := v.DetailOrZero(); v.Kind == event.Granted && d.Grant != nil {
		if !r.gaveUp { // otherwise a Cancel is on its way, and the owner frees the key
			r.granted = d.Grant
		}
		signal.Set(r.news)
		return false
	}
	r.end(AnswerOf(v))
	return true
}

// renewed implements waiter.
func (r *Reservation) renewed(answer *event.Renewal) {
	one := *answer
	r.answered = &one
	signal.Set(r.news)
}

// giveUpWaiting ends a wait that has no answer. The owner gets a Cancel, unless the reservation was granted before: it would free the key while the
// holder may still have permission.
func (r *Reservation) giveUpWaiting() {
	r.lane.mu.Lock()
	waits := r.granted == nil && r.over == nil
	r.gaveUp = r.gaveUp || waits
	if waits && r.resumes {
		delete(r.lane.waiting, r.handle)
		signal.Set(r.news)
	}
	r.lane.mu.Unlock()
	switch {
	case !waits:
	case r.resumes:
		r.lane.sender.ForgetReservation(r.handle)
	default:
		r.lane.sender.GiveUp(r.handle)
		if r.forget() { // its owner has just granted it, too late: free the key
			r.lane.mu.Lock()
			r.end(Answer{Reply: event.Reply{Outcome: event.CallNotRun, Code: event.CodeTimeout}, Text: "its time was up"})
			r.lane.mu.Unlock()
		}
	}
}

// forget drops the reservation here, unless it has ended. It reports whether it had not.
func (r *Reservation) forget() (open bool) {
	r.lane.mu.Lock()
	_, open = r.lane.waiting[r.handle]
	delete(r.lane.waiting, r.handle)
	r.lane.mu.Unlock()
	if open {
		r.lane.sender.ForgetReservation(r.handle)
	}
	return open
}

// isUnreached reports whether the owner has not answered a returning holder.
func (r *Reservation) isUnreached() bool {
	r.lane.mu.Lock()
	defer r.lane.mu.Unlock()
	return r.resumes && r.gaveUp && r.over == nil
}

// Next returns the news since the last call: the grant, the newest answer to a renewal, and the end of the reservation.
// Each may be nil.
func (r *Reservation) Next() (granted *event.Grant, answered *event.Renewal, over *Answer) {
	r.lane.mu.Lock()
	granted, answered, over = r.granted, r.answered, r.over
	r.answered = nil
	if over != nil && r.released && !over.isUnconfirmed() {
		over = &Answer{Reply: event.Reply{Outcome: event.CallReplied}}
	}
	release := false
	if granted != nil {
		release, r.releases = r.releases, false
		r.granted = &event.Grant{} // told: its wait has ended
		if *granted == (event.Grant{}) {
			granted = nil
		}
	}
	r.lane.mu.Unlock()
	if release {
		r.lane.sender.GiveUp(r.handle)
	}
	return granted, answered, over
}

// Renew asks for new permission. Next returns the answer, if one comes.
func (r *Reservation) Renew(number uint64) {
	r.lane.sender.RenewReservation(event.Renewal{Handle: r.handle, Number: number})
}

// Release ends the reservation, or the wait for it. Next reports the end: for a reservation with a ttl when an owner
// has confirmed it, or when no promise of the key remains. The owner of a reservation that is being resumed may not
// have been asked yet, and would not hear of the release: it gets the release when it has answered.
func (r *Reservation) Release() {
	r.released = true
	r.lane.mu.Lock()
	r.releases = r.resumes && r.granted == nil && r.over == nil && !r.gaveUp
	waits := r.releases
	r.lane.mu.Unlock()
	if !waits {
		r.lane.sender.GiveUp(r.handle)
	}
}

// Forget drops the reservation. A waiting one ends. A held one that was not released ends at its owner when its permission
// has passed, unless its holder resumes it. The table keeps a release that no owner has confirmed, without a holder.
func (r *Reservation) Forget() {
	if r.handle == 0 {
		return
	}
	r.timeout.Stop()
	r.lane.mu.Lock()
	r.lane.held--
	comesBack, over := r.granted != nil || r.resumes, r.over != nil
	r.lane.mu.Unlock()
	if !over && (r.released || !comesBack) {
		r.lane.sender.GiveUp(r.handle) // a second time does nothing
	}
	r.forget()
}

// onHoldersClock returns the time by which the clock of a holder may advance while ours advances by d, if NTP can slew it.
func onHoldersClock(d time.Duration, raw bool) time.Duration {
	if raw {
		return d
	}
	return time.Duration(float64(d) * (1 - clock.SlewMax))
}

var _ waiter = (*Reservation)(nil)

// serve moves a reservation between its holder and its owner, until it is over or ctx ends. frames are the holder's, already
// checked; tell sends it the news.
func (r *Reservation) serve(ctx context.Context, frames <-chan Frame, tell func(granted *event.Grant, answered *event.Renewal, over *Answer) error) error {
	for {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case f := <-frames:
			if f.Release {
				r.Release()
			} else {
				r.Renew(f.Renew)
			}
		case <-r.news:
			granted, answered, over := r.Next()
			if err := tell(granted, answered, over); err != nil || over != nil {
				return err
			}
			if r.isUnreached() {
				return ErrUnreached
			}
		}
	}
}

// Frame is a frame of the holder: a Release, or a Renew with a number.
type Frame struct {
	Release bool
	Renew   uint64
}
