package deploy_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/ringfence/router/client"
	"github.com/ringfence/router/internal/config"
)

// manifest holds the fields of a rendered object that the tests of listeners read.
type manifest struct {
	Kind     string
	Metadata struct{ Name string }
	Data     map[string]string
	Spec     struct {
		Ports               []servicePort
		Template            struct{ Spec podSpec }
		PolicyTypes         []string `yaml:"policyTypes"`
		Ingress, Egress     []policyRule
		PodMetricsEndpoints []struct{ Port, Scheme string } `yaml:"podMetricsEndpoints"`
	}
}

type servicePort struct {
	Name       string
	Port       int
	TargetPort string `yaml:"targetPort"`
}

type podSpec struct {
	InitContainers []container `yaml:"initContainers"`
	Containers     []container
}

type container struct {
	Name  string
	Env   []struct{ Name, Value string }
	Ports []struct {
		Name          string
		ContainerPort int `yaml:"containerPort"`
	}
	StartupProbe   *probe `yaml:"startupProbe"`
	ReadinessProbe *probe `yaml:"readinessProbe"`
	LivenessProbe  *probe `yaml:"livenessProbe"`
	Lifecycle      struct {
		PreStop *probe `yaml:"preStop"`
	}
	VolumeMounts []volumeMount `yaml:"volumeMounts"`
}

type volumeMount struct {
	Name      string
	MountPath string `yaml:"mountPath"`
	ReadOnly  bool   `yaml:"readOnly"`
}

type probe struct {
	HTTPGet          struct{ Path, Port, Scheme string } `yaml:"httpGet"`
	PeriodSeconds    int                                 `yaml:"periodSeconds"`
	FailureThreshold int                                 `yaml:"failureThreshold"`
}

type policyRule struct {
	From, To []map[string]any
	Ports    []struct {
		Port     int
		Protocol string
	}
}

func parsed(t *testing.T, rendered []byte) (list []manifest) {
	t.Helper()
	decoder := yaml.NewDecoder(bytes.NewReader(rendered))
	for {
		var m manifest
		switch err := decoder.Decode(&m); {
		case errors.Is(err, io.EOF):
			return list
		case err != nil:
			t.Fatal(err)
		case m.Kind != "":
			list = append(list, m)
		}
	}
}

// ofKind returns the objects of one kind.
func ofKind(list []manifest, kind string) []manifest {
	return slices.DeleteFunc(slices.Clone(list), func(m manifest) bool { return m.Kind != kind })
}

// inTheClear returns the faults of the routers' listeners in these manifests: ports that other pods can reach, and that the
// settings of the router leave without credentials, or do not mention.
func inTheClear(t *testing.T, rendered []byte) (faults []string) {
	t.Helper()
	list := parsed(t, rendered)
	fault := func(format string, args ...any) { faults = append(faults, fmt.Sprintf(format, args...)) }
	pod := ofKind(list, "Deployment")[0].Spec.Template.Spec
	router := pod.InitContainers[0]

	environ := []string{"RINGFENCE__NODE__NAME=pod-0"}
	for _, variable := range router.Env {
		if variable.Value != "" {
			environ = append(environ, variable.Name+"="+variable.Value)
		}
	}
	loaded, err := config.Load(config.Sources{File: routerFile(t, rendered), Environ: environ})
	if err != nil {
		return []string{"the router does not start: " + err.Error()}
	}
	reachable := map[int]bool{} // ports that the router opens beyond the pod
	for _, l := range loaded.Listeners() {
		host, port, err := net.SplitHostPort(l.Address)
		if err != nil {
			continue // a socket, or off
		}
		number, err := strconv.Atoi(port)
		if err != nil {
			t.Fatal(err)
		}
		ip := net.ParseIP(host)
		reachable[number] = ip == nil || !ip.IsLoopback()
		if l.Exposed {
			fault("insecure: %s, %s: %s", l.Name, l.Address, l.ProtectedBy)
		}
	}

	named := map[string]int{}
	for _, c := range append(slices.Clone(pod.InitContainers), pod.Containers...) {
		for _, p := range c.Ports {
			named[p.Name] = p.ContainerPort
			if !reachable[p.ContainerPort] {
				fault("container %s has port %d, which the router does not open to other pods", c.Name, p.ContainerPort)
			}
		}
		for what, p := range map[string]*probe{"startup": c.StartupProbe, "readiness": c.ReadinessProbe, "liveness": c.LivenessProbe, "preStop": c.Lifecycle.PreStop} {
			if p == nil {
				continue
			}
			number, err := strconv.Atoi(p.HTTPGet.Port)
			if err != nil {
				number = named[p.HTTPGet.Port]
			}
			scheme := "HTTP"
			if loaded.Admin.TLS.Enabled() {
				scheme = "HTTPS"
			}
			if want := "0.0.0.0:" + strconv.Itoa(number); loaded.Admin.Listen != want || p.HTTPGet.Scheme != scheme {
				fault("container %s: %s asks %s at port %s, and the admin page is at %s, %s", c.Name, what, p.HTTPGet.Scheme, p.HTTPGet.Port, loaded.Admin.Listen, scheme)
			}
		}
	}
	for port, open := range reachable {
		if open && !slices.Contains(ports(router), port) {
			fault("the router opens port %d to other pods, and its container does not say so", port)
		}
	}
	for _, monitor := range ofKind(list, "PodMonitor") {
		for _, endpoint := range monitor.Spec.PodMetricsEndpoints {
			if endpoint.Port != "admin" || (endpoint.Scheme == "https") != loaded.Admin.TLS.Enabled() {
				fault("the PodMonitor asks port %s by %q, and the admin page has TLS: %v", endpoint.Port, endpoint.Scheme, loaded.Admin.TLS.Enabled())
			}
		}
	}
	for _, service := range ofKind(list, "Service") {
		for _, p := range service.Spec.Ports {
			// Not a name: some releases of Kubernetes do not find those of a sidecar (kubernetes#127958).
			if p.TargetPort != strconv.Itoa(p.Port) || !reachable[p.Port] {
				fault("service %s: port %d goes to %q", service.Metadata.Name, p.Port, p.TargetPort)
			}
			if encrypted := strings.HasPrefix(p.Name, "tls-"); p.Port == 16651 && encrypted != loaded.Peer.TLS.Enabled() {
				fault("service %s: a mesh takes port %s for TLS: %v, and peers have TLS: %v", service.Metadata.Name, p.Name, encrypted, loaded.Peer.TLS.Enabled())
			}
		}
	}
	return faults
}

func ports(c container) (list []int) {
	for _, p := range c.Ports {
		list = append(list, p.ContainerPort)
	}
	return list
}

// helmTemplate is render as a command.
func helmTemplate(t *testing.T, chart string, args ...string) *exec.Cmd {
	t.Helper()
	return tool(t, "helm", append([]string{"template", "shop", chart, "--namespace", "shop", "--kube-version", kubernetesVersion}, args...)...)
}

// inClear removes all credentials of the listeners, and allows that.
var inClear = sets(
	"secrets.peerTLS.issuer.name=", "config.peer.insecure=true", "secrets.gossipKeys.secretName=", "config.gossip.insecure=true", "config.admin.insecure=true",
)

// TestChartsOpenNothingInTheClear: as rendered by default, a router opens no port beyond its pod without TLS or keys, except
// for the admin page, which then serves probes, metrics and the hooks only. Any other port in the clear needs the word
// `insecure` in the values, which then is in the manifests.
func TestChartsOpenNothingInTheClear(t *testing.T) {
	tool(t, "helm") // skips early
	dir := charts(t)
	orders := filepath.Join(dir, "orders")
	asItIs := accepts(t, helmTemplate(t, orders))
	for name, arguments := range map[string][]string{"as it is": nil, "with everything": everything} {
		rendered := accepts(t, helmTemplate(t, orders, arguments...))
		if faults := inTheClear(t, rendered); len(faults) > 0 {
			t.Errorf("%s: %s", name, strings.Join(faults, "\n"))
		}
		if strings.Contains(routerOf(t, rendered), "insecure") {
			t.Errorf("%s: the router is set to be insecure", name)
		}
	}

	// Said in the values it is seen in the manifests, once for each listener.
	exposed := accepts(t, helmTemplate(t, orders, inClear...))
	faults := inTheClear(t, exposed)
	if slices.ContainsFunc(faults, func(f string) bool { return !strings.HasPrefix(f, "insecure: ") }) {
		t.Errorf("in the clear: %q", faults)
	}
	for _, name := range []string{"peer", "gossip", "admin"} {
		if !slices.ContainsFunc(faults, func(f string) bool { return strings.HasPrefix(f, "insecure: "+name+",") }) {
			t.Errorf("%s is in the clear, and this test does not see it: %q", name, faults)
		}
		if !strings.Contains(routerOf(t, exposed), "insecure: true") {
			t.Errorf("%s is in the clear, and the manifests do not say so", name)
		}
	}

	// The scan can fail.
	for name, plant := range map[string]struct{ old, replacement, want string }{
		"no certificate":             {"peer:\n      tls:", "peer:\n      ttl:", "does not start"},
		"no keys":                    {"encryption_keys_file: /etc/ringfence-secrets/gossip-keys/keys", "listen: 0.0.0.0:16652", "does not start"},
		"another port":               {"- {name: admin, containerPort: 16653", "- {name: admin, containerPort: 16654", "16654"},
		"a probe of another port":    {"{path: /livez, port: admin", "{path: /livez, port: peer", "liveness"},
		"a hook of another scheme":   {"port: 16653\n                scheme: HTTP\n", "port: 16653\n                scheme: HTTPS\n", "preStop"},
		"a service of another port":  {"targetPort: 16651", "targetPort: 16653", "service shop-orders-gossip"},
		"a service of a named port":  {"targetPort: 16651", "targetPort: peer", "service shop-orders-gossip"},
		"TLS under another name":     {"name: tls-peer", "name: grpc-peer", "a mesh takes port grpc-peer"},
		"an application's open port": {"- name: orders\n          image", "- name: orders\n          ports: [{containerPort: 8080}]\n          image", "8080"},
	} {
		planted := strings.Replace(string(asItIs), plant.old, plant.replacement, 1)
		if planted == string(asItIs) {
			t.Fatalf("%s: nothing to plant an error in: no %q", name, plant.old)
		}
		if faults := strings.Join(inTheClear(t, []byte(planted)), "\n"); !strings.Contains(faults, plant.want) {
			t.Errorf("%s: found %q, want %q in it", name, faults, plant.want)
		}
	}

	// The monitoring chart has nothing that listens.
	for _, m := range parsed(t, accepts(t, helmTemplate(t, filepath.Join(dir, "monitoring")))) {
		if m.Kind != "ConfigMap" && m.Kind != "PrometheusRule" {
			t.Errorf("the monitoring chart has a %s: this test does not know its ports", m.Kind)
		}
	}
}

// routerOf returns the text of the rendered router.yaml.
func routerOf(t *testing.T, rendered []byte) string { return read(t, routerFile(t, rendered)) }

// TestChartsDemandCredentials: without credentials, and without the word insecure, rendering fails with an error that names the
// values to set.
func TestChartsDemandCredentials(t *testing.T) {
	tool(t, "helm") // skips early
	orders := filepath.Join(charts(t), "orders")
	for name, wrong := range map[string]struct {
		sets []string
		why  string
	}{
		"no certificate of peers":         {sets("secrets.peerTLS.issuer.name="), "ringfence.config.peer.insecure=true"},
		"no keys":                         {sets("secrets.gossipKeys.secretName="), "ringfence.config.gossip.insecure=true"},
		"keys of every rendering":         {sets("secrets.gossipKeys.secretName=", "secrets.gossipKeys.generate=true"), "make it yourself"},
		"a token of every rendering":      {sets("secrets.appToken.generate=true"), "make it yourself"},
		"two origins of a certificate":    {sets("secrets.peerTLS.secretName=x", "secrets.peerTLS.name=x"), "leave one of them out"},
		"two origins of keys":             {sets("secrets.gossipKeys.generate=true"), "leave one of them out"},
		"a certificate and insecure":      {sets("config.peer.insecure=true"), "leave one of them out"},
		"keys and insecure":               {sets("config.gossip.insecure=true"), "leave one of them out"},
		"gossip that takes the clear":     {sets("config.gossip.verify_incoming=false"), "ringfence.config.gossip.insecure=true"},
		"TLS of the page and insecure":    {sets("config.admin.insecure=true", "secrets.adminTLS.secretName=x"), "leave one of them out"},
		"a secret by its full name":       {sets(`config.pulsar\.token=s3cret`), "pulsar.token"},
		"a token that can be guessed":     {sets("drain.token=short"), "/drain/token"},
		"a name that stands for many":     {sets("secrets.peerTLS.name=*.shop.svc"), "peerTLS/name"},
		"a Secret that has to have names": {sets("secrets.peerTLS.issuer.name=", "secrets.peerTLS.secretName=x"), "peerTLS.name"},
	} {
		t.Run(name, func(t *testing.T) {
			refuses(t, helmTemplate(t, orders, wrong.sets...), wrong.why)
		})
	}
}

// TestChartNetworkPolicy: the pod can reach only its group, DNS and Pulsar, unless the values allow more.
func TestChartNetworkPolicy(t *testing.T) {
	tool(t, "helm") // skips early
	orders := filepath.Join(charts(t), "orders")
	policy := func(values ...string) manifest {
		list := ofKind(parsed(t, accepts(t, helmTemplate(t, orders, sets(values...)...))), "NetworkPolicy")
		if len(list) != 1 {
			t.Fatalf("%d network policies with %q, want 1", len(list), values)
		}
		return list[0]
	}
	// rules has for each rule its ports and how many places it names; 0 stands for everywhere.
	rules := func(list []policyRule) (texts []string) {
		for _, r := range list {
			var text []string
			for _, p := range r.Ports {
				text = append(text, fmt.Sprint(p.Port, p.Protocol))
			}
			texts = append(texts, fmt.Sprintf("%s %d", strings.Join(text, ","), len(r.From)+len(r.To)))
		}
		return texts
	}
	for name, test := range map[string]struct {
		values                 []string
		types, ingress, egress []string
	}{
		"as it is": {
			nil,
			[]string{"Ingress", "Egress"},
			[]string{"16651TCP,16652TCP,16652UDP 1", "16653TCP 1"},
			[]string{"16651TCP,16652TCP,16652UDP 1", "53TCP,53UDP 2", "6650TCP,6651TCP 0"},
		},
		"Pulsar at one place": {
			[]string{"networkPolicy.pulsarTo[0].ipBlock.cidr=10.1.0.0/16", "networkPolicy.pulsarPorts={6651}", "networkPolicy.dnsTo=null"},
			[]string{"Ingress", "Egress"},
			[]string{"16651TCP,16652TCP,16652UDP 1", "16653TCP 1"},
			[]string{"16651TCP,16652TCP,16652UDP 1", "6651TCP 1"},
		},
		"and a database": {
			[]string{
				"networkPolicy.extraEgress[0].to[0].ipBlock.cidr=10.2.0.0/16",
				"networkPolicy.extraEgress[0].ports[0].port=5432", "networkPolicy.extraEgress[0].ports[0].protocol=TCP",
			},
			[]string{"Ingress", "Egress"},
			[]string{"16651TCP,16652TCP,16652UDP 1", "16653TCP 1"},
			[]string{"16651TCP,16652TCP,16652UDP 1", "53TCP,53UDP 2", "6650TCP,6651TCP 0", "5432TCP 1"},
		},
		"only what comes in": {
			[]string{"networkPolicy.egress=false"},
			[]string{"Ingress"},
			[]string{"16651TCP,16652TCP,16652UDP 1", "16653TCP 1"},
			nil,
		},
	} {
		got := policy(test.values...)
		if !slices.Equal(got.Spec.PolicyTypes, test.types) || !slices.Equal(rules(got.Spec.Ingress), test.ingress) || !slices.Equal(rules(got.Spec.Egress), test.egress) {
			t.Errorf("%s: types %q, ingress %q, egress %q, want %+v", name, got.Spec.PolicyTypes, rules(got.Spec.Ingress), rules(got.Spec.Egress), test)
		}
	}
	if list := ofKind(parsed(t, accepts(t, helmTemplate(t, orders, sets("networkPolicy.enabled=false")...))), "NetworkPolicy"); len(list) > 0 {
		t.Error("there is a network policy that was turned off")
	}
}

// TestComposeOpensNothing: the containers of the compose file are reached from this machine only, and the word insecure stands
// where a router has neither TLS nor keys.
func TestComposeOpensNothing(t *testing.T) {
	var file struct {
		Services map[string]struct {
			Environment map[string]string
			NetworkMode string `yaml:"network_mode"`
			Ports       []string
		}
	}
	if err := yaml.Unmarshal([]byte(read(t, "compose/compose.yaml")), &file); err != nil {
		t.Fatal(err)
	}
	published := 0
	for name, service := range file.Services {
		if service.NetworkMode != "" && !strings.HasPrefix(service.NetworkMode, "service:router-") {
			t.Errorf("%s has network_mode %s", name, service.NetworkMode)
		}
		for _, port := range service.Ports {
			published++
			if !strings.HasPrefix(port, "127.0.0.1:") {
				t.Errorf("%s: port %q can be reached from other machines", name, port)
			}
		}
		if !strings.HasPrefix(name, "router-") {
			continue
		}
		var environ []string
		for key, value := range service.Environment {
			environ = append(environ, key+"="+value)
		}
		loaded, err := config.Load(config.Sources{Environ: environ})
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		for _, l := range loaded.Listeners() {
			if said := service.Environment["RINGFENCE__"+strings.ToUpper(l.Name)+"__INSECURE"]; l.Exposed && said != "true" {
				t.Errorf("%s: %s at %s is in the clear, and the file does not say so", name, l.Name, l.Address)
			}
		}
	}
	if published != 5 {
		t.Errorf("%d published ports, want those of three routers, Prometheus and Grafana", published)
	}
}

// TestChartSharesTheTokenOfWorkers: the router and the application read the token of app.token_file from the same Secret; without one
// neither hears of a token.
func TestChartSharesTheTokenOfWorkers(t *testing.T) {
	tool(t, "helm") // skips early
	orders := filepath.Join(charts(t), "orders")
	for name, test := range map[string]struct {
		values []string
		file   string
	}{
		"no token": {nil, ""},
		"a token":  {sets("secrets.appToken.secretName=orders-app", "secrets.appToken.key=worker"), "/etc/ringfence-secrets/app-token/worker"},
	} {
		rendered := accepts(t, helmTemplate(t, orders, test.values...))
		var settings struct {
			App struct {
				TokenFile string `yaml:"token_file"`
			}
		}
		if err := yaml.Unmarshal([]byte(routerOf(t, rendered)), &settings); err != nil {
			t.Fatal(err)
		}
		pod := ofKind(parsed(t, rendered), "Deployment")[0].Spec.Template.Spec
		router, application := pod.InitContainers[0], pod.Containers[0]
		told := ""
		for _, variable := range application.Env {
			if variable.Name == client.TokenFileEnv {
				told = variable.Value
			}
		}
		if settings.App.TokenFile != test.file || told != test.file {
			t.Errorf("%s: the router reads it from %q, and the application from %q, want %q", name, settings.App.TokenFile, told, test.file)
		}
		for _, c := range []container{router, application} {
			mounted := slices.ContainsFunc(c.VolumeMounts, func(m volumeMount) bool {
				return m.Name == "ringfence-app-token" && m.MountPath == filepath.Dir(told) && m.ReadOnly
			})
			if mounted != (test.file != "") {
				t.Errorf("%s: container %s has it mounted: %v", name, c.Name, mounted)
			}
		}
		if volume := strings.Contains(string(rendered), "- name: ringfence-app-token\n          secret:\n            secretName: \"orders-app\"\n"); volume != (test.file != "") {
			t.Errorf("%s: the pod has the volume: %v", name, volume)
		}
	}
}
