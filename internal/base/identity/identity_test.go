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
