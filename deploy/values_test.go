package deploy_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

// TestChartsTakeNamesThatLookLikeNumbers: the names of releases, namespaces and Secrets are text in the manifests.
func TestChartsTakeNamesThatLookLikeNumbers(t *testing.T) {
	tool(t, "helm") // skips early
	dir := charts(t)
	for _, name := range []string{"2024", "1e3", "true"} {
		for chart, arguments := range map[string][]string{
			"orders": append([]string{
				"--set-string", "ringfence.secrets.peerTLS.issuer.name=" + name, "--set-string", "ringfence.secrets.gossipKeys.secretName=" + name,
				"--set-string", "ringfence.secretEnv.RINGFENCE__PULSAR__OAUTH2__AUDIENCE.name=" + name,
				"--set-string", "ringfence.secretEnv.RINGFENCE__PULSAR__OAUTH2__AUDIENCE.key=" + name,
				"--set-string", "fullnameOverride=" + name, "--set-string", "nameOverride=" + name,
			}, sets("podMonitor.enabled=true")...),
			"monitoring": nil,
		} {
			rendered := accepts(t, tool(t, "helm", append([]string{"template", name, filepath.Join(dir, chart), "--namespace", name, "--kube-version", kubernetesVersion}, arguments...)...))
			decoder, texts := yaml.NewDecoder(bytes.NewReader(rendered)), 0
			for {
				var object any
				if err := decoder.Decode(&object); errors.Is(err, io.EOF) {
					break
				} else if err != nil {
					t.Fatal(err)
				}
				texts += namesIn(t, chart, object)
			}
			if texts < 10 {
				t.Errorf("%s: only %d names: this test does not see all of them", chart, texts)
			}
		}
	}
}

// namesIn returns how many names and labels an object has, and fails the test for those that are no text.
func namesIn(t *testing.T, path string, object any) (texts int) {
	t.Helper()
	switch object := object.(type) {
	case []any:
		for i, item := range object {
			texts += namesIn(t, fmt.Sprintf("%s[%d]", path, i), item)
		}
	case map[string]any:
		for key, value := range object {
			at := path + "." + key
			texts += namesIn(t, at, value)
			named := slices.Contains([]string{"name", "namespace", "secretName", "key"}, key) || regexp.MustCompile(`\.(labels|matchLabels|selector)$`).MatchString(path)
			if _, branch := value.(map[string]any); !named || branch {
				continue
			}
			texts++
			if _, text := value.(string); !text {
				t.Errorf("%s is %v, which is no text", at, value)
			}
		}
	}
	return texts
}

// TestChartCutsItsLabel: a label has at most 63 characters, and the version of a chart may have more.
func TestChartCutsItsLabel(t *testing.T) {
	tool(t, "helm") // skips early
	orders := filepath.Join(charts(t), "orders")
	path := filepath.Join(orders, "Chart.yaml")
	write(t, path, strings.Replace(read(t, path), "version: 0.1.0\n", "version: 0.1.0-"+strings.Repeat("x", 60)+"\n", 1))
	labels := regexp.MustCompile(`helm\.sh/chart: (\S+)`).FindAllStringSubmatch(string(accepts(t, helmTemplate(t, orders))), -1)
	for _, label := range labels {
		if len(label[1]) > 63 {
			t.Errorf("the label %s has %d characters", label[1], len(label[1]))
		}
	}
	if len(labels) == 0 {
		t.Error("no object has the label helm.sh/chart")
	}
}

// TestChartRefusesNull: a value that null has taken away is named, instead of a policy that allows all ports, or a template that fails.
func TestChartRefusesNull(t *testing.T) {
	tool(t, "helm") // skips early
	orders := filepath.Join(charts(t), "orders")
	for _, value := range []string{
		"networkPolicy.pulsarPorts", "networkPolicy.egress", "networkPolicy", "podDisruptionBudget", "podMonitor", "podMonitor.interval", "goMemLimit", "config",
		"secrets.adminTLS", "secrets.peerTLS.issuer.kind", "secrets.gossipKeys.key",
	} {
		name := value[strings.LastIndex(value, ".")+1:]
		refuses(t, helmTemplate(t, orders, sets(value+"=null")...), "missing property '"+name+"'")
	}
}

// TestChartSetsEachVariableOnce: a list with two variables of one name is refused by servers that apply it.
func TestChartSetsEachVariableOnce(t *testing.T) {
	tool(t, "helm") // skips early
	orders := filepath.Join(charts(t), "orders")
	rendered := accepts(t, helmTemplate(t, orders, sets("extraEnv[0].name=GOGC", "extraEnv[0].value=off")...))
	seen := map[string]string{}
	for _, variable := range ofKind(parsed(t, rendered), "Deployment")[0].Spec.Template.Spec.InitContainers[0].Env {
		if _, twice := seen[variable.Name]; twice {
			t.Errorf("the router has %s twice", variable.Name)
		}
		seen[variable.Name] = variable.Value
	}
	if seen["GOGC"] != "off" {
		t.Errorf("GOGC = %q, want that of extraEnv", seen["GOGC"])
	}
	for _, name := range []string{"GOMEMLIMIT", "RINGFENCE__NODE__NAME", "RINGFENCE__PEER__LISTEN", "RINGFENCE__ADMIN__DRAIN_TOKEN"} {
		refuses(t, helmTemplate(t, orders, sets("extraEnv[0].name="+name, "extraEnv[0].value=1")...), "/extraEnv/0/name")
	}
	refuses(t, helmTemplate(t, orders, sets("secretEnv.RINGFENCE__NODE__NAME.name=x", "secretEnv.RINGFENCE__NODE__NAME.key=x")...), "propertyName 'RINGFENCE__NODE__NAME'")
}

// TestChartStartOutlastsABrokerOutage: a router that starts beside a broker that is away is not restarted, since the kubelet's
// growing pauses between restarts would outlast the outage.
func TestChartStartOutlastsABrokerOutage(t *testing.T) {
	tool(t, "helm") // skips early
	rendered := accepts(t, helmTemplate(t, filepath.Join(charts(t), "orders"), sets()...))
	p := ofKind(parsed(t, rendered), "Deployment")[0].Spec.Template.Spec.InitContainers[0].StartupProbe
	if patience := p.PeriodSeconds * p.FailureThreshold; p.PeriodSeconds > 1 || patience < 600 { // after 10 minutes the kubelet forgets earlier restarts
		t.Errorf("the startup probe looks every %d s and gives up after %d s", p.PeriodSeconds, patience)
	}
}

// TestChartComparesMemory: Go has to begin to collect harder below the memory limit.
func TestChartComparesMemory(t *testing.T) {
	tool(t, "helm") // skips early
	orders := filepath.Join(charts(t), "orders")
	for _, limit := range []string{"1Gi", "2400Mi", "2G", "2000000000", "2000000000000m"} {
		refuses(t, helmTemplate(t, orders, sets("resources.limits.memory="+limit)...), "ringfence.goMemLimit is 2400MiB")
	}
	for _, values := range [][]string{
		{"resources.limits.memory=3G"}, {"resources.limits.memory=2818572288"}, {"resources.limits=null"}, {"resources.limits.memory=1Gi", "goMemLimit=900MiB"},
	} {
		accepts(t, helmTemplate(t, orders, sets(values...)...))
	}
}
