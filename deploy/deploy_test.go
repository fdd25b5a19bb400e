package deploy_test

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/ringfence/router/internal/config"
	"github.com/ringfence/router/internal/key"
)

var withTools = flag.Bool("tools", false, "build and ask the tools that need minutes to build: see tools/tool.sh")

// tool returns a command that runs one of tools/tool.sh.
func tool(t *testing.T, name string, args ...string) *exec.Cmd {
	t.Helper()
	if !*withTools {
		t.Skip("asks tools that have to be built first: make deploy")
	}
	return built(t, name, args...)
}

// toolPaths has the tools that were built; the tests of this package run one by one.
var toolPaths = map[string]string{}

// built is tool for tests that are asked for by a flag of their own.
func built(t *testing.T, name string, args ...string) *exec.Cmd {
	t.Helper()
	if toolPaths[name] == "" {
		toolPaths[name] = strings.TrimSpace(string(accepts(t, exec.CommandContext(t.Context(), "../tools/tool.sh", name))))
	}
	return exec.CommandContext(t.Context(), toolPaths[name], args...)
}

// accepts fails the test if a command does not succeed, and returns its output.
func accepts(t *testing.T, cmd *exec.Cmd) []byte {
	t.Helper()
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		t.Fatalf("%s: %v\n%s%s", cmd, err, stdout.String(), stderr.String())
	}
	return stdout.Bytes()
}

// refuses fails the test if a command succeeds, or fails without saying why.
func refuses(t *testing.T, cmd *exec.Cmd, why string) {
	t.Helper()
	output, err := cmd.CombinedOutput()
	if err == nil {
		t.Errorf("%s accepts it, want %q in it\n%s", cmd, why, output)
	} else if !strings.Contains(string(output), why) {
		t.Errorf("%s: %v, want %q in it\n%s", cmd, err, why, output)
	}
}

// edited writes a copy of a file in which one text is replaced by another.
func edited(t *testing.T, path, old, replacement string) string {
	t.Helper()
	content := read(t, path)
	if !strings.Contains(content, old) {
		t.Fatalf("%s has no %q to plant an error in", path, old)
	}
	copied := filepath.Join(t.TempDir(), filepath.Base(path))
	write(t, copied, strings.Replace(content, old, replacement, 1))
	return copied
}

func read(t *testing.T, path string) string {
	t.Helper()
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(content)
}

func write(t *testing.T, path, content string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestAlerts(t *testing.T) {
	const rendered = "mixin/rendered/"
	accepts(t, tool(t, "promtool", "check", "rules", "--lint=all", "--lint-fatal", rendered+"alerts.yaml", rendered+"rules.yaml"))
	accepts(t, tool(t, "promtool", "test", "rules", rendered+"tests.yaml"))

	// The tests can fail: an alert with another threshold is noticed.
	planted := edited(t, rendered+"alerts.yaml", "allowance_used_ratio > 0.75", "allowance_used_ratio > 0.9")
	for _, name := range []string{"rules.yaml", "tests.yaml"} {
		write(t, filepath.Join(filepath.Dir(planted), name), read(t, rendered+name))
	}
	refuses(t, tool(t, "promtool", "test", "rules", filepath.Join(filepath.Dir(planted), "tests.yaml")), "RingfenceAllowanceNearlyUsed fires")
}

func TestComposeFile(t *testing.T) {
	accepts(t, tool(t, "compose", "compose/compose.yaml"))
	refuses(t, tool(t, "compose", edited(t, "compose/compose.yaml", "stop_grace_period", "stop_grace_perod")), "stop_grace_perod")
}

// TestComposeFileSettings: the routers of the compose file accept their settings and find a key
// in each order, and the mounted files exist.
func TestComposeFileSettings(t *testing.T) {
	var file struct {
		Services map[string]struct {
			Environment map[string]string
			Volumes     []string
		}
	}
	if err := yaml.Unmarshal([]byte(read(t, "compose/compose.yaml")), &file); err != nil {
		t.Fatal(err)
	}
	routers := 0
	for name, service := range file.Services {
		var environ []string
		for key, value := range service.Environment {
			environ = append(environ, key+"="+value)
		}
		if strings.HasPrefix(name, "router-") {
			routers++
			loaded, err := config.Load(config.Sources{Environ: environ})
			if err != nil {
				t.Errorf("%s: %v", name, err)
				continue
			}
			extractor, err := key.Parse(loaded.Key.From, key.Reject)
			if err != nil {
				t.Errorf("%s: %v", name, err)
			}
			for order := range strings.Lines(read(t, "compose/orders.txt")) {
				if _, err := extractor.Extract(&key.Message{Payload: []byte(order)}); err != nil {
					t.Errorf("%s takes no key from %q: %v", name, order, err)
				}
			}
		}
		for _, volume := range service.Volumes {
			path, _, _ := strings.Cut(volume, ":")
			if _, err := os.Stat(filepath.Join("compose", path)); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
	}
	if routers != 3 {
		t.Errorf("%d routers, want 3", routers)
	}
}

// charts returns a copy of the charts, with the library where `helm dependency build`
// would put it.
func charts(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for to, from := range map[string]string{
		"orders":                  "helm/orders",
		"orders/charts/ringfence": "helm/ringfence",
		"ringfence":               "helm/ringfence",
		"monitoring":              "helm/monitoring",
		"mixin":                   "mixin",
	} {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(dir, to)), 0o750); err != nil {
			t.Fatal(err)
		}
		if out, err := exec.CommandContext(t.Context(), "cp", "-RL", from+"/.", filepath.Join(dir, to)).CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
	}
	return dir
}

// everything enables all features that are off by default, with existing Secrets.
var everything = sets(
	"podMonitor.enabled=true", "secretEnv.RINGFENCE__PULSAR__OAUTH2__AUDIENCE.name=pulsar", "secretEnv.RINGFENCE__PULSAR__OAUTH2__AUDIENCE.key=audience",
	"config.pulsar.url=pulsar+ssl://pulsar:6651", "drain.token=good-for-drains-only",
	"secrets.peerTLS.issuer.name=", "secrets.peerTLS.secretName=orders-tls", "secrets.peerTLS.name=orders-router", "secrets.gossipKeys.secretName=orders-gossip",
	"secrets.adminTLS.secretName=orders-admin-tls", "secrets.appToken.secretName=orders-app", "secrets.adminToken.secretName=orders-admin", "secrets.pulsarToken.secretName=pulsar", "secrets.pulsarTLS.secretName=pulsar-tls",
	"secrets.pulsarTLS.clientCertificate=true",
)

func sets(values ...string) (arguments []string) {
	for _, value := range values {
		arguments = append(arguments, "--set", "ringfence."+value)
	}
	return arguments
}

// render returns the manifests of a chart for the namespace shop.
func render(t *testing.T, chart string, args ...string) []byte {
	t.Helper()
	return accepts(t, built(t, "helm", append([]string{"template", "shop", chart, "--namespace", "shop", "--kube-version", kubernetesVersion}, args...)...))
}

func TestCharts(t *testing.T) {
	tool(t, "helm") // skips early
	dir := charts(t)
	orders, monitoring := filepath.Join(dir, "orders"), filepath.Join(dir, "monitoring")
	for _, chart := range []string{filepath.Join(dir, "ringfence"), orders, monitoring} {
		accepts(t, tool(t, "helm", "lint", "--strict", chart))
	}
	schemas := kubernetesSchemas(t)
	kubeconform := func(manifests []byte) *exec.Cmd {
		cmd := tool(t, "kubeconform", "-strict", "-summary", "-skip", "PodMonitor,PrometheusRule",
			"-schema-location", schemas+"/{{.ResourceKind}}{{.KindSuffix}}.json", "-")
		cmd.Stdin = bytes.NewReader(manifests)
		return cmd
	}
	rendered := render(t, orders, everything...)
	accepts(t, kubeconform(rendered))
	asItIs := render(t, orders)
	accepts(t, kubeconform(asItIs))
	accepts(t, kubeconform(render(t, monitoring)))

	score := tool(t, "kube-score", "score", "--kubernetes-version", "v1.36",
		"--ignore-container-cpu-limit",                 // throttling costs leases
		"--ignore-test", "container-image-pull-policy", // tags are not moved
		"--ignore-test", "deployment-replicas", // there are three
		"--ignore-test", "pod-probes", "-") // the application has no port; the sidecar has all probes
	score.Stdin = bytes.NewReader(rendered)
	accepts(t, score)

	for name, manifests := range map[string][]byte{"as it is": asItIs, "with everything": rendered} {
		t.Run("the router takes its file "+name, func(t *testing.T) {
			loaded, err := config.Load(config.Sources{File: routerFile(t, manifests), Environ: []string{"RINGFENCE__NODE__NAME=pod-0"}})
			if err != nil {
				t.Fatal(err)
			}
			// The kubelet asks for the drain at the address of the pod: it must be let in, somehow.
			hookHasToken := strings.Count(string(manifests), "Bearer good-for-drains-only") == 2
			if loaded.Admin.DrainOpen == hookHasToken {
				t.Errorf("the drain is open: %v, and the hooks have its token: %v", loaded.Admin.DrainOpen, hookHasToken)
			}
			mountedAt(t, loaded.Settings(), string(manifests))
		})
	}
	for name, plant := range map[string]struct{ old, replacement, why string }{
		"a field that is misspelt":  {"publishNotReadyAddresses", "publishNotReadyAdresses", "publishNotReadyAdresses"},
		"a value of the wrong type": {"minReadySeconds: 10", "minReadySeconds: soon", "minReadySeconds"},
		"a policy that is none":     {"policyTypes", "policyTipes", "policyTipes"},
		"a certificate of nobody":   {"issuerRef", "isuerRef", "isuerRef"},
	} {
		t.Run(name, func(t *testing.T) {
			planted := strings.Replace(string(asItIs), plant.old, plant.replacement, 1)
			if planted == string(asItIs) {
				t.Fatalf("nothing to plant an error in: no %q", plant.old)
			}
			refuses(t, kubeconform([]byte(planted)), plant.why)
		})
	}
	for name, wrong := range map[string]struct{ set, why string }{
		"unknown value":          {"ringfence.sidecars=2", "sidecars"},
		"text for a number":      {"ringfence.drain.seconds=soon", "seconds"},
		"no subscription":        {"ringfence.config.pulsar.subscription=", "subscription"},
		"a secret in the config": {"ringfence.config.pulsar.token=s3cret", "secretEnv"},
		"a token in the config":  {"ringfence.config.admin.token=s3cret", "ringfence.secrets"},
		"a secret of no kind":    {"ringfence.secrets.tokens.secretName=x", "tokens"},
		"no version":             {"ringfence.image.tag=", "ringfence.image.tag"},
		"a name for all pods":    {"ringfence.config.node.name=orders", "node"},
		"another port of peers":  {"ringfence.config.peer.listen=0.0.0.0:7000", "/config/peer"},
		"another gossip port":    {"ringfence.config.gossip.listen=0.0.0.0:7000", "/config/gossip"},
		"another admin port":     {"ringfence.config.admin.listen=0.0.0.0:7000", "/config/admin"},
		"another app endpoint":   {"ringfence.config.app.listen=unix:/run/app", "/config/app"},
	} {
		t.Run(name, func(t *testing.T) {
			refuses(t, tool(t, "helm", "template", "shop", orders, "--kube-version", kubernetesVersion, "--set", wrong.set), wrong.why)
		})
	}
}

// TestChartTakesSeedsAsText: seeds are a list or a text with commas, as in the router's settings.
func TestChartTakesSeedsAsText(t *testing.T) {
	tool(t, "helm") // skips early
	rendered := render(t, filepath.Join(charts(t), "orders"), sets(`config.gossip.seeds=a:1\, b:2\,`)...)
	loaded, err := config.Load(config.Sources{File: routerFile(t, rendered), Environ: []string{"RINGFENCE__NODE__NAME=pod-0"}})
	if err != nil {
		t.Fatal(err)
	}
	if got := loaded.Gossip.Seeds; len(got) != 3 || got[1] != "a:1" || got[2] != "b:2" {
		t.Errorf("seeds = %q", got)
	}
}

// mountedAt checks that the folder of each file that the settings name is mounted.
func mountedAt(t *testing.T, settings []config.Setting, manifests string) {
	t.Helper()
	for _, s := range settings {
		if !strings.HasSuffix(s.Key, "_file") || s.Value == "" {
			continue
		}
		folder := filepath.Dir(s.Value)
		if !strings.Contains(manifests, fmt.Sprintf("{name: ringfence-%s, mountPath: %s, readOnly: true}", filepath.Base(folder), folder)) ||
			!strings.Contains(manifests, fmt.Sprintf("- name: ringfence-%s\n          secret:\n", filepath.Base(folder))) {
			t.Errorf("%s = %s, where nothing is mounted", s.Key, s.Value)
		}
	}
}

// routerFile writes the router.yaml of rendered manifests to a file.
func routerFile(t *testing.T, manifests []byte) string {
	t.Helper()
	decoder := yaml.NewDecoder(bytes.NewReader(manifests))
	for {
		var manifest struct{ Data map[string]string }
		if err := decoder.Decode(&manifest); err != nil {
			t.Fatalf("no manifest has a router.yaml: %v", err)
		}
		if content, ok := manifest.Data["router.yaml"]; ok {
			path := filepath.Join(t.TempDir(), "router.yaml")
			write(t, path, content)
			return path
		}
	}
}

// TestImageFile: the image builds with the Go version of go.mod, and does not run as root.
func TestImageFile(t *testing.T) {
	image := read(t, "Dockerfile")
	version := regexp.MustCompile(`(?m)^go (\d+\.\d+)`).FindStringSubmatch(read(t, "../go.mod"))[1]
	if !strings.Contains(image, "golang:"+version+"-") {
		t.Errorf("Dockerfile does not build with Go %s, which go.mod wants", version)
	}
	base := regexp.MustCompile(`(?m)^FROM (gcr\.io/distroless/static-\S+:nonroot(?:@sha256:[0-9a-f]{64})?) AS base$`).FindStringSubmatch(image)
	if base == nil || !strings.Contains(read(t, "../.ko.yaml"), "defaultBaseImage: "+base[1]+"\n") {
		t.Errorf("Dockerfile and .ko.yaml do not build on the same distroless image without root: %v", base)
	}
}

// TestImageIsBuiltFromAllTrackedFiles: Go marks a build as +dirty if a file that git knows is missing.
func TestImageIsBuiltFromAllTrackedFiles(t *testing.T) {
	patterns := func(path string) (all []string) {
		for line := range strings.Lines(read(t, path)) {
			if pattern := strings.Trim(line, "/\n"); pattern != "" && !strings.HasPrefix(pattern, "#") {
				all = append(all, pattern)
			}
		}
		return all
	}
	untracked := patterns("../.gitignore")
	for _, pattern := range patterns("../.dockerignore") {
		if !slices.Contains(untracked, pattern) {
			t.Errorf("%s is not in the context of the image, and git may know it", pattern)
		}
	}
}
