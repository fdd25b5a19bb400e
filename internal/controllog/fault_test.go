package controllog

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/apache/pulsar-client-go/pulsar"

	"github.com/ringfence/router/internal/broker/entries"
	"github.com/ringfence/router/internal/ownership"
)

// A topic that cannot be written to is named with its remedy in the log, and in the error of each record.
func TestATopicThatCannotBeWrittenHasARemedy(t *testing.T) {
	for answer, remedy := range map[string]string{
		"server error: AuthorizationError":                                 "persistent://public/default/log: server error: AuthorizationError; grant the router's role produce and consume",
		"server error: TopicTerminatedError: Topic was already terminated": "pulsar-admin topics delete --force persistent://public/default/log",
	} {
		t.Run(answer, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var said strings.Builder
				cfg := DefaultPulsarConfig()
				cfg.Topic = "persistent://public/default/log"
				p, err := NewPulsar(cfg, pulsar.ClientOptions{URL: "pulsar://a"}, entries.Access{}, slog.New(slog.NewTextHandler(&said, nil)))
				if err != nil {
					t.Fatal(err)
				}
				ctx, stop := context.WithCancel(t.Context())
				var running sync.WaitGroup
				running.Go(func() { _ = p.insist(ctx, "producer", func() error { return errors.New(answer) }) })
				synctest.Wait() // for its next attempt
				p.Append([]byte("record"), func(err error) {
					if !errors.Is(err, errNotConnected) || !strings.Contains(err.Error(), remedy) {
						t.Errorf("the error of a record is %v, want %q in it", err, remedy)
					}
				})
				stop()
				running.Wait()
				if lines := said.String(); !strings.Contains(lines, "broker not reached") || !strings.Contains(lines, remedy) {
					t.Errorf("no line with %q: %s", remedy, lines)
				}
			})
		})
	}
}

// The fault of a log is that of the newest record, or of the newest reader. A record that was not sent, since others are under way, tells nothing.
func TestLogFault(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		slow, denied := &slowAppends{Mem: NewMem()}, errors.New("denied")
		n := startLog(t, slow)
		n.log.Append(ownership.Append{Record: beat(0)})
		slow.release(denied)
		if err := n.log.Fault(); !errors.Is(err, denied) {
			t.Errorf("Fault = %v after a failed record, want %v", err, denied)
		}
		for seq := range uint64(3) {
			n.log.Append(ownership.Append{Record: beat(1 + seq)})
		}
		if err := n.log.Fault(); !errors.Is(err, denied) {
			t.Errorf("Fault = %v while records are under way, want %v", err, denied)
		}
		slow.release(nil)
		if err := n.log.Fault(); err != nil {
			t.Errorf("Fault = %v after a record that was written, want none", err)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		n := startLog(t, &brokenTails{Mem: NewMem()})
		n.log.OpenReader(ownership.OpenReader{Reader: 1})
		synctest.Wait()
		if err := n.log.Fault(); !errors.Is(err, ErrReaderLost) {
			t.Errorf("Fault = %v after a reader was lost, want %v", err, ErrReaderLost)
		}
	})
}
