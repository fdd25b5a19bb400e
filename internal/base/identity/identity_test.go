package identity

import (
	"strings"
	"testing"
)

func TestAgainst(t *testing.T) {
	ours := Of(Setting{"key.from", "message_key"}, Setting{"group", "orders"}, Setting{"ring.load", "1.05"})
	for name, c := range map[string]struct {
		theirs Identity
		want   string
	}{
		"equal":                    {Of(ours...), ""},
		"not known":                {nil, ""},
		"one differs":              {Of(Setting{"group", "orders"}, Setting{"key.from", "json:user"}), `key.from is "message_key" here and "json:user" there`},
		"a setting that we do not": {Of(Setting{"group", "orders"}, Setting{"zone", "a"}), ""},
		"two differ": {
			Of(Setting{"ring.load", "1.25"}, Setting{"group", "billing"}),
			`group is "orders" here and "billing" there; ring.load is "1.05" here and "1.25" there`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			if got := ours.Against(c.theirs).String(); got != c.want {
				t.Errorf("got %s, want %s", got, c.want)
			}
		})
	}
}

// TestNamesThatFollowFromTheTopics: topics are no part of an identity, so the names that follow from a mistyped one are all
// that shows it.
func TestNamesThatFollowFromTheTopics(t *testing.T) {
	const remark = "; where the retry and dead letter topics are not set, their names follow from pulsar.topics: compare these first"
	ours := Of(Setting{"key.from", "message_key"}, Setting{"pulsar.dead_letter_topic", "a-DLQ"}, Setting{"pulsar.retry_topic", "a-RETRY"})
	for name, c := range map[string]struct {
		theirs Identity
		want   string
	}{
		"both":  {Of(Setting{"pulsar.dead_letter_topic", "b-DLQ"}, Setting{"pulsar.retry_topic", "b-RETRY"}), `pulsar.dead_letter_topic is "a-DLQ" here and "b-DLQ" there; pulsar.retry_topic is "a-RETRY" here and "b-RETRY" there` + remark},
		"one":   {Of(Setting{"pulsar.retry_topic", "b-RETRY"}), `pulsar.retry_topic is "a-RETRY" here and "b-RETRY" there` + remark},
		"none":  {Of(Setting{"key.from", "json:user"}), `key.from is "message_key" here and "json:user" there`},
		"equal": {ours, ""},
	} {
		t.Run(name, func(t *testing.T) {
			if got := ours.Against(c.theirs).String(); got != c.want {
				t.Errorf("got %s, want %s", got, c.want)
			}
		})
	}
}

func TestValidate(t *testing.T) {
	many := make(Identity, SettingsMax+1)
	for name, c := range map[string]struct {
		identity Identity
		want     bool
	}{
		"none":         {nil, true},
		"in order":     {Identity{{"a", ""}, {"b", "x"}}, true},
		"out of order": {Identity{{"b", ""}, {"a", ""}}, false},
		"twice":        {Identity{{"a", "1"}, {"a", "2"}}, false},
		"no name":      {Identity{{"", "1"}}, false},
		"long value":   {Identity{{"a", strings.Repeat("x", valueMax+1)}}, false},
		"too many":     {many, false},
	} {
		if got := c.identity.Validate() == nil; got != c.want {
			t.Errorf("%s: valid %v, want %v", name, got, c.want)
		}
	}
}
