package client

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/ringfence/router/internal/base/event"
	"github.com/ringfence/router/internal/wire/appwire"
	appv1 "github.com/ringfence/router/proto/ringfence/app/v1"
)

// SchedulesMax is the number of schedules of one [Run].
const SchedulesMax = 256

// The router's bounds of a schedule's texts, in bytes. A router closes the connection of a Hello that is far longer
// than they allow, without a reason.
const (
	scheduleNameMax = event.SentNameMax
	scheduleCronMax = 256
	scheduleZoneMax = 64
)

// Times are the times of a schedule: see [Cron], [Every] and [At].
type Times struct{ wire *appv1.Schedule }

// Cron returns the times of a cron expression of five fields (minute, hour, day of the month, month, day of the week),
// or of one of @hourly, @daily, @weekly, @monthly and @yearly, in a time zone such as "Europe/Berlin"; "" is UTC. A
// fixed hour follows the clock on the wall: a time that is skipped when the clock goes forward fires when the gap ends;
// a time that comes twice when the clock goes back fires the first time. An hour of * fires by elapsed time.
func Cron(expression, zone string) Times {
	return Times{&appv1.Schedule{Cron: expression, Zone: zone}}
}

// Every returns the multiples of a period since 1970 in UTC: at least 10 seconds.
func Every(period time.Duration) Times {
	return Times{&appv1.Schedule{EveryMs: uint64(max(0, period.Milliseconds()))}}
}

// At returns a single time.
func At(t time.Time) Times { return Times{&appv1.Schedule{AtMs: t.UnixMilli()}} }

// MissedPolicy decides about firings that did not run in time, because no member was running or an earlier firing took too long.
type MissedPolicy int32

// The policies.
const (
	MissedLatest = MissedPolicy(appv1.MissedPolicy_MISSED_POLICY_LATEST) // the newest firing runs for all of them; the default
	MissedAll    = MissedPolicy(appv1.MissedPolicy_MISSED_POLICY_ALL)    // all run, one after the other; at most the newest 100
	MissedSkip   = MissedPolicy(appv1.MissedPolicy_MISSED_POLICY_SKIP)   // firings that are more than a minute late do not run
)

// A ScheduleOption configures a schedule.
type ScheduleOption func(*appv1.Schedule)

// WithMissed sets the policy for firings that did not run in time.
func WithMissed(p MissedPolicy) ScheduleOption {
	return func(s *appv1.Schedule) { s.Missed = appv1.MissedPolicy(p) }
}

// WithGrace sets the greatest delay with which a firing still runs: an hour by default, at most a day.
func WithGrace(d time.Duration) ScheduleOption {
	return func(s *appv1.Schedule) { s.GraceMs = uint64(max(1, d.Milliseconds())) }
}

// WithJitter spreads schedules of the same time: this schedule fires later by a time less than d that is computed from its
// name. d is at most an hour.
func WithJitter(d time.Duration) ScheduleOption {
	return func(s *appv1.Schedule) { s.JitterMs = uint64(max(0, d.Milliseconds())) }
}

// Firing is one run of a schedule.
type Firing struct {
	// Schedule is the name.
	Schedule string
	// Time is the time of the schedule that this run is for, before jitter.
	Time time.Time
	// Missed is the number of earlier times that did not run, and that this run stands for, too.
	Missed int
	// Attempt is 1 for the first run, and grows by one with each failed run.
	Attempt int
	// Fence is greater than that of any earlier run of this schedule. Pass it to your database with every write.
	Fence Fence

	event *Event
}

// After is [Event.After], of the key schedule/NAME.
func (f *Firing) After(d time.Duration, name string, payload []byte) { f.event.After(d, name, payload) }

// Progress is [Event.Progress].
func (f *Firing) Progress(ctx context.Context) error { return f.event.Progress(ctx) }

// FiringHandler runs one firing. Its context and its errors are as those of a [Handler] of events: a failed firing is retried until the
// next firing supersedes it.
type FiringHandler func(ctx context.Context, f *Firing) error

// WithSchedule declares a schedule: the handler runs at these times, once in the whole group, on the member that owns
// the key schedule/NAME, and never beside itself. It is stored nowhere: a schedule that no application of the group
// still declares does not run. All workers of a group should declare the same schedules. The router checks them: [Run] ends
// with [ErrRefused] and the name of a wrong one.
//
// A firing runs at least once. It runs twice if the owner dies between the end of the handler and the ack, so pass the
// fence, and compare the time, in your writes.
func WithSchedule(name string, times Times, handler FiringHandler, opts ...ScheduleOption) Option {
	return func(o *options) {
		_, twice := o.firings[name]
		if twice || handler == nil || times.wire == nil || name == "" || len(name) > scheduleNameMax ||
			len(times.wire.GetCron()) > scheduleCronMax || len(times.wire.GetZone()) > scheduleZoneMax ||
			checkText(name, times.wire.GetCron(), times.wire.GetZone()) != nil || strings.ContainsFunc(name, unprintable) {
			o.badSchedules = append(o.badSchedules, name)
			return
		}
		if o.firings == nil {
			o.firings = make(map[string]FiringHandler)
		}
		s := &appv1.Schedule{
			Name: name, Cron: times.wire.GetCron(), Zone: times.wire.GetZone(), EveryMs: times.wire.GetEveryMs(), AtMs: times.wire.GetAtMs(),
		}
		for _, opt := range opts {
			opt(s)
		}
		o.firings[name] = handler
		o.schedules = append(o.schedules, s)
	}
}

// unprintable reports whether no name of a schedule may have r.
func unprintable(r rune) bool { return !unicode.IsPrint(r) }

// fillTimer sets the fields of an event that a router has published.
func fillTimer(e *Event, t *appwire.Timer) {
	e.Timer = &Timer{Name: t.Name}
	if t.Due != 0 {
		e.Timer.Due = time.UnixMilli(t.Due)
	}
	e.run.firing = t.Firing
}

// withFirings returns a handler of events and firings.
func (o *options) withFirings(handler Handler) Handler {
	return func(ctx context.Context, e *Event) error {
		if e.run.firing == nil {
			return handler(ctx, e)
		}
		return o.handleFiring(ctx, e)
	}
}

// isOfSchedule reports whether a session did not begin because of one of these schedules, whose name is in the router's text. No router of
// that release takes it. Other refusals may pass, such as that of too many schedules in all workers of a router.
func (o *options) isOfSchedule(err error) bool {
	if !errors.Is(err, ErrRefused) || status.Code(err) != codes.InvalidArgument {
		return false
	}
	text := status.Convert(err).Message()
	return slices.ContainsFunc(o.schedules, func(s *appv1.Schedule) bool { return strings.Contains(text, fmt.Sprintf("schedule %q", s.GetName())) })
}

var errNoSchedule = errors.New("client: this schedule is not declared here")

func (o *options) handleFiring(ctx context.Context, e *Event) error {
	run := o.firings[e.Timer.Name]
	if run == nil { // the router sends a firing only to workers that declared its schedule
		return fmt.Errorf("%w: %q", errNoSchedule, e.Timer.Name)
	}
	return run(ctx, &Firing{
		Schedule: e.Timer.Name, Time: time.UnixMilli(e.run.firing.Time), Missed: int(e.run.firing.Missed), Attempt: e.Attempt, Fence: e.Fence, event: e,
	})
}
