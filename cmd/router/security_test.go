package main

import (
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/ringfence/router/internal/config"
)

const securityPage = "../../docs/security.md"

// TestSecurityRecipes: a router takes every router.yaml of the documents, most of which are in docs/security.md.
func TestSecurityRecipes(t *testing.T) {
	var recipes [][]string
	for _, page := range pages(t) {
		recipes = append(recipes, regexp.MustCompile("(?s)```yaml\n(# router.yaml\n.*?)```").FindAllStringSubmatch(read(t, page), -1)...)
	}
	for _, recipe := range recipes {
		environ := []string{
			"RINGFENCE__NODE__GROUP=orders", "RINGFENCE__NODE__NAME=router-0", "RINGFENCE__PULSAR__TOPICS=orders", "RINGFENCE__PULSAR__SUBSCRIPTION=orders",
		}
		for _, section := range []string{"peer", "gossip"} {
			if !strings.Contains(recipe[1], section+":") { // the recipe is about something else
				environ = append(environ, config.EnvPrefix+strings.ToUpper(section)+"__INSECURE=true")
			}
		}
		_, err := config.Load(config.Sources{File: write(t, filepath.Join(t.TempDir(), "router.yaml"), recipe[1]), Environ: environ})
		if err != nil {
			t.Errorf("%v in\n%s", err, recipe[1])
		}
	}
	if len(recipes) < 9 {
		t.Errorf("only %d recipes: this test does not see all of them", len(recipes))
	}
}

// TestSecurityNamesWhatThereIs: every setting, metric and alert that docs/security.md names is there.
func TestSecurityNamesWhatThereIs(t *testing.T) {
	page := read(t, securityPage)
	metrics := metricsOf(t)
	var keys, sections []string
	for _, s := range settings(t).Settings() {
		keys = append(keys, s.Key)
		for at := strings.LastIndex(s.Key, "."); at > 0; at = strings.LastIndex(s.Key[:at], ".") {
			sections = append(sections, s.Key[:at])
		}
	}
	known := 0
	for _, name := range regexp.MustCompile("`((?:app|peer|gossip|admin|debug|pulsar|mailbox|control_log)\\.[a-z0-9_.]+)").FindAllStringSubmatch(page, -1) {
		known++
		if !slices.Contains(keys, name[1]) && !slices.Contains(sections, name[1]) {
			t.Errorf("there is no setting %s", name[1])
		}
	}
	for _, name := range regexp.MustCompile(`\bringfence_[a-z_]+`).FindAllString(page, -1) {
		known++
		if _, ok := metrics[name]; !ok {
			t.Errorf("there is no metric %s", name)
		}
	}
	alerts := read(t, filepath.Join(renderedMixin, "alerts.yaml"))
	for _, name := range regexp.MustCompile("`(Ringfence[A-Z]\\w+)`").FindAllStringSubmatch(page, -1) {
		known++
		if !strings.Contains(alerts, name[1]) {
			t.Errorf("there is no alert %s", name[1])
		}
	}
	if known < 60 {
		t.Errorf("only %d names: this test does not see all of them", known)
	}
}
