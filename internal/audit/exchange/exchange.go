// Package exchange carries reports of handlings from the process where handlers ran to the one that compares them, and
// measures how far the clocks of the two may differ.
//
// A [Link] is the sender's end, a [Receiver] the other. Each report is also a question for the receiver's clock; its answer
// is a [audit.Trip] that the next report carries. So a sender first calls [Link.Measure], and right then reports.
//
// # Concurrency
//
// A Link is for one goroutine; a Receiver is safe for concurrent use.
package exchange

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/ringfence/router/internal/audit"
	"github.com/ringfence/router/internal/base/clock"
	"github.com/ringfence/router/internal/base/event"
	"github.com/ringfence/router/internal/base/partition"
	"github.com/ringfence/router/internal/netx/greet"
	"github.com/ringfence/router/internal/wire/hotframe"
	auditv1 "github.com/ringfence/router/proto/ringfence/audit/v1"
)

// Bounds of one report.
const (
	HandlingsMax = 10_000
	TripsMax     = 16
	NameMax      = 256     // bytes of a group's or member's name
	BytesMax     = 1 << 20 // of a report, encoded
)

// Incarnation names one process lifetime; the zero one is none.
type Incarnation [16]byte

// Report is one process's report of its handlings.
type Report struct {
	Group, Member   string
	Incarnation, To Incarnation
	Clock           audit.Clock
	Trips           []audit.Trip
	Handlings       []audit.Handling
	OmittedUntil    time.Duration // handlings that ended before may be missing; 0: none is
	Waits           Waits
	Moves           []byte // what a leaving member knows of moves, for router rollout: the rest of the report is empty then
}

// Waits are counters of a process whose handlers are not Ringfence's.
type Waits struct {
	Dropped  uint64 // handlings that were not reported
	Acquired uint64 // handlings for which a lock was acquired
	Waited   time.Duration
	Longest  time.Duration
	Expired  uint64 // handlings that continued after their lock had expired
}

// errReport is the root of what is wrong with a report.
var errReport = errors.New("exchange: malformed report")

// Remote returns the clocks of the report as its receiver sees them.
func (r *Report) Remote(here audit.Clock) audit.Remote {
	return audit.Remote{Sender: r.Clock, Receiver: here, Trips: r.Trips}
}

// encode returns the wire form of r.
func (r *Report) encode() ([]byte, error) {
	m := &auditv1.Report{
		Group: r.Group, Member: r.Member, Incarnation: r.Incarnation[:], ToIncarnation: r.To[:],
		Clock: &auditv1.Clock{
			Id: r.Clock.ID[:], BootNs: int64(r.Clock.Boot), LeaseNs: int64(r.Clock.Lease), SinceNs: int64(r.Clock.Since), WanderNs: int64(r.Clock.Wander), Slewed: r.Clock.Slewed,
		},
		OmittedUntilNs: int64(r.OmittedUntil),
		Moves:          r.Moves,
		Waits: &auditv1.Waits{
			Dropped: r.Waits.Dropped, Acquired: r.Waits.Acquired, WaitedNs: uint64(r.Waits.Waited), LongestNs: uint64(r.Waits.Longest), Expired: r.Waits.Expired,
		},
	}
	for _, t := range r.Trips {
		m.Trips = append(m.Trips, &auditv1.Trip{SentNs: int64(t.Sent), BackNs: int64(t.Back), ThereNs: int64(t.There)})
	}
	for i := range r.Handlings {
		h := &r.Handlings[i]
		m.Handlings = append(m.Handlings, &auditv1.Handling{
			Key: uint64(h.Key), Partition: uint32(h.Partition), Token: h.Fence.Token, Turn: h.Fence.Turn,
			StartedNs: int64(h.Start), TookNs: int64(h.End - h.Start), Worker: h.Worker,
		})
	}
	b, err := proto.Marshal(m)
	if err != nil {
		return nil, fmt.Errorf("exchange: %w", err)
	}
	return b, nil
}

// decode reads a report. The sender may be anybody.
func decode(b []byte) (*Report, error) {
	if trips, handlings := countItems(b); trips > TripsMax || handlings > HandlingsMax { // before they take memory
		return nil, fmt.Errorf("%w: %d trips and %d handlings, want at most %d and %d", errReport, trips, handlings, TripsMax, HandlingsMax)
	}
	m := new(auditv1.Report)
	if proto.Unmarshal(b, m) != nil {
		return nil, errReport
	}
	c, w := m.GetClock(), m.GetWaits()
	switch {
	case len(m.GetGroup()) > NameMax || len(m.GetMember()) > NameMax:
		return nil, fmt.Errorf("%w: a name of more than %d bytes", errReport, NameMax)
	case len(c.GetId()) != len(audit.ClockID{}) || len(m.GetIncarnation()) != len(Incarnation{}):
		return nil, fmt.Errorf("%w: an id that is not 16 bytes long", errReport)
	case !instants(c.GetBootNs(), c.GetLeaseNs(), c.GetSinceNs(), c.GetWanderNs(), m.GetOmittedUntilNs()):
		return nil, fmt.Errorf("%w: an instant out of bounds", errReport)
	}
	r := &Report{
		Group: m.GetGroup(), Member: m.GetMember(), Incarnation: Incarnation(m.GetIncarnation()),
		Clock: audit.Clock{
			ID: audit.ClockID(c.GetId()), Boot: time.Duration(c.GetBootNs()), Lease: time.Duration(c.GetLeaseNs()),
			Since: time.Duration(c.GetSinceNs()), Wander: time.Duration(c.GetWanderNs()), Slewed: c.GetSlewed(),
		},
		OmittedUntil: time.Duration(m.GetOmittedUntilNs()),
		Waits: Waits{
			Dropped: w.GetDropped(), Acquired: w.GetAcquired(), Expired: w.GetExpired(),
			Waited: durationOf(w.GetWaitedNs()), Longest: durationOf(w.GetLongestNs()),
		},
		Moves: m.GetMoves(),
	}
	if to := m.GetToIncarnation(); len(to) == len(r.To) {
		r.To = Incarnation(to)
	}
	for _, t := range m.GetTrips() {
		if !instants(t.GetSentNs(), t.GetBackNs(), t.GetThereNs()) || t.GetBackNs() < t.GetSentNs() {
			return nil, fmt.Errorf("%w: a trip out of bounds", errReport)
		}
		r.Trips = append(r.Trips, audit.Trip{Sent: time.Duration(t.GetSentNs()), Back: time.Duration(t.GetBackNs()), There: time.Duration(t.GetThereNs())})
	}
	r.Handlings = make([]audit.Handling, len(m.GetHandlings()))
	for i, h := range m.GetHandlings() {
		if !instants(h.GetStartedNs(), h.GetTookNs()) || h.GetPartition() >= partition.Count {
			return nil, fmt.Errorf("%w: a handling out of bounds", errReport)
		}
		start := time.Duration(h.GetStartedNs())
		r.Handlings[i] = audit.Handling{
			Key: partition.KeyHash(h.GetKey()), Partition: partition.ID(h.GetPartition()), Worker: h.GetWorker(),
			Fence: event.Fence{Token: h.GetToken(), Turn: h.GetTurn()}, Start: start, End: start + time.Duration(h.GetTookNs()),
		}
	}
	return r, nil
}

// The numbers of the fields of a Report that repeat.
const (
	fieldTrips     = 6
	fieldHandlings = 7
)

// countItems counts what repeats in a report, up to its first malformed field, where the generated code fails too.
func countItems(b []byte) (trips, handlings int) {
	for num := range hotframe.Fields(b) {
		switch num {
		case fieldTrips:
			trips++
		case fieldHandlings:
			handlings++
		}
	}
	return trips, handlings
}

// instantMax keeps sums and differences of instants from overflowing: 36 years.
const instantMax = 1 << 60

func instants(all ...int64) bool {
	for _, i := range all {
		if i < 0 || i > instantMax {
			return false
		}
	}
	return true
}

func durationOf(ns uint64) time.Duration { return time.Duration(min(ns, math.MaxInt64)) }

// signedText returns the text that a report's signature is of.
func signedText(report []byte) []byte { return append([]byte("ringfence audit v1"), report...) }

// Link is the sender's end.
type Link struct {
	// Sign signs a text, nil for a receiver that asks for no signature.
	Sign func(text []byte) []byte

	client auditv1.AuditServiceClient
	trips  []audit.Trip
}

// NewLink returns a Link on a connection, which the caller closes after its use.
func NewLink(conn grpc.ClientConnInterface) *Link {
	return &Link{client: auditv1.NewAuditServiceClient(conn)}
}

// Measure sends r without handlings, so that the next report has a fresh trip.
func (l *Link) Measure(ctx context.Context, r Report) error {
	r.Handlings, r.OmittedUntil, r.Moves = nil, 0, nil
	return l.Send(ctx, r)
}

// Send sends a report, with the newest trips of this link. The caller has set all else, the clock right before.
func (l *Link) Send(ctx context.Context, r Report) error {
	r.Trips = l.trips
	report, err := r.encode()
	if err != nil {
		return err
	}
	request := &auditv1.ReportRequest{Report: report}
	if l.Sign != nil {
		request.Signature = l.Sign(signedText(report))
	}
	sent := clock.Now()
	answer, err := l.client.Report(ctx, request)
	back := clock.Now()
	if err != nil {
		return fmt.Errorf("exchange: report: %w", err)
	}
	if len(l.trips) == TripsMax {
		l.trips = l.trips[1:]
	}
	l.trips = append(l.trips, audit.Trip{Sent: time.Duration(sent), Back: time.Duration(back), There: time.Duration(answer.GetLeaseNs())})
	return nil
}

// Receiver is the receiver's end, an AuditService.
type Receiver struct {
	auditv1.UnimplementedAuditServiceServer

	// Take takes a report in, or returns a reason to refuse it. signed reports whether the report has a valid signature by a key.
	Take func(r *Report, signed func(verify func(text, signature []byte) bool) bool) error
}

// Register makes a gRPC server answer.
func (s *Receiver) Register(server grpc.ServiceRegistrar) {
	auditv1.RegisterAuditServiceServer(server, s)
}

// Report implements auditv1.AuditServiceServer.
func (s *Receiver) Report(ctx context.Context, request *auditv1.ReportRequest) (*auditv1.ReportResponse, error) {
	now := clock.Now()
	if len(request.GetReport()) > BytesMax {
		return nil, status.Errorf(codes.InvalidArgument, "a report of %d bytes, want at most %d", len(request.GetReport()), BytesMax)
	}
	r, err := decode(request.GetReport())
	if err != nil {
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	signed := func(verify func(text, signature []byte) bool) bool {
		return verify(signedText(request.GetReport()), request.GetSignature())
	}
	if err := s.Take(r, signed); err != nil {
		return nil, status.Error(codes.PermissionDenied, err.Error())
	}
	greet.Greeted(ctx)
	return &auditv1.ReportResponse{LeaseNs: int64(now)}, nil
}
