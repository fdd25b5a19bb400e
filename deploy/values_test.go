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

	"github.com/ringfence/router/internal/config"
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

// TestChartRefusesSettingsOfItsOwn: a setting or a variable that would be ignored beside a value of the chart, or would replace
// what the chart sets, is named.
func TestChartRefusesSettingsOfItsOwn(t *testing.T) {
	tool(t, "helm") // skips early
	orders := filepath.Join(charts(t), "orders")
	variable := func(name string) []string { return []string{"extraEnv[0].name=" + name, "extraEnv[0].value=x"} }
	for name, wrong := range map[string]struct {
		values []string
		why    string
	}{
		"another name of peers":    {[]string{"config.peer.tls.name=x"}, "ringfence.config.peer.tls.name is x"},
		"other keys":               {[]string{"config.gossip.encryption_keys_file=/x"}, "ringfence.config.gossip.encryption_keys_file is /x"},
		"another token of workers": {[]string{"secrets.appToken.secretName=x", "config.app.token_file=/x"}, "ringfence.config.app.token_file is /x"},
		"no token of operators":    {[]string{"secrets.adminToken.secretName=x", "config.admin.token_file="}, "ringfence.config.admin.token_file is "},
		"another CA of brokers":    {[]string{"secrets.pulsarTLS.secretName=x", "config.pulsar.tls.ca_file=/x"}, "ringfence.config.pulsar.tls.ca_file is /x"},
		"another group":            {variable("RINGFENCE__NODE__GROUP"), "RINGFENCE__NODE__GROUP would replace node.group"},
		"other seeds":              {variable("RINGFENCE__GOSSIP__SEEDS"), "RINGFENCE__GOSSIP__SEEDS would replace gossip.seeds"},
		"a group from a Secret": {
			[]string{"secretEnv.RINGFENCE__NODE__GROUP.name=x", "secretEnv.RINGFENCE__NODE__GROUP.key=x"}, "RINGFENCE__NODE__GROUP would replace node.group",
		},
	} {
		t.Run(name, func(t *testing.T) {
			refuses(t, helmTemplate(t, orders, sets(wrong.values...)...), wrong.why)
		})
	}
	for _, values := range [][]string{
		{"config.gossip.encryption_keys_file=/etc/ringfence-secrets/gossip-keys/keys"},
		{"secrets.pulsarTLS.secretName=x", "config.pulsar.tls.name=pulsar"},
		variable("RINGFENCE__LOG__LEVEL"),
	} {
		accepts(t, helmTemplate(t, orders, sets(values...)...))
	}
}

// TestChartAsksWithTheTLSOfTheConfig: a certificate of the admin page may come from a volume of the user; probes, hooks and the
// PodMonitor ask by TLS then, too.
func TestChartAsksWithTheTLSOfTheConfig(t *testing.T) {
	tool(t, "helm") // skips early
	orders := filepath.Join(charts(t), "orders")
	rendered := accepts(t, helmTemplate(t, orders, sets("config.admin.tls.cert_file=/certs/tls.crt", "config.admin.tls.key_file=/certs/tls.key", "podMonitor.enabled=true")...))
	if faults := inTheClear(t, rendered); len(faults) > 0 {
		t.Error(strings.Join(faults, "\n"))
	}
	refuses(t, helmTemplate(t, orders, sets("extraEnv[0].name=RINGFENCE__ADMIN__TLS__CERT_FILE", "extraEnv[0].value=/certs/tls.crt")...), "/extraEnv/0/name")
}

// TestChartComparesDrains: no router starts if its drain is not longer than that of its handlers.
func TestChartComparesDrains(t *testing.T) {
	tool(t, "helm") // skips early
	orders := filepath.Join(charts(t), "orders")
	for _, values := range [][]string{
		{"drain.seconds=30"}, {"config.ownership.drain_timeout=45s"}, {"config.ownership.drain_timeout=1m"}, {"drain.seconds=3600", "config.ownership.drain_timeout=1h0m5s"},
	} {
		refuses(t, helmTemplate(t, orders, sets(values...)...), "the drain needs more than that")
	}
	for _, values := range [][]string{
		{"drain.seconds=31"},
		{"drain.seconds=20", "config.ownership.drain_timeout=10s"},
		{"drain.seconds=90", "config.ownership.drain_timeout=1m20s"},
		{"drain.seconds=2", "config.ownership.drain_timeout=1500ms"},
		{"config.ownership.profile=calm"},
		{"drain.seconds=20", "extraEnv[0].name=RINGFENCE__OWNERSHIP__DRAIN_TIMEOUT", "extraEnv[0].value=10s"},
	} {
		rendered := accepts(t, helmTemplate(t, orders, sets(values...)...))
		environ := []string{"RINGFENCE__NODE__NAME=pod-0"}
		for _, variable := range ofKind(parsed(t, rendered), "Deployment")[0].Spec.Template.Spec.InitContainers[0].Env {
			if variable.Name == "RINGFENCE__OWNERSHIP__DRAIN_TIMEOUT" {
				environ = append(environ, variable.Name+"="+variable.Value)
			}
		}
		if _, err := config.Load(config.Sources{File: routerFile(t, rendered), Environ: environ}); err != nil {
			t.Errorf("%q: the chart accepts it, and the router does not: %v", values, err)
		}
	}
}

// TestChartRefusesWhatClustersAndRoutersRefuse: such values fail when the chart is rendered, not in the middle of a rollout.
func TestChartRefusesWhatClustersAndRoutersRefuse(t *testing.T) {
	tool(t, "helm") // skips early
	orders := filepath.Join(charts(t), "orders")
	for value, why := range map[string]string{
		"podDisruptionBudget.maxUnavailable=soon": "/podDisruptionBudget/maxUnavailable",
		"podDisruptionBudget.maxUnavailable=0%":   "/podDisruptionBudget/maxUnavailable", // no node could be drained
		"group=orders/blue":                       "/group",
		"config.admin.tls=null":                   "/config/admin/tls",
		"config.peer.tls=null":                    "/config/peer/tls",
	} {
		refuses(t, helmTemplate(t, orders, sets(value)...), why)
	}
	accepts(t, helmTemplate(t, orders, sets("podDisruptionBudget.maxUnavailable=10%")...))
}

// TestChartNotes: after an installation the example says which ports are unprotected, and how to ask the admin page.
func TestChartNotes(t *testing.T) {
	tool(t, "helm") // skips early
	orders := filepath.Join(charts(t), "orders")
	for name, test := range map[string]struct{ values, want []string }{
		"as it is":     {nil, []string{"curl localhost:16653/readyz", "gossip ports accept only"}},
		"TLS":          {[]string{"secrets.adminTLS.secretName=x"}, []string{"curl --insecure https://localhost:16653/readyz", "gossip ports accept only"}},
		"an open page": {[]string{"config.admin.insecure=true"}, []string{"curl localhost:16653/readyz", "gossip ports accept only"}},
		"open gossip":  {[]string{"config.gossip.insecure=true", "secrets.gossipKeys.secretName="}, []string{"gossip ports are UNPROTECTED"}},
	} {
		arguments := append([]string{"install", "shop", orders, "--namespace=shop", "--dry-run=client"}, sets(test.values...)...)
		notes := string(accepts(t, tool(t, "helm", arguments...)))
		for _, want := range test.want {
			if !strings.Contains(notes, want) {
				t.Errorf("%s: no %q in\n%s", name, want, notes[strings.LastIndex(notes, "NOTES:"):])
			}
		}
	}
}
