package reference

import (
	"context"
	"fmt"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/ringfence/router/internal/base/clock"
	appv1 "github.com/ringfence/router/proto/ringfence/app/v1"
	lanev1 "github.com/ringfence/router/proto/ringfence/lane/v1"
)

// setTimers is what the instructions after and after_fail say.
func (d *delivery) setTimers(wait time.Duration) {
	d.timers = []*lanev1.SendRequest{
		{Key: d.GetKey(), Name: "first", Payload: []byte("1"), AfterMs: uint64(wait.Milliseconds())},
		{Key: d.GetKey(), Name: "second", Payload: []byte("2")},
	}
}

// publish sends the timers that a handler has set, and makes a RETRY of its result if that fails.
func (s *session) publish(d *delivery, result *appv1.Result) {
	failed := result.GetKind() != appv1.ResultKind_RESULT_KIND_DONE
	if s.is("drops-timers") || failed && !s.is("timers-of-failures") {
		return
	}
	if s.is("answers-before-send") {
		s.handlers.Go(func() { _ = s.publishAll(d) })
		return
	}
	if err := s.publishAll(d); err != nil && !failed && !s.is("ignores-failed-sends") {
		result.Kind, result.Reason = appv1.ResultKind_RESULT_KIND_RETRY, "the timers are not set: "+status.Convert(err).Message()
		result.Reply = nil
	}
}

func (s *session) publishAll(d *delivery) error {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	if !s.is("waits-for-sends") {
		done := make(chan struct{})
		defer close(done)
		s.handlers.Go(func() {
			select {
			case <-d.lost:
				cancel()
			case <-done:
			}
		})
	}
	if !s.is("sends-without-token") {
		ctx = metadata.AppendToOutgoingContext(ctx, "authorization", s.bearer)
	}
	for n, timer := range d.timers {
		timer.Id = fmt.Sprintf("after/%d:%d:%d:%d/%d", d.GetLedgerId(), d.GetEntryId(), d.GetTopicPartition(), d.GetBatchIndex(), n)
		if s.is("ids-of-runs") {
			timer.Id = fmt.Sprintf("%s/%d", timer.GetId(), clock.Read().Boot)
		}
		if firing := d.GetTimer().GetFiring(); firing != nil && s.is("ids-of-firings") {
			timer.Id = fmt.Sprintf("after/%s:%d/%d", d.GetTimer().GetName(), firing.GetTimeMs(), n)
		}
		_, err := s.lane.Send(ctx, timer)
		for status.Code(err) == codes.ResourceExhausted && !s.is("sends-once") {
			time.Sleep(time.Millisecond)
			_, err = s.lane.Send(ctx, timer)
		}
		if err != nil {
			return err
		}
	}
	return nil
}
