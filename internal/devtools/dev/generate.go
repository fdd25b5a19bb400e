package dev

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/ringfence/router/internal/base/clock"
	"github.com/ringfence/router/internal/broker/membroker"
	"github.com/ringfence/router/internal/source"
)

// topic is the topic of generated events.
const topic = "persistent://public/default/ringfence-dev"

// generated is the payload of an event.
type generated struct {
	Number int    `json:"number"` // counts all events from 1
	User   string `json:"user"`   // the key
	Turn   int    `json:"turn"`   // counts those of the key from 1
}

// event returns the n-th event, from 0: every key has its turn.
func event(n, keys int) (key string, payload []byte) {
	e := generated{Number: n + 1, User: fmt.Sprintf("user-%d", n%keys+1), Turn: n/keys + 1}
	payload, _ = json.Marshal(e) // numbers and a string: it cannot fail
	return e.User, payload
}

// generate publishes events to the broker in memory until ctx ends, or until all that
// were asked for are settled. Timers of the application and firings of its schedules may
// be due in days, or again and again: they do not count.
func (s *session) generate(ctx context.Context) error {
	conn, err := grpc.NewClient(s.broker, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return fmt.Errorf("dev: %w", err)
	}
	defer conn.Close()
	broker := membroker.NewClient(conn)
	timers := source.Config{Topics: []string{topic}, Subscription: s.options.Subscription}.TimerTopic()
	ticker := time.NewTicker(lookEvery)
	defer ticker.Stop()
	begun := clock.Now()
	for sent := 0; ; {
		due := int(clock.Now().Sub(begun).Seconds() * float64(s.options.Rate))
		if s.options.Events > 0 {
			due = min(due, s.options.Events)
		}
		var entry []membroker.Message
		for ; sent < due; sent++ {
			key, payload := event(sent, s.options.Keys)
			entry = append(entry, membroker.Message{Key: key, Payload: payload})
		}
		if len(entry) > 0 {
			if _, err := broker.Publish(ctx, topic, entry); err != nil {
				return fmt.Errorf("dev: publish: %w", err)
			}
			s.published.Store(int64(sent))
		}
		if sent > 0 && sent == s.options.Events {
			stats, err := broker.SubscriptionStats(ctx, s.options.Subscription, timers)
			if err == nil && stats.Backlog+stats.Unacked == 0 {
				s.out.note("all %d events are handled", sent)
				return errAllHandled
			}
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-ticker.C:
		}
	}
}
