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

	// waitLeast is how long is waited at least: so long it may take until the owner of a free key has granted it.
	waitLeast = 100 * time.Millisecond

	// resumeWait is how long the owner's answer to a holder that comes back is waited for. It comes back again after that.
	resumeWait = 500 * time.Millisecond
)

// codeNotExclusive is the code of reservations that are refused because two members may own a key.
const codeNotExclusive = "not_exclusive"

// RefuseReservations makes the Lane refuse all reservations, since ownership is not exclusive. It must be called before any other method.
func (l *Lane) RefuseReservations() { l.shared = true }

// CoverIf makes the Lane take reservations with a ttl while covers says that the group can cover them. It must be called before any other
// method.
func (l *Lane) CoverIf(covers func() bool) { l.covers = covers }

// Ask is a request for a reservation, as its holder makes it.
type Ask struct {
	Key    event.Key
	ID     string        // 16 random bytes, a secret: an ask with the same ones resumes the reservation
	Wait   time.Duration // how long to wait for it, 0 to WaitMax
	Resume bool          // it was granted before: no new one is wanted
	Path   []partition.KeyHash
	TTL    time.Duration // for how long each renewal shall promise the key, also beyond the death of its owner; 0: for no longer than a lease
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

// Reservation is one that is held through this node, or waited for. One goroutine uses it: it receives from News, and then calls Next.
type Reservation struct {
	News <-chan struct{} // there is something for Next

	lane    *Lane
	handle  event.Handle
	news    chan struct{}
	timeout *time.Timer

	released bool // its holder has released it
	resumes  bool // it was granted before, and its holder may still have permission

	// Guarded by the lock of the lane.
	granted  *event.Grant
	answered *event.Renewal // the newest
	over     *Answer
	gaveUp   bool // the wait for an answer is over: a grant that comes now is not told
	releases bool // it is released as soon as its owner has answered
}

// ErrUnreached says that the owner of a key has not answered a holder that came back. The reservation may go on: the holder comes back again, as long as
// it has permission.
var ErrUnreached = errors.New("the owner of the key has not answered")

// Reserve asks for a reservation. It returns an error only for a request that breaks the bounds, an [ErrRequest]. The caller must call Forget
// or Release in the end.
func (l *Lane) Reserve(a Ask) (*Reservation, error) {
	if err := a.check(); err != nil {
		l.metrics.refused.WithLabelValues(badRequest).Inc()
		return nil, err
	}
	news := make(chan struct{}, 1)
	r := &Reservation{lane: l, news: news, News: news, resumes: a.Resume}
	if a.TTL > 0 && !a.Resume && !l.shared && (l.covers == nil || !l.covers()) {
		// A member of an older release would grant it for a lease, and not know that more was asked for.
		r.end(refused(event.CodeNotCovered, "a router of the group is of a release that does not know covered reservations, or the control log is in an older version"))
		return r, nil
	}
	serial, no := l.enterReservation(&a, r)
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
	// Behind Call, or the sender might hear that it is given up before it has it. The owner's answer may come a little later than the wait, and decides
	// whether the grant or the timeout was first.
	r.timeout = time.AfterFunc(wait+OwnerGrace, r.giveUpWaiting)
	return r, nil
}

// enterReservation admits a reservation. It returns the answer instead if there can be none, the router leaves, or it has no room. A holder that comes
// back is not refused because the router leaves, or others have taken its place: the refusal would end its reservation.
func (l *Lane) enterReservation(a *Ask, r *Reservation) (serial uint64, no *Answer) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.shared:
		return 0, &Answer{Reply: event.Reply{Outcome: event.CallNotRun, Code: codeNotExclusive}, Text: "ownership.mode is gossip, which is not exclusive"}
	case l.leaving && !a.Resume && len(a.Path) == 0:
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

// isFull reports whether there is no room for a reservation. Holders that come back find as much room again. The lock is held.
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
	defer signal.Set(r.news)
	if d := v.DetailOrZero(); v.Kind == event.Granted && d.Grant != nil {
		if !r.gaveUp { // otherwise the owner is being told that it is not wanted, and gives the key away
			r.granted = d.Grant
		}
		return false
	}
	a := AnswerOf(v)
	r.over = &a
	return true
}

// renewed implements waiter.
func (r *Reservation) renewed(answer *event.Renewal) {
	one := *answer
	r.answered = &one
	signal.Set(r.news)
}

// giveUpWaiting ends a wait that has no answer. The owner is told, unless the reservation was granted before: it would give the key away, and the
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
		if r.forget() { // its owner has just granted it, and is told that it is not wanted
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

// isUnreached reports whether the owner has not answered a holder that came back.
func (r *Reservation) isUnreached() bool {
	r.lane.mu.Lock()
	defer r.lane.mu.Unlock()
	return r.resumes && r.gaveUp && r.over == nil
}

// Next returns what has come since the last call: that the reservation was granted, the newest answer to a renewal, and that it is over. Each may
// be nil.
func (r *Reservation) Next() (granted *event.Grant, answered *event.Renewal, over *Answer) {
	granted, answered, over, release := r.next()
	if release {
		r.lane.sender.GiveUp(r.handle)
	}
	return granted, answered, over
}

func (r *Reservation) next() (granted *event.Grant, answered *event.Renewal, over *Answer, release bool) {
	r.lane.mu.Lock()
	defer r.lane.mu.Unlock()
	granted, answered, over = r.granted, r.answered, r.over
	r.answered = nil
	if over != nil && r.released && !over.isUnconfirmed() {
		over = &Answer{Reply: event.Reply{Outcome: event.CallReplied}}
	}
	if granted != nil {
		release, r.releases = r.releases, false
		r.granted = &event.Grant{} // told: it is not waited for any more
		if *granted == (event.Grant{}) {
			granted = nil
		}
	}
	return granted, answered, over, release
}

// Renew asks for new permission. Next returns the answer, if one comes.
func (r *Reservation) Renew(number uint64) {
	r.lane.sender.RenewReservation(event.Renewal{Handle: r.handle, Number: number})
}

// Release ends the reservation, or the wait for it. Next says that it is over: of one with a ttl when an owner has confirmed it, or nobody is promised
// the key any more. The owner of one that is being resumed may not have been asked yet, and would not hear of the release: it is told when it has answered.
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

// Forget drops the reservation. One that waits ends; one that is held and was not released ends at its owner when its permission has passed, or goes
// on if its holder comes back for it. A release that no owner has confirmed yet is kept by the table, without a holder.
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

// onHoldersClock returns how far the clock of a holder may advance while ours advances by d, if NTP can slew it.
func onHoldersClock(d time.Duration, raw bool) time.Duration {
	if raw {
		return d
	}
	return time.Duration(float64(d) * (1 - clock.SlewMax))
}

var _ waiter = (*Reservation)(nil)

// serve moves a reservation between its holder and its owner, until it is over or ctx ends. frames are the holder's, already checked.
func (r *Reservation) serve(ctx context.Context, holder Holder) error {
	for {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case f, ok := <-holder.Frames:
			switch {
			case !ok:
				return nil
			case f.Release:
				r.Release()
			default:
				r.Renew(f.Renew)
			}
		case <-r.News:
			granted, answered, over := r.Next()
			if err := holder.Tell(granted, answered, over); err != nil || over != nil {
				return err
			}
			if r.isUnreached() {
				return ErrUnreached
			}
		}
	}
}

// Frame is one of the holder: a Release, or a Renew with a number.
type Frame struct {
	Release bool
	Renew   uint64
}

// Holder is the other end of a reservation's stream.
type Holder struct {
	Frames <-chan Frame // closed at the end of the stream
	Tell   func(granted *event.Grant, answered *event.Renewal, over *Answer) error
}
