package config_test

import (
	"fmt"
	"testing"

	"github.com/ringfence/router/internal/config"
)

func TestMisspelledVariables(t *testing.T) {
	got := config.MisspelledVariables([]string{
		"RINGFENCE_PULSAR_URL=pulsar://b:6650", "RINGFENCE_PULSAR_URL=twice",
		"RINGFENCE_OWNERSHIP__LEASE=2s",       // one of two
		"RINGFENCE_ADMIN_TOKEN_FILE=/t",       // with a file
		"RINGFENCE_ADMIN_DRAIN_TOKEN_FILE=/t", // the file of a secret
		"RINGFENCE_APP_ENDPOINT=a",            // of the SDKs
		"RINGFENCE_APP_TOKEN_FILE=/t",         // the same
		"RINGFENCE_OWNERSHIP_JOURNAL=/j",      // no setting
		"RINGFENCE_SERVICE_HOST=10.0.0.1",     // of a Service
		"RINGFENCE__NODE__NAME=good",          // right
		"PULSAR_URL=other", "RINGFENCE_=x",    // none of ours
	})
	want := []config.Misspelled{
		{Variable: "RINGFENCE_ADMIN_DRAIN_TOKEN_FILE", Want: "RINGFENCE__ADMIN__DRAIN_TOKEN_FILE"},
		{Variable: "RINGFENCE_ADMIN_TOKEN_FILE", Want: "RINGFENCE__ADMIN__TOKEN_FILE"},
		{Variable: "RINGFENCE_OWNERSHIP__LEASE", Want: "RINGFENCE__OWNERSHIP__LEASE"},
		{Variable: "RINGFENCE_PULSAR_URL", Want: "RINGFENCE__PULSAR__URL"},
	}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("%v, want %v", got, want)
	}
	if all := config.MisspelledVariables(nil); len(all) > 0 {
		t.Errorf("of no variables: %v", all)
	}
}

func TestValuesOfSettings(t *testing.T) {
	values := config.Values()
	for key, want := range map[string]string{
		"ownership.profile": "[default fast calm]", "pulsar.batch_index_acks": "[true false]",
		"log.level": "[debug info warn error]", "mailbox.depth_max": "[]",
	} {
		if got := fmt.Sprint(values[key]); got != want {
			t.Errorf("%s has the values %s, want %s", key, got, want)
		}
	}
	names := config.Names()
	if len(names) < 100 || len(values) >= len(names) {
		t.Errorf("%d settings, %d of them with values", len(names), len(values))
	}
}
