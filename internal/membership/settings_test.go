package membership

import (
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/ringfence/router/internal/base/identity"
	"github.com/ringfence/router/internal/testing/eventually"
	"github.com/ringfence/router/internal/testing/written"
)

// Two members that differ in a setting find each other: both name it with both values, and neither ends.
func TestSettingsThatDifferAreCountedAndNamed(t *testing.T) {
	t.Parallel()
	of := func(from string) identity.Identity {
		return identity.Of(identity.Setting{Name: "key.from", Value: from})
	}
	var said written.Text
	a := startNodeOf(t, testConfig("a"), of("message_key"), slog.New(slog.NewTextHandler(&said, nil)))
	cfg := testConfig("b")
	cfg.Seeds = []string{a.gossip.Addr()}
	b := startNodeOf(t, cfg, of("json:user"), quiet())
	eventually.NoError(t, eventually.Most, "both have noticed", func() error {
		if testutil.ToFloat64(a.gossip.metrics.otherSettings) == 0 || testutil.ToFloat64(b.gossip.metrics.otherSettings) == 0 {
			return errors.New("one has not")
		}
		return nil
	})
	want := `key.from is \"message_key\" here and \"json:user\" there`
	eventually.NoError(t, eventually.Most, "a says so", func() error { // the line comes after the count
		if !strings.Contains(said.String(), want) {
			return fmt.Errorf("the log has no line with %s:\n%s", want, said.String())
		}
		return nil
	})
}

// An outsider's messages are bounded: a flood of them is counted, and logged once.
func TestForgedSettingsAreCounted(t *testing.T) {
	var said written.Text
	metrics := NewMetrics(prometheus.NewRegistry())
	ours := identity.Of(identity.Setting{Name: "key.from", Value: "message_key"})
	s, err := newSettings(Member{Name: "a", Inc: newInc()}, ours, metrics, slog.New(slog.NewTextHandler(&said, nil)))
	if err != nil {
		t.Fatal(err)
	}
	forged, err := newSettings(Member{Name: strings.Repeat("x", 10_000), Inc: newInc()}, identity.Of(identity.Setting{Name: "key.from", Value: "y"}), metrics, quiet())
	if err != nil {
		t.Fatal(err)
	}
	for range 1000 {
		s.merge(forged.encoded)
		s.merge([]byte("no protobuf message"))
		s.merge(make([]byte, settingsBytesMax+1))
	}
	s.merge(nil) // a router of an earlier release
	if got := testutil.ToFloat64(metrics.otherSettings); got != 1000 {
		t.Errorf("%v exchanges with other settings are counted, want 1000", got)
	}
	if got := testutil.ToFloat64(metrics.bad); got != 2000 {
		t.Errorf("%v exchanges that cannot be read are counted, want 2000", got)
	}
	if n := len(said.String()); n > 1000 || n == 0 {
		t.Errorf("%d bytes of log, want one short line", n)
	}
}

// Settings of no member are only counted, though they differ: too many bytes, too many settings, and names out of order.
func TestSettingsOutOfBoundsAreCounted(t *testing.T) {
	metrics := NewMetrics(prometheus.NewRegistry())
	ours := identity.Of(identity.Setting{Name: "key.from", Value: "message_key"})
	s, err := newSettings(Member{Name: "a", Inc: newInc()}, ours, metrics, quiet())
	if err != nil {
		t.Fatal(err)
	}
	other := identity.Setting{Name: "key.from", Value: "y"}
	var many identity.Identity
	for n := range identity.SettingsMax + 1 {
		many = append(many, identity.Setting{Name: fmt.Sprintf("n%03d", n)})
	}
	for name, theirs := range map[string]identity.Identity{strings.Repeat("x", settingsBytesMax): {other}, "many": many, "out of order": {other, other}} {
		forged, err := newSettings(Member{Name: name, Inc: newInc()}, theirs, metrics, quiet())
		if err != nil {
			t.Fatal(err)
		}
		before := testutil.ToFloat64(metrics.bad)
		if s.merge(forged.encoded); testutil.ToFloat64(metrics.bad) != before+1 {
			t.Errorf("%.20s is taken", name)
		}
	}
	if got := testutil.ToFloat64(metrics.otherSettings); got != 0 {
		t.Errorf("%v exchanges with other settings are counted, want 0", got)
	}
}
