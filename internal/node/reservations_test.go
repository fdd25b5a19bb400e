package node

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ringfence/router/client"
	"github.com/ringfence/router/internal/app/lane"
	"github.com/ringfence/router/internal/base/clock"
	"github.com/ringfence/router/internal/base/event"
	"github.com/ringfence/router/internal/controllog"
	"github.com/ringfence/router/internal/ownership"
	"github.com/ringfence/router/internal/testing/eventually"
)

// notReserved checks the error of a Reserve.
func notReserved(t testing.TB, err error, code string) {
	t.Helper()
	var failure *client.CallError
	if !errors.As(err, &failure) || !errors.Is(err, client.ErrNotReserved) || failure.Code != code {
		t.Errorf("the error is %v, want the code %q", err, code)
	}
}

// wantLost fails the test if a holder whose key was granted again may still rely on its reservation. It asks by Err, as
// holders should before a write: what watches the deadline may come later on a busy machine.
func wantLost(t testing.TB, r *client.Reservation) {
	t.Helper()
	if r.Context().Err() == nil || !errors.Is(context.Cause(r.Context()), client.ErrKeyLost) {
		t.Errorf("the key was granted again while its holder had it: %v", context.Cause(r.Context()))
	}
}

// TestReservations: whoever holds a key is alone with it, wherever its owner is.
func TestReservations(t *testing.T) {
	t.Parallel()
	calmly(t, reservations)
}

func reservations(t testing.TB, g *group) {
	c := newCallees()
	scene := func(name string, play func()) { t.Log(name); play() }
	a, b := g.start("a", nil), g.start("b", nil)
	la, lb := g.startCalls(a, c), g.startCalls(b, c)
	g.ready(a, b)
	for where, key := range map[string]string{"own": g.owned(a), "other": g.owned(b)} {
		scene(where, func() {
			first, err := la.Reserve(t.Context(), key, client.WithWait(time.Minute))
			if err != nil {
				t.Fatal(err)
			}
			if first.Fence().Token == 0 || first.Fence().Turn == 0 {
				t.Errorf("the fence is %v", first.Fence())
			}
			_, err = lb.Reserve(t.Context(), key)
			notReserved(t, err, client.CodeTimeout)
			notRun(g, lb, key, "beside")
			waiting := make(chan *client.Reservation)
			go func() {
				r, err := lb.Reserve(t.Context(), key, client.WithWait(30*time.Second))
				if err != nil {
					t.Errorf("the one that waits: %v", err)
				}
				waiting <- r
			}()
			time.Sleep(5 * time.Second) // longer than a lease
			if first.Context().Err() != nil {
				t.Fatalf("the reservation was lost: %v", context.Cause(first.Context()))
			}
			select {
			case <-waiting:
				t.Fatal("the key was granted twice")
			default:
			}
			first.Release()
			first.Release()
			if !errors.Is(context.Cause(first.Context()), context.Canceled) || errors.Is(context.Cause(first.Context()), client.ErrKeyLost) {
				t.Errorf("after the release the cause is %v", context.Cause(first.Context()))
			}
			second := <-waiting
			if second == nil {
				t.FailNow()
			}
			if f, s := first.Fence(), second.Fence(); s.Token < f.Token || s.Token == f.Token && s.Turn <= f.Turn {
				t.Errorf("the fences are %v, then %v", f, s)
			}
			second.Release()
			if _, err := la.Invoke(t.Context(), key, "echo", []byte("after"), client.WithCallTimeout(5*time.Second)); err != nil {
				t.Errorf("a call after the release: %v", err)
			}
			if n := c.ran(key, "beside"); n != 0 {
				t.Errorf("%d calls ran whose time was up before the release", n)
			}
		})
	}
	scene("in turn", func() {
		var inside, overlaps, done atomic.Int32
		var holders sync.WaitGroup
		for i := range 20 {
			holders.Go(func() {
				for range 10 {
					r, err := []*client.Lane{la, lb}[i%2].Reserve(t.Context(), "queue", client.WithWait(time.Minute))
					if err != nil {
						t.Errorf("reserve: %v", err)
						return
					}
					if inside.Add(1) > 1 {
						overlaps.Add(1)
					}
					done.Add(1)
					inside.Add(-1)
					r.Release()
				}
			})
		}
		holders.Wait()
		if overlaps.Load() != 0 || done.Load() != 200 {
			t.Errorf("%d overlaps, %d reservations", overlaps.Load(), done.Load())
		}
	})
	scene("events wait", func() {
		r, err := la.Reserve(t.Context(), "user-1", client.WithWait(time.Minute))
		if err != nil {
			t.Fatal(err)
		}
		g.publish(10, 1) // user-0, and user-1 is not touched
		g.settled()
		before := c.events.Load()
		g.publish(9, 2)
		const others = 4 // every second one is of user-0
		g.eventually("the events of the other key are handled", func() error {
			if n := c.events.Load() - before; n < others {
				return fmt.Errorf("%d events are", n)
			}
			return nil
		})
		time.Sleep(300 * time.Millisecond)
		if n := c.events.Load() - before - others; n > 0 {
			t.Errorf("%d events were handled beside the reservation of their key", n)
		}
		r.Release()
		g.settled()
	})
	scene("cycle", func() {
		_, err := la.Invoke(t.Context(), "k", "hold", []byte("k"))
		if !errors.Is(err, client.ErrCallFailed) {
			t.Errorf("the error is %v", err)
		}
	})
	for _, m := range []*member{a, b} {
		g.eventually("nothing is left", func() error {
			if s, n := m.boxes.Stats(), m.lane.Stats().Calls; s.Visits != 0 || n != 0 {
				return fmt.Errorf("%d visits, %d callers", s.Visits, n)
			}
			return nil
		})
	}
}

// TestReservationEndsWithItsHolder: one that is not renewed ends with its last permission, and its holder knows before.
func TestReservationEndsWithItsHolder(t *testing.T) {
	t.Parallel()
	calmly(t, reservationEndsWithItsHolder)
}

func reservationEndsWithItsHolder(t testing.TB, g *group) {
	c := newCallees()
	a := g.start("a", nil)
	la := g.startCalls(a, c)
	g.ready(a)
	gone, err := client.Dial(a.endpoint)
	if err != nil {
		t.Fatal(err)
	}
	r, err := gone.Reserve(t.Context(), "k", client.WithWait(time.Minute))
	if err != nil {
		t.Fatal(err)
	}
	_ = gone.Close() // as if the process were gone
	next, err := la.Reserve(t.Context(), "k", client.WithWait(time.Minute))
	if err != nil {
		t.Fatal(err)
	}
	defer next.Release()
	wantLost(t, r)
}

// TestReservationMoves: a reservation outlasts a drain of its key's owner no longer than that may take, and never overlaps with the next.
func TestReservationMoves(t *testing.T) {
	t.Parallel()
	calmly(t, reservationMoves)
}

func reservationMoves(t testing.TB, g *group) {
	c := newCallees()
	a, b := g.start("a", func(cfg *Config) { cfg.Timing.DrainTimeout = 3 * time.Second }), g.start("b", nil)
	g.startCalls(a, c)
	lb := g.startCalls(b, c)
	g.ready(a, b)
	key := g.owned(a)
	r, err := lb.Reserve(t.Context(), key, client.WithWait(time.Minute))
	if err != nil {
		t.Fatal(err)
	}
	a.stop()
	g.eventually("the drain says what it waits for", func() error {
		if waits := a.DrainWaits(); waits != "1 key still reserved" {
			return fmt.Errorf("it waits for %q", waits)
		}
		return nil
	})
	next, err := lb.Reserve(t.Context(), key, client.WithWait(time.Minute))
	if err != nil {
		t.Fatal(err)
	}
	wantLost(t, r)
	if f, s := r.Fence(), next.Fence(); s.Token <= f.Token {
		t.Errorf("the fences are %v, then %v", f, s)
	}
	next.Release()
}

// TestReleaseOverABrokenConnection: a key whose holder has lost its connection when it releases is free as soon as the
// holder has made another one, and not only after a lease.
func TestReleaseOverABrokenConnection(t *testing.T) {
	t.Parallel()
	calmly(t, releaseOverABrokenConnection)
}

func releaseOverABrokenConnection(t testing.TB, g *group) {
	c := newCallees()
	a, b := g.start("a", nil), g.start("b", nil)
	g.startCalls(a, c)
	lb := g.startCalls(b, c)
	g.ready(a, b)
	var mu sync.Mutex
	var conns []net.Conn
	through, err := client.Dial(a.endpoint, client.WithDialer(func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := new(net.Dialer).DialContext(ctx, network, address)
		if err == nil {
			mu.Lock()
			conns = append(conns, conn)
			mu.Unlock()
		}
		return conn, err
	}))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = through.Close() }()
	key := g.owned(b)
	held, err := through.Reserve(t.Context(), key, client.WithWait(time.Minute))
	if err != nil {
		t.Fatal(err)
	}
	left := time.Until(held.Until())
	mu.Lock()
	for _, conn := range conns {
		_ = conn.Close()
	}
	mu.Unlock()
	begun := time.Now()
	held.Release()
	next, err := lb.Reserve(t.Context(), key, client.WithWait(time.Minute))
	if err != nil {
		t.Fatal(err)
	}
	defer next.Release()
	if took := time.Since(begun); took > left/2 {
		t.Errorf("the key was free after %v; the permission would have lasted for %v", took, left)
	}
}

// severed is a control log that a member has until it is cut from it, as if its process were gone.
type severed struct {
	controllog.Transport
	gone chan struct{}
}

func (s severed) Append(data []byte, done func(error)) {
	select {
	case <-s.gone:
		done(errors.New("severed"))
	default:
		s.Transport.Append(data, done)
	}
}

func (s severed) Tail(ctx context.Context, from event.Position, prefetch int, opened func(), record func(controllog.Entry)) error {
	return s.Transport.Tail(ctx, from, prefetch, opened, func(e controllog.Entry) {
		select {
		case <-s.gone:
		default:
			record(e)
		}
	})
}

// startMortal starts a member, and returns what kills it, as far as others can tell: it is cut from the log and from its peers.
func (g *group) startMortal(t *testing.T, name string) (m *member, kill func()) {
	gone := make(chan struct{})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	relay := newBreakable(t, l.Addr().String())
	m = g.startWith(name, func(cfg *Config) { cfg.PeerAddr = relay.endpoint() }, func(p *Parts) {
		_ = p.PeerListener.Close()
		p.PeerListener = l
		p.ControlLog = func() (controllog.Transport, error) { return severed{g.log, gone}, nil }
	})
	return m, sync.OnceFunc(func() { close(gone); relay.cut() })
}

// TestCoveredReservationOutlivesItsOwner: the owner of a key is killed, its holder goes on, nobody else gets the key, and the next owner renews it.
func TestCoveredReservationOutlivesItsOwner(t *testing.T) {
	t.Parallel()
	g, c := newGroup(t), newCallees()
	a, kill := g.startMortal(t, "a")
	b := g.start("b", nil)
	g.startCalls(a, c)
	lb := g.startCalls(b, c)
	g.ready(a, b)
	key := g.owned(a)
	const ttl = 20 * time.Second
	r, err := lb.Reserve(t.Context(), key, client.WithTTL(ttl), client.WithWait(time.Minute))
	if err != nil {
		t.Fatal(err)
	}
	if left := time.Until(r.Until()); left < ttl/2 || left > ttl {
		t.Errorf("the reservation lasts for %v, want nearly %v", left, ttl)
	}
	before := r.Fence()
	kill()
	other := make(chan error, 1)
	go func() {
		next, err := lb.Reserve(t.Context(), key, client.WithWait(5*time.Minute))
		if err == nil {
			if r.Context().Err() == nil {
				err = errors.New("the key was granted beside its holder")
			}
			next.Release()
		}
		other <- err
	}()
	g.eventually("the next owner has it", func() error {
		if f := r.Fence(); f.Token <= before.Token {
			return fmt.Errorf("the fence is %v, before %v", f, before)
		}
		return nil
	})
	time.Sleep(6 * time.Second) // longer than a lease and all waits for one
	if r.Context().Err() != nil {
		t.Fatalf("the reservation was lost: %v", context.Cause(r.Context()))
	}
	if left := time.Until(r.Until()); left < ttl/2 {
		t.Errorf("the next owner has not renewed it: it lasts for %v", left)
	}
	select {
	case err := <-other:
		t.Fatalf("the one that waits: %v", err)
	default:
	}
	r.Release()
	select {
	case err := <-other:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(eventually.Most):
		t.Error("after the release nobody got the key")
	}
	g.eventually("the log has it no more", func() error {
		if n := b.Status().Reserved; n != 0 {
			return fmt.Errorf("%d keys are reserved", n)
		}
		return nil
	})
}

// stalled is a control log that takes nothing for a while, from the first take of a covered reservation on that comes when it is armed.
type stalled struct {
	controllog.Transport
	armed *atomic.Bool
	until *atomic.Int64
}

func (s stalled) Append(data []byte, done func(error)) {
	if r, err := controllog.Decode("orders", data); err == nil && s.armed.Load() {
		if b, is := r.Body.(*ownership.Reservations); is && len(b.Take) > 0 {
			s.until.CompareAndSwap(0, int64(clock.Now().Add(4*time.Second))) // longer than a lease
		}
	}
	if clock.Now() < clock.Instant(s.until.Load()) {
		done(errors.New("stalled"))
		return
	}
	s.Transport.Append(data, done)
}

// TestCoveredReservationOutlastsAStallAtItsNextOwner: the control log stalls for longer than a lease just when the
// holder has come back to the next owner, which cannot promise it anything before. The promise of the former owner goes
// on, and so does the holder.
func TestCoveredReservationOutlastsAStallAtItsNextOwner(t *testing.T) {
	t.Parallel()
	g, c := newGroup(t), newCallees()
	a, kill := g.startMortal(t, "a")
	log := stalled{g.log, new(atomic.Bool), new(atomic.Int64)}
	b := g.startWith("b", nil, func(p *Parts) { p.ControlLog = func() (controllog.Transport, error) { return log, nil } })
	g.startCalls(a, c)
	lb := g.startCalls(b, c)
	g.ready(a, b)
	const ttl = 30 * time.Second
	r, err := lb.Reserve(t.Context(), g.owned(a), client.WithTTL(ttl), client.WithWait(time.Minute))
	if err != nil {
		t.Fatal(err)
	}
	defer r.Release()
	before := r.Fence()
	log.armed.Store(true)
	kill()
	g.eventually("the next owner has promised it the ttl", func() error {
		if err := context.Cause(r.Context()); err != nil {
			t.Fatalf("the reservation was lost with %v of its promise left: %v", time.Until(r.Until()), err)
		}
		if f, left := r.Fence(), time.Until(r.Until()); f.Token <= before.Token || left < ttl-2*time.Second {
			return fmt.Errorf("its fence is %v, before %v, and it lasts for %v", f, before, left)
		}
		return nil
	})
	if log.until.Load() == 0 {
		t.Error("the log has not stalled")
	}
}

// TestReleaseWhileACoveredKeyChangesItsOwner: the release reaches the next owner, and the key is free long before the ttl has passed.
func TestReleaseWhileACoveredKeyChangesItsOwner(t *testing.T) {
	t.Parallel()
	g, c := newGroup(t), newCallees()
	a, kill := g.startMortal(t, "a")
	b := g.start("b", nil)
	g.startCalls(a, c)
	lb := g.startCalls(b, c)
	g.ready(a, b)
	const ttl = 4 * time.Minute
	key := g.owned(a)
	r, err := lb.Reserve(t.Context(), key, client.WithTTL(ttl), client.WithWait(time.Minute))
	if err != nil {
		t.Fatal(err)
	}
	kill()
	time.Sleep(200 * time.Millisecond) // the stream is broken, and no next owner is known
	r.Release()
	next, err := lb.Reserve(t.Context(), key, client.WithWait(ttl/3))
	if err != nil {
		t.Fatal(err)
	}
	next.Release()
}

// TestReservationsByHTTP: a key is held by plain requests through any router, each renewal promises the ttl, and
// requests without the id are refused.
func TestReservationsByHTTP(t *testing.T) {
	t.Parallel()
	g, c := newGroup(t), newCallees()
	a, b := g.start("a", nil), g.start("b", nil)
	g.startCalls(a, c)
	lb := g.startCalls(b, c)
	g.ready(a, b)
	key := g.owned(b)
	type answer struct {
		ID      string `json:"id"`
		Token   int64  `json:"token"`
		Turn    uint64 `json:"turn"`
		ValidMS int64  `json:"valid_ms"`
	}
	ask := func(m *member, method, path string, want int) (got answer) {
		t.Helper()
		w := httptest.NewRecorder()
		(&lane.Handler{Lane: m.lane}).ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), method, "/v1/keys/"+key+"/reservations"+path, http.NoBody))
		if w.Code != want {
			t.Fatalf("%s %s: %d %s, want %d", method, path, w.Code, w.Body, want)
		}
		if want == http.StatusCreated || want == http.StatusOK {
			if err := json.Unmarshal(w.Body.Bytes(), &got); err != nil || got.Token == 0 || got.Turn == 0 || got.ValidMS < 15_000 || got.ValidMS > 20_000 {
				t.Fatalf("%s %s: %s, %v", method, path, w.Body, err)
			}
		}
		return got
	}
	first := ask(a, http.MethodPost, "?ttl=20s&wait=10s", http.StatusCreated)
	ask(b, http.MethodPost, "?ttl=20s", http.StatusLocked)
	time.Sleep(5 * time.Second) // longer than a lease
	if _, err := lb.Reserve(t.Context(), key); err == nil {
		t.Fatal("the key was granted twice")
	}
	for _, m := range []*member{b, a} {
		if again := ask(m, http.MethodPut, "/"+first.ID, http.StatusOK); again != first {
			if again.ValidMS = first.ValidMS; again != first {
				t.Errorf("renewed as %+v, want %+v", again, first)
			}
		}
	}
	other := strings.Repeat("0", 32) + "-20000"
	ask(a, http.MethodPut, "/"+other, http.StatusGone)
	ask(a, http.MethodDelete, "/"+other, http.StatusGone)
	ask(a, http.MethodGet, "/"+first.ID, http.StatusMethodNotAllowed)
	ask(a, http.MethodPut, "/"+first.ID[1:], http.StatusNotFound)
	ask(a, http.MethodPost, "?ttl=1s", http.StatusBadRequest)
	ask(a, http.MethodPost, "?ttl=20s&for=x", http.StatusBadRequest)
	ask(b, http.MethodDelete, "/"+first.ID, http.StatusNoContent)
	ask(b, http.MethodPut, "/"+first.ID, http.StatusGone)
	next, err := lb.Reserve(t.Context(), key, client.WithWait(time.Minute))
	if err != nil {
		t.Fatal(err)
	}
	next.Release()
}

// TestTTLNeedsTheNewLog: a group whose control log is in an older version refuses a ttl at once, with a code of its
// own, and grants other reservations.
func TestTTLNeedsTheNewLog(t *testing.T) {
	t.Parallel()
	g, c := newGroup(t), newCallees()
	a := g.start("a", func(cfg *Config) { cfg.LogVersion = 2 })
	la := g.startCalls(a, c)
	g.ready(a)
	_, err := la.Reserve(t.Context(), "k", client.WithTTL(20*time.Second), client.WithWait(time.Minute))
	notReserved(t, err, client.CodeNotCovered)
	r, err := la.Reserve(t.Context(), "k", client.WithWait(time.Minute))
	if err != nil {
		t.Fatal(err)
	}
	r.Release()
}
