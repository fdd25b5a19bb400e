package main

import (
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/ringfence/router/internal/config"
	"github.com/ringfence/router/internal/pipeline"
	"github.com/ringfence/router/internal/telemetry"
)

const (
	referencePage = "../../docs/reference.md"
	alertsPage    = "../../docs/alerts.md"
	renderedMixin = "../../deploy/mixin/rendered"
)

func read(t *testing.T, path string) string {
	t.Helper()
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(content)
}

// settings returns the settings of a router with only the mandatory values.
func settings(t *testing.T) *config.Loaded {
	t.Helper()
	loaded, err := config.Load(config.Sources{Environ: []string{
		"RINGFENCE__NODE__GROUP=orders", "RINGFENCE__NODE__NAME=router-0",
		"RINGFENCE__PULSAR__TOPICS=orders", "RINGFENCE__PULSAR__SUBSCRIPTION=orders",
		"RINGFENCE__PEER__INSECURE=true", "RINGFENCE__GOSSIP__INSECURE=true",
	}})
	if err != nil {
		t.Fatal(err)
	}
	return loaded
}

// registered returns the registry of a router that has not begun.
func registered(t *testing.T) *prometheus.Registry {
	t.Helper()
	registry, log := telemetry.NewRegistry("test"), slog.New(slog.DiscardHandler)
	output := telemetry.NewOutput(io.Discard)
	defer output.Close(time.Second)
	output.Register(registry)
	cfg := settings(t).Config
	listenerAuth, err := newListenerAuth(cfg, registry, log)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := newNode(cfg, broker{}, &listeners{listenerAuth: listenerAuth}, nil, registry, log, pipeline.Tracing{}); err != nil {
		t.Fatal(err)
	}
	if _, err := newProver(cfg, broker{}, listenerAuth.adminToken, registry, log); err != nil {
		t.Fatal(err)
	}
	if _, err := letterPages(cfg, broker{}, registry, log); err != nil {
		t.Fatal(err)
	}
	return registry
}

// metricsOf returns the metrics that a router registers, each with the names of its labels.
func metricsOf(t *testing.T) map[string][]string {
	t.Helper()
	registry := registered(t)
	descs := make(chan *prometheus.Desc, 1000)
	registry.Describe(descs)
	close(descs)
	form := regexp.MustCompile(`fqName: "([^"]+)".*constLabels: \{([^}]*)\}, variableLabels: \{([^}]*)\}`)
	metrics := map[string][]string{}
	for desc := range descs {
		parts := form.FindStringSubmatch(desc.String())
		if parts == nil {
			t.Fatalf("%s is described in another way than this test knows", desc)
		}
		labels := strings.FieldsFunc(parts[3], func(r rune) bool { return r == ',' || r == ' ' })
		for _, constant := range regexp.MustCompile(`(\w+)="`).FindAllStringSubmatch(parts[2], -1) {
			labels = append(labels, constant[1])
		}
		metrics[parts[1]] = labels
	}
	if len(metrics) < 50 {
		t.Fatalf("only %d metrics: this test does not see all of them", len(metrics))
	}
	return metrics
}

// queries returns all PromQL of the rendered mixin, by its location.
func queries(t *testing.T) map[string]string {
	t.Helper()
	all := map[string]string{}
	for _, file := range []string{"alerts.yaml", "rules.yaml"} {
		for i, line := range strings.Split(read(t, filepath.Join(renderedMixin, file)), "\n") {
			if _, expr, ok := strings.Cut(line, "expr: "); ok {
				all[fmt.Sprintf("%s:%d", file, i+1)] = expr
			}
		}
	}
	dashboards, err := filepath.Glob(filepath.Join(renderedMixin, "dashboards", "*.json"))
	if err != nil || len(dashboards) == 0 {
		t.Fatalf("no dashboards: %v", err)
	}
	for _, path := range dashboards {
		var dashboard struct {
			Panels []struct {
				Title   string
				Targets []struct{ Expr string }
			}
		}
		if err := json.Unmarshal([]byte(read(t, path)), &dashboard); err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		for _, panel := range dashboard.Panels {
			for i, target := range panel.Targets {
				all[fmt.Sprintf("%s, panel %q, query %d", filepath.Base(path), panel.Title, i+1)] = target.Expr
			}
		}
	}
	return all
}

var (
	metricName = regexp.MustCompile(`\b((?:group:)?(?:ringfence|go|process)_[a-z_]+(?::\w+)?)(\{[^}]*\})?`)
	matcher    = regexp.MustCompile(`(\w+)\s*(?:=~|!=|!~|=)`)
)

// TestQueriesNameWhatThereIs: a dashboard or an alert must not use a missing metric or label,
// because it would silently show nothing.
func TestQueriesNameWhatThereIs(t *testing.T) {
	metrics := metricsOf(t)
	all := queries(t)
	if len(all) < 80 {
		t.Fatalf("only %d queries: this test does not see all of them", len(all))
	}
	recorded := map[string]bool{}
	for _, name := range regexp.MustCompile(`record: "?([\w:]+)`).FindAllStringSubmatch(read(t, filepath.Join(renderedMixin, "rules.yaml")), -1) {
		recorded[name[1]] = true
	}
	for where, expr := range all {
		names := metricName.FindAllStringSubmatch(expr, -1)
		if len(names) == 0 {
			t.Errorf("%s: %s asks for no metric", where, expr)
		}
		for _, name := range names {
			labels, known := metrics[name[1]]
			for _, suffix := range []string{"_bucket", "_sum", "_count"} {
				if base, ok := strings.CutSuffix(name[1], suffix); ok && !known {
					labels, known = metrics[base]
				}
			}
			if recorded[name[1]] {
				continue
			}
			if !known {
				t.Errorf("%s: metric %s does not exist: change it in deploy/mixin and run `make generate`", where, name[1])
				continue
			}
			for _, label := range matcher.FindAllStringSubmatch(name[2], -1) {
				if !slices.Contains([]string{"job", "instance", "le"}, label[1]) && !slices.Contains(labels, label[1]) {
					t.Errorf("%s: %s has no label %s, only %v", where, name[1], label[1], labels)
				}
			}
		}
	}
}

// TestAlertsSeeTheFirstTime: an alert about an increase names series that are there from the start, or the first increase is not seen.
func TestAlertsSeeTheFirstTime(t *testing.T) {
	families, err := registered(t).Gather()
	if err != nil {
		t.Fatal(err)
	}
	series := map[string][]map[string]string{}
	for _, family := range families {
		for _, m := range family.GetMetric() {
			labels := map[string]string{}
			for _, l := range m.GetLabel() {
				labels[l.GetName()] = l.GetValue()
			}
			series[family.GetName()] = append(series[family.GetName()], labels)
		}
	}
	// Labels of the files that are configured, which Seen lets begin at 0; and a threshold far above 1.
	elsewhere := []string{"ringfence_tls_reloads_total", "ringfence_listener_rejected_total"}
	of := regexp.MustCompile(`(?:increase|rate)\((\w+)(?:\{(\w+)=~?\\?"([^"\\]+)\\?"\})?\[`)
	others := regexp.MustCompile(`(?:increase|rate)\((\w+)\{(\w+)!=\\?"([^"\\]+)\\?"\}\[`)
	seen := 0
	for where, expr := range queries(t) {
		if !strings.HasPrefix(where, "alerts.yaml") {
			continue
		}
		for _, m := range others.FindAllStringSubmatch(expr, -1) {
			if name, label := m[1], m[2]; !slices.ContainsFunc(series[name], func(has map[string]string) bool { return has[label] != "" && has[label] != m[3] }) {
				t.Errorf("%s: no %s{%s!=%q} is there from the start", where, name, label, m[3])
			}
		}
		for _, m := range of.FindAllStringSubmatch(expr, -1) {
			name, label := m[1], m[2]
			seen++
			if slices.Contains(elsewhere, name) {
				continue
			}
			for value := range strings.SplitSeq(m[3], "|") {
				if !slices.ContainsFunc(series[strings.TrimSuffix(name, "_bucket")], func(has map[string]string) bool { return has[label] == value }) {
					t.Errorf("%s: %s{%s=%q} is not there from the start", where, name, label, value)
				}
			}
		}
	}
	if seen < 20 {
		t.Fatalf("only %d increases: this test does not see all of them", seen)
	}
}

// TestLegendsNameLabels: a legend of a dashboard names labels that the result of its query has, or all of its lines look the same.
func TestLegendsNameLabels(t *testing.T) {
	metrics := metricsOf(t)
	dashboards, err := filepath.Glob(filepath.Join(renderedMixin, "dashboards", "*.json"))
	if err != nil {
		t.Fatal(err)
	}
	grouping := regexp.MustCompile(`\bby \(([^)]*)\)`)
	placeholder := regexp.MustCompile(`\{\{(\w+)\}\}`)
	names := func(list string) []string {
		return strings.FieldsFunc(list, func(r rune) bool { return r == ',' || r == ' ' })
	}
	seen := 0
	for _, path := range dashboards {
		var dashboard struct {
			Panels []struct {
				Title   string
				Targets []struct{ Expr, LegendFormat string }
			}
		}
		if err := json.Unmarshal([]byte(read(t, path)), &dashboard); err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		for _, panel := range dashboard.Panels {
			legends := map[string]bool{}
			for _, target := range panel.Targets {
				where := fmt.Sprintf("%s, panel %q: %s", filepath.Base(path), panel.Title, target.Expr)
				if legends[target.LegendFormat] {
					t.Errorf("%s has the legend %q of another query", where, target.LegendFormat)
				}
				legends[target.LegendFormat] = true
				name := metricName.FindStringSubmatch(target.Expr)
				if name == nil {
					t.Fatalf("%s asks for no metric", where)
				}
				labels := append([]string{"instance"}, metrics[strings.TrimSuffix(name[1], "_bucket")]...)
				has := labels
				if by := grouping.FindStringSubmatch(target.Expr); by != nil {
					has = names(by[1])
					for _, label := range has {
						if label != "le" && !slices.Contains(labels, label) {
							t.Errorf("%s sums by %s, a label that %s does not have", where, label, name[1])
						}
					}
				}
				var shown []string
				for _, one := range placeholder.FindAllStringSubmatch(target.LegendFormat, -1) {
					seen++
					shown = append(shown, one[1])
					if !slices.Contains(has, one[1]) {
						t.Errorf("%s: the legend %q names %s, a label that it does not have", where, target.LegendFormat, one[1])
					}
				}
				for _, label := range has {
					fixed := strings.Contains(target.Expr, label+`="`)
					if label != "le" && !fixed && !slices.Contains(shown, label) && !strings.HasPrefix(target.Expr, "max(") {
						t.Errorf("%s: the legend %q tells no %s, so that several lines have it", where, target.LegendFormat, label)
					}
				}
			}
		}
	}
	if seen < 50 {
		t.Fatalf("only %d labels: this test does not see all of them", seen)
	}
}

// TestMetricsAreDocumented: docs/reference.md has a row for every metric, and for no other.
func TestMetricsAreDocumented(t *testing.T) {
	page := read(t, referencePage)
	metrics := metricsOf(t)
	for name := range metrics {
		if strings.HasPrefix(name, "ringfence_") && !strings.Contains(page, "\n| `"+name+"`") {
			t.Errorf("docs/reference.md, section Metrics: add a row \"| `%s` | meaning, and advice |\"", name)
		}
	}
	for _, row := range regexp.MustCompile("(?m)^\\| `(ringfence_\\w+)`").FindAllStringSubmatch(page, -1) {
		if _, known := metrics[row[1]]; !known {
			t.Errorf("docs/reference.md: metric %s does not exist: remove its row", row[1])
		}
	}
}

// TestLimitsAreDocumented: docs/reference.md has a row for every setting that ends in
// _max, with its default.
func TestLimitsAreDocumented(t *testing.T) {
	page := read(t, referencePage)
	limits := 0
	for _, s := range settings(t).Settings() {
		if !strings.HasSuffix(s.Key, "_max") {
			continue
		}
		limits++
		if !strings.Contains(page, fmt.Sprintf("\n| `%s` | %s |", s.Key, s.Value)) {
			t.Errorf("docs/reference.md, section Limits: add a row \"| `%s` | %s | what it bounds, the effect at the bound, and its metric |\"", s.Key, s.Value)
		}
	}
	if limits < 15 {
		t.Fatalf("only %d limits: this test does not see all of them", limits)
	}
}

// TestAlertsAreDocumented: the runbook of every alert is a section of docs/alerts.md.
func TestAlertsAreDocumented(t *testing.T) {
	page := read(t, alertsPage)
	alerts := regexp.MustCompile(`alert: "?(\w+)`).FindAllStringSubmatch(read(t, filepath.Join(renderedMixin, "alerts.yaml")), -1)
	if len(alerts) < 20 {
		t.Fatalf("only %d alerts: this test does not see all of them", len(alerts))
	}
	for _, alert := range alerts {
		if !strings.Contains(page, "\n### "+alert[1]+"\n") {
			t.Errorf("docs/alerts.md: add \"### %s\" and what to do", alert[1])
		}
	}
}

// warning matches the calls that log a warning or an error.
var warning = regexp.MustCompile(`[lL]og\.(?:Warn|Error)\("([^"]+)"`)

// TestWarningsAreDocumented: docs/reference.md has a row for every warning and error
// that a router logs.
func TestWarningsAreDocumented(t *testing.T) {
	page := read(t, referencePage)
	elsewhere := []string{"internal/devtools/demo", "internal/devtools/testapp", "internal/testing/sim", "internal/broker/membroker"} // not in a router that serves
	found := 0
	for _, root := range []string{"cmd", "internal", "forward"} {
		err := filepath.WalkDir(filepath.Join("../..", root), func(path string, entry fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			dir, _ := filepath.Rel("../..", filepath.Dir(path))
			if entry.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") || slices.Contains(elsewhere, filepath.ToSlash(dir)) {
				return nil
			}
			for _, message := range warning.FindAllStringSubmatch(read(t, path), -1) {
				found++
				if !strings.Contains(page, "\n| `"+message[1]+"` |") {
					t.Errorf("docs/reference.md, section Warnings: add a row \"| `%s` | meaning, and advice |\" (%s)", message[1], filepath.ToSlash(path))
				}
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if found < 15 {
		t.Fatalf("only %d warnings: this test does not see all of them", found)
	}
}

// TestLimitedLinesAreDocumented: docs/reference.md names each source of lines that a rate limit holds back.
func TestLimitedLinesAreDocumented(t *testing.T) {
	page := read(t, referencePage)
	source := regexp.MustCompile(`(?:loglimit\.New(?:Burst)?\(.*, "([a-z_]+[a-z])", \w+Every\b|limit\("([a-z_]+[a-z])")`)
	found := 0
	for _, root := range []string{"internal", "forward"} {
		err := filepath.WalkDir(filepath.Join("../..", root), func(path string, entry fs.DirEntry, err error) error {
			if err != nil || entry.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
				return err
			}
			for _, name := range source.FindAllStringSubmatch(read(t, path), -1) {
				found++
				if name := name[1] + name[2]; !strings.Contains(page, "*"+name+"*") {
					t.Errorf("docs/reference.md, `ringfence_log_suppressed_total`: the source *%s* is missing (%s)", name, filepath.ToSlash(path))
				}
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if found < 15 {
		t.Fatalf("only %d sources: this test does not see all of them", found)
	}
}

// TestKindsOfOwnershipAreDocumented: docs/reference.md explains each kind of the warning `ownership`.
func TestKindsOfOwnershipAreDocumented(t *testing.T) {
	kinds := map[string]string{}
	for _, kind := range regexp.MustCompile(`(Note\w+)\s+NoteKind = "(\w+)"`).FindAllStringSubmatch(read(t, "../../internal/ownership/step.go"), -1) {
		kinds[kind[1]] = kind[2]
	}
	_, row, _ := strings.Cut(read(t, referencePage), "\n| `ownership` |")
	row, _, _ = strings.Cut(row, "\n")
	code := read(t, "../../internal/node/metrics.go")
	_, code, _ = strings.Cut(code, "switch note.Kind {")
	code, _, _ = strings.Cut(code, "attrs :=")
	warned := 0
	for _, one := range regexp.MustCompile(`(?s)case ([^:]+):([^:]*?)level = slog.LevelWarn`).FindAllStringSubmatch(code, -1) {
		for _, name := range regexp.MustCompile(`ownership\.(Note\w+)`).FindAllStringSubmatch(one[1], -1) {
			warned++
			if kinds[name[1]] == "" || !strings.Contains(row, "`"+kinds[name[1]]+"`") {
				t.Errorf("docs/reference.md, warning `ownership`: kind `%s` (%s) is missing", kinds[name[1]], name[1])
			}
		}
	}
	if warned < 10 {
		t.Fatalf("only %d kinds: this test does not see all of them", warned)
	}
}
