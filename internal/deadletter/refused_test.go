package deadletter

import (
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"

	"github.com/ringfence/router/internal/broker/pulsaradmin"
	"github.com/ringfence/router/internal/broker/pulsartest"
	"github.com/ringfence/router/internal/source"
	"github.com/ringfence/router/internal/testing/eventually"
)

// limit makes the group's topic refuse messages of more than so many bytes.
func (g *group) limit(bytes int) {
	g.t.Helper()
	path := pulsaradmin.TopicPath(g.topic) + "/maxMessageSize"
	pulsartest.Admin(g.t, http.MethodPost, path, bytes, nil)
	eventually.True(g.t, "the topic limits sizes", func() bool {
		var applied int
		pulsartest.Admin(g.t, http.MethodGet, path, nil, &applied)
		return applied == bytes
	})
	pulsartest.Unload(g.t, g.topic) // it takes in the policy when it is loaded
}

// newImpatientGroup returns a group whose topic is kept, and whose answers are waited for briefly: some never come.
func newImpatientGroup(t *testing.T) *group {
	t.Helper()
	g := newGroup(t, 0)
	g.cfg.AnswerMax = 5 * time.Second
	g.over(g.client)
	g.keep(g.topic, "orders")
	return g
}

// newLimitedGroup returns a group whose topic refuses messages of more than 1000 bytes, and whose letters 3 and 4 are larger. Letters 1 and 3 have a schema version.
func newLimitedGroup(t *testing.T) *group {
	g := newImpatientGroup(t)
	g.publish(g.topic, pulsar.ProducerMessage{Payload: []byte("before")}) // so that the topic has an end
	g.limit(1000)
	large, larger := g.letter(3), g.letter(4)
	large.Payload, larger.Payload = []byte(strings.Repeat("3", 2000)), []byte(strings.Repeat("4", 3000))
	small := g.letter(1)
	small.Properties[source.PropertySchema], large.Properties[source.PropertySchema] = "0000000000000001", "0000000000000001"
	g.publish(g.cfg.LettersTopic, small)
	g.publish(g.cfg.LettersTopic, larger, large)
	g.letters(2)
	return g
}

// TestRefusedLetters: letters that a policy of their topic refuses remain and are named, and the others are sent, once.
func TestRefusedLetters(t *testing.T) {
	t.Parallel()
	g := newLimitedGroup(t)
	waiting := strings.Repeat("3", 2000) + " " + strings.Repeat("4", 3000)
	for round, sent := range []int{2, 0} {
		c, err := g.replay(Selection{}, nil)
		if !errors.Is(err, ErrNotSent) || !strings.Contains(err.Error(), "; 2 that are no smaller remain") {
			t.Errorf("replay %d: %v", round, err)
		}
		if c.Sent != sent || c.Obstacles[ObstacleRefused] != 2 || len(c.Refused) != 2 {
			t.Errorf("replay %d: %+v", round, c)
		}
		if want := []int{1, 0}[round]; c.Schema != want {
			t.Errorf("replay %d: %d were sent without their schema version, want %d", round, c.Schema, want)
		}
		for i, want := range [][]string{{":2:-1:-1 of 2", g.topic + " has not taken it"}, {":1:-1:-1 of 3", "not tried, since " + g.topic + " has not taken one of 2"}} { // the smaller one was tried first
			if i < len(c.Refused) && (!strings.Contains(c.Refused[i], want[0]) || !strings.Contains(c.Refused[i], want[1])) {
				t.Errorf("replay %d: %q is refused, want letter %q… bytes", round, c.Refused[i], want)
			}
		}
		if got := g.waiting(); got != waiting {
			t.Errorf("replay %d: these wait: %.20q…", round, got)
		}
		g.wantHeld("with the limit", "1", "2", "before")
		if last := g.acts[len(g.acts)-1]; last.Step != StepEnded {
			t.Errorf("the act has not ended: %+v", last)
		}
	}
	g.limit(1 << 20)
	if c := g.mustReplay(Selection{}, nil); c.Sent != 2 || c.SentBefore+len(c.Refused) != 0 || c.Schema != 1 {
		t.Errorf("with a higher limit: %+v", c)
	}
	g.wantHeld("at the end", "1", "2", strings.Repeat("3", 2000), strings.Repeat("4", 3000), "before")
}

// TestARefusedLetterThatIsShownTwice remains, too.
func TestARefusedLetterThatIsShownTwice(t *testing.T) {
	t.Parallel()
	g := newLimitedGroup(t)
	client := g.client
	g.over(repeating{client})
	if c, err := g.replay(Selection{}, nil); !errors.Is(err, ErrNotSent) || c.Sent != 2 || c.Obstacles[ObstacleRefused] != 2 {
		t.Errorf("%+v, %v", c, err)
	}
	g.over(client)
	if got := g.waiting(); len(got) != 5001 {
		t.Errorf("these wait: %.20q…, want the refused ones", got)
	}
}

// TestRefusedLettersBesideATopicThatWasEmpty: a topic that held no message before, and has taken its letters, leaves nothing in doubt.
func TestRefusedLettersBesideATopicThatWasEmpty(t *testing.T) {
	t.Parallel()
	g := newLimitedGroup(t)
	empty := pulsartest.Topic(t, 0)
	g.cfg.Topics = append(g.cfg.Topics, empty)
	g.over(g.client)
	g.keep(empty, "orders")
	letter := g.letter(5)
	letter.Properties[source.PropertyTopic] = empty
	g.publish(g.cfg.LettersTopic, letter)
	if c, err := g.replay(Selection{}, nil); !errors.Is(err, ErrNotSent) || c.Sent != 3 || c.Obstacles[ObstacleRefused] != 2 {
		t.Errorf("%+v, %v", c, err)
	}
	if got := g.held(empty); got["5"] != 1 || len(got) != 1 {
		t.Errorf("the topic that was empty holds %v, want letter 5 once", got)
	}
}

// TestRefusedEvents: an event that a policy refuses since it was published stops no replay of the others.
func TestRefusedEvents(t *testing.T) {
	t.Parallel()
	g := newImpatientGroup(t)
	for _, payload := range []string{"1", strings.Repeat("2", 2000), "3"} {
		g.publish(g.topic, pulsar.ProducerMessage{Payload: []byte(payload)})
	}
	g.limit(1000)
	sel := Selection{Since: time.Now().Add(-time.Minute), Until: time.Now().Add(time.Minute), Run: "r"}
	for round, sent := range []int{2, 0} {
		c, err := g.ReplayEvents(t.Context(), sel, Options{Rate: 1000, Max: 100})
		if !errors.Is(err, ErrNotSent) || c.Sent != sent || c.Obstacles[ObstacleRefused] != 1 {
			t.Errorf("replay %d: %+v, %v", round, c, err)
		}
	}
	if got := g.held(g.topic); got["1"] != 2 || got["3"] != 2 || len(got) != 3 {
		t.Errorf("the topic holds %d payloads, 1 and 3 %d and %d times, want each twice", len(got), got["1"], got["3"])
	}
}
