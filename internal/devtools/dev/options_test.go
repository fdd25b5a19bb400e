package dev

import (
	"strings"
	"testing"
)

// TestSettingsOfTheGroupItself: a setting by which the command tells its members apart, or knows its events, is refused. With other
// topics it would say that all events are handled when none was, and members of one name would wait for each other.
func TestSettingsOfTheGroupItself(t *testing.T) {
	o := DefaultOptions()
	o.Exec = "true"
	for _, setting := range []string{"node.name=a", "admin.listen=127.0.0.1:1", "gossip.seeds=a:1", "pulsar.topics=orders", "pulsar.subscription=other"} {
		o.Settings = []string{setting}
		if key, _, _ := strings.Cut(setting, "="); o.Validate() == nil || !strings.Contains(o.Validate().Error(), "--set "+key) {
			t.Errorf("--set %s: %v", setting, o.Validate())
		}
	}
	o.Settings = []string{"retry.attempts_max=3"}
	if err := o.Validate(); err != nil {
		t.Error(err)
	}
}
