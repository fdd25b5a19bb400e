package pulsarlog

import (
	"bytes"
	"errors"
	"log/slog"
	"net"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
	"github.com/apache/pulsar-client-go/pulsar/log"
	"google.golang.org/protobuf/types/descriptorpb"
)

const planted = "planted-secret"

// logged returns the log of use at a level.
func logged(level slog.Level, use func(log.Logger)) string {
	var text bytes.Buffer
	use(New(slog.New(slog.NewTextHandler(&text, &slog.HandlerOptions{Level: level}))))
	return text.String()
}

type holder struct{ Payload, Key string }

func (h holder) String() string { return h.Key + h.Payload }

// An argument that may hold a message is never written, by any method and in any format.
func TestContentsAreNotWritten(t *testing.T) {
	key := planted
	contents := map[string]any{
		"a message to be sent": pulsar.ProducerMessage{Key: key, Payload: []byte(planted), Properties: map[string]string{"a": planted}},
		"a pointer to one":     &pulsar.ProducerMessage{Key: key, Payload: []byte(planted)},
		"bytes":                []byte(planted),
		"properties":           map[string]string{"a": planted},
		"a buffer":             bytes.NewBufferString(planted),
		"a type with words":    holder{planted, key},
		"a pointer to text":    &key,
		"a list":               []any{planted},
		"a command": &descriptorpb.FieldDescriptorProto{
			Name: &key, Type: descriptorpb.FieldDescriptorProto_TYPE_BYTES.Enum(),
		},
	}
	for name, content := range contents {
		text := logged(slog.LevelDebug, func(l log.Logger) {
			l.Debug("Received: ", content)
			l.Error(content, content)
			l.Infof("Received %s -- payload: %v %+v %#v %q %x %d", content, content, content, content, content, content, content)
			l.Warnf("no verb", content)
			l.WithField("message", content).Errorf("%v", content)
			l.WithFields(log.Fields{"message": content}).Info("")
			l.SubLogger(log.Fields{"message": content}).Debug("")
			l.SubLogger(nil).WithFields(nil).WithField("m", content).Debugf("%s", content)
		})
		if strings.Contains(text, planted) || strings.Contains(text, "706c616e746564") {
			t.Errorf("%s is written:\n%s", name, text)
		}
		if strings.Count(text, "\n") != 8 {
			t.Errorf("%s: %d lines, want 8:\n%s", name, strings.Count(text, "\n"), text)
		}
	}
}

// Facts that help to find a fault are written.
func TestFactsAreWritten(t *testing.T) {
	broker := &url.URL{Scheme: "pulsar", Host: "broker:6650", User: url.UserPassword("me", planted)}
	addr := &net.TCPAddr{IP: net.IPv4(10, 0, 0, 7), Port: 6650}
	var none *url.URL
	kind := descriptorpb.FieldDescriptorProto_TYPE_BYTES
	text := logged(slog.LevelInfo, func(l log.Logger) {
		l.Debug("below the level")
		l.Debugf("below %s", "the level")
		l.Info("Received command: ", &descriptorpb.FieldDescriptorProto{Type: &kind})
		l.WithError(errors.New("no route")).Warnf("took %v, %d times, to %s from %v, %v, %s", time.Second, 3, broker, addr, none, nil)
		l.SubLogger(log.Fields{"topic": []string{"a", "b"}}).WithField("msgID", pulsar.EarliestMessageID()).Error("lost: ", &kind, true, strings.Repeat("x", 2*textMax))
	})
	for _, want := range []string{
		`msg="Received command: FieldDescriptorProto TYPE_BYTES"`, `error="no route"`, "took 1s, 3 times, to pulsar://me:xxxxx@broker:6650 from 10.0.0.7:6650, nothing, nothing",
		`topic="a, b"`, "msgID=-1:-1", "TYPE_BYTES true", strings.Repeat("x", textMax) + "…",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("%q is missing in\n%s", want, text)
		}
	}
	if strings.Contains(text, "below") || strings.Contains(text, planted) || strings.Contains(text, strings.Repeat("x", textMax+1)) {
		t.Errorf("too much is written:\n%s", text)
	}
}

// The router creates a subscription with a consumer, and another consumer shows that it exists: that is no error. All other refusals are.
func TestASubscriptionWithAConsumerIsNoError(t *testing.T) {
	busy := errors.New("server error: ConsumerBusy: Exclusive consumer is already connected")
	lines := func(l log.Logger) {
		l.WithError(busy).Error("Failed to create consumer")
		l.WithError(busy).WithField("a", 1).WithFields(log.Fields{"topic": "t"}).Error("Failed to create consumer")
	}
	if text := logged(slog.LevelInfo, lines); text != "" {
		t.Errorf("written:\n%s", text)
	}
	if text := logged(slog.LevelDebug, lines); strings.Count(text, "level=DEBUG") != 2 {
		t.Errorf("at debug:\n%s", text)
	}
	if text := logged(slog.LevelError, func(l log.Logger) {
		l.WithError(errors.New("server error: AuthorizationError: no")).Error("Failed to create consumer")
		l.WithError(busy).Error("Failed to create consumer at reconnect")
		l.WithError(nil).Error("Failed to create consumer")
	}); strings.Count(text, "level=ERROR") != 3 {
		t.Errorf("other errors:\n%s", text)
	}
}

// The router creates a subscription with a consumer that it closes at once. The client's two lines about that are no errors; others are.
func TestAConsumerThatIsClosedAtOnceIsNoError(t *testing.T) {
	lines := func(l log.Logger) {
		l.WithField("state", 2).Error("Failed to redeliver closing or closed consumer")
		l.WithError(errors.New("consumer closing or closed")).Error("unable to send initial permits to broker")
	}
	if text := logged(slog.LevelInfo, lines); text != "" {
		t.Errorf("written:\n%s", text)
	}
	if text := logged(slog.LevelDebug, lines); strings.Count(text, "level=DEBUG") != 2 {
		t.Errorf("at debug:\n%s", text)
	}
	if text := logged(slog.LevelError, func(l log.Logger) {
		l.WithError(errors.New("connection closed")).Error("unable to send initial permits to broker")
	}); text == "" {
		t.Error("another error is not written")
	}
}
