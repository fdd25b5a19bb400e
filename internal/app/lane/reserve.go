package lane

import (
	"context"
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
)

// codeNotExclusive is the code of reservations that are refused because two members may own a key.
const codeNotExclusive = "not_exclusive"

// RefuseReservations makes the Lane refuse all reservations, since ownership is not exclusive. It must be called before any other method.
func (l *Lane) RefuseReservations() { l.shared = true }

// Ask is a request for a reservation, as its holder makes it.
type Ask struct {
	Key    event.Key
	ID     string        // 16 random bytes; who knows them can come back for the reservation
	Wait   time.Duration // how long to wait for it, 0 to WaitMax
	Resume bool          // it was granted before: no new one is wanted
	Path   []partition.KeyHash
}

func (a *Ask) check() error {
	switch {
	case a.Key == "" || len(a.Key) > event.KeyMax:
		return fmt.Errorf("%w: a key of %d bytes: want 1 to %d", ErrRequest, len(a.Key), event.KeyMax)
	case len(a.ID) != reservationID:
		return fmt.Errorf("%w: an id of %d bytes: want %d random ones", ErrRequest, len(a.ID), reservationID)
	case a.Wait < 0 || a.Wait > WaitMax:
		return fmt.Errorf("%w: a wait of %v: want at most %v", ErrRequest, a.Wait, WaitMax)
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

	// Guarded by the lock of the lane.
	granted  *event.Grant
	answered *event.Renewal // the newest
	over     *Answer
}

// Reserve asks for a reservation. It returns an error only for a request that breaks the bounds, an [ErrRequest]. The caller must call Forget
// or Release in the end.
func (l *Lane) Reserve(a Ask) (*Reservation, error) {
	if err := a.check(); err != nil {
		return nil, err
	}
	news := make(chan struct{}, 1)
	r := &Reservation{lane: l, news: news, News: news}
	switch serial, ok := l.enterReservation(r); {
	case l.shared:
		r.end(Answer{Reply: event.Reply{Outcome: event.CallNotRun, Code: codeNotExclusive}, Text: "ownership.mode is gossip, which is not exclusive"})
		return r, nil
	case !ok:
		r.end(refused(event.CodeOverloaded, "too many reservations are held or waited for through this router"))
		return r, nil
	default:
		r.handle = event.NewCallHandle(serial)
	}
	wait := max(a.Wait, waitLeast)
	// The owner's answer is waited for a little longer: it knows better whether the time was up first.
	r.timeout = time.AfterFunc(wait+OwnerGrace, r.giveUpWaiting)
	l.sender.Call(&event.Event{
		Handle: r.handle, ID: event.CallMessageID(a.Key, "reservation\x00"+a.ID, 0), Key: a.Key, Partition: partition.HashOf(string(a.Key)).Partition(),
		Call: &event.Call{ID: a.ID, Deadline: l.now().Add(wait), Path: a.Path, Reservation: true, Resume: a.Resume},
	})
	return r, nil
}

// enterReservation admits a reservation, if there is room.
func (l *Lane) enterReservation(r *Reservation) (serial uint64, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.shared || l.held >= l.config.ReservationsMax {
		return 0, false
	}
	l.held++
	l.last++
	l.waiting[event.NewCallHandle(l.last)] = r
	return l.last, true
}

func (r *Reservation) end(a Answer) {
	r.over = &a
	signal.Set(r.news)
}

// hear implements waiter.
func (r *Reservation) hear(v *event.Verdict) (last bool) {
	defer signal.Set(r.news)
	if d := v.DetailOrZero(); v.Kind == event.Granted && d.Grant != nil {
		r.granted = d.Grant
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

// giveUpWaiting ends a wait that has no answer.
func (r *Reservation) giveUpWaiting() {
	r.lane.mu.Lock()
	waits := r.granted == nil && r.over == nil
	r.lane.mu.Unlock()
	if waits {
		r.lane.sender.GiveUp(r.handle)
	}
}

// Next returns what has come since the last call: that the reservation was granted, the newest answer to a renewal, and that it is over. Each may
// be nil.
func (r *Reservation) Next() (granted *event.Grant, answered *event.Renewal, over *Answer) {
	r.lane.mu.Lock()
	defer r.lane.mu.Unlock()
	granted, answered, over = r.granted, r.answered, r.over
	r.answered = nil
	if over != nil && r.released {
		over = &Answer{Reply: event.Reply{Outcome: event.CallReplied}}
	}
	if granted != nil {
		r.granted = &event.Grant{} // told: it is not waited for any more
		if *granted == (event.Grant{}) {
			granted = nil
		}
	}
	return granted, answered, over
}

// Renew asks for new permission. Next returns the answer, if one comes.
func (r *Reservation) Renew(number uint64) {
	r.lane.sender.RenewReservation(event.Renewal{Handle: r.handle, Number: number})
}

// Release ends the reservation, or the wait for it. Next says that it is over.
func (r *Reservation) Release() {
	r.released = true
	r.lane.sender.GiveUp(r.handle)
}

// Forget drops the reservation without a release. One that waits ends; one that is held ends at its owner when its permission has passed, or goes
// on if its holder comes back for it.
func (r *Reservation) Forget() {
	if r.handle == 0 {
		return
	}
	r.timeout.Stop()
	r.lane.mu.Lock()
	r.lane.held--
	held, over := r.granted != nil, r.over != nil
	if held {
		delete(r.lane.waiting, r.handle)
	}
	r.lane.mu.Unlock()
	switch {
	case over:
	case held:
		r.lane.sender.ForgetReservation(r.handle)
	default:
		r.lane.sender.GiveUp(r.handle)
	}
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
