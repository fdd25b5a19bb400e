package deploy_test

import (
	"bytes"
	"crypto/rand"
	"encoding/base64"
	"flag"
	"fmt"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/ringfence/router/internal/devtools/procgroup"
	"github.com/ringfence/router/internal/netx/mtls/tlstest"
)

var withAPIServer = flag.Bool("apiserver", false, "ask a real Kubernetes API server, which takes many minutes to build")

// operatorVersion is the release with the kinds PodMonitor and PrometheusRule, and certManagerVersion that with Certificate.
const (
	operatorVersion    = "v0.85.0"
	certManagerVersion = "v1.21.2"
)

// TestAPIServer: a Kubernetes API server accepts the rendered charts, and the pods that result
// from them, in a namespace with the strictest standard for pods. It is a real server with a real
// etcd, and gets a dry run: it does everything but store the result.
func TestAPIServer(t *testing.T) {
	if !*withAPIServer {
		t.Skip("asks an API server that has to be built first: make deploy-nightly")
	}
	kubectl, helm := startAPIServer(t)
	accepts(t, kubectl(customResources(t), "apply", "--server-side", "-f", "-"))
	accepts(t, kubectl("", "wait", "--for=condition=Established", "--timeout=60s", "customresourcedefinition", "--all"))
	accepts(t, kubectl("", "create", "namespace", "shop"))
	accepts(t, kubectl("", "label", "namespace", "shop", "pod-security.kubernetes.io/enforce=restricted"))
	accepts(t, kubectl("", "create", "serviceaccount", "default", "--namespace=shop")) // a controller would do that

	dryRun := func(manifests string) *exec.Cmd {
		return kubectl(manifests, "apply", "--server-side", "--dry-run=server", "--validate=strict", "-f", "-")
	}
	dir := charts(t)
	orders, monitoring := filepath.Join(dir, "orders"), filepath.Join(dir, "monitoring")
	rendered := string(render(t, orders, everything...))
	asItIs, rules := string(render(t, orders)), string(render(t, monitoring))
	for name, manifests := range map[string]string{
		"as it is": asItIs, "with everything": rendered, "its pods": podOf(t, rendered), "monitoring": rules,
	} {
		t.Run(name, func(t *testing.T) {
			said := string(accepts(t, dryRun(manifests)))
			if want := strings.Count("\n"+manifests, "\nkind: "); strings.Count(said, "serverside-applied (server dry run)") != want {
				t.Errorf("the server speaks of other objects than the %d that it was given:\n%s", want, said)
			}
		})
	}
	for name, plant := range map[string]struct{ manifests, old, replacement, why string }{
		"a field that is misspelt":        {rendered, "publishNotReadyAddresses", "publishNotReadyAdresses", "publishNotReadyAdresses"},
		"a port that is none":             {rendered, "containerPort: 16653", "containerPort: 166530", "must be between 1 and 65535"},
		"a mount of nothing":              {rendered, "- name: ringfence-config\n", "- name: ringfence-settings\n", `Not found: "ringfence-config"`},
		"a pod that may become more":      {podOf(t, rendered), "allowPrivilegeEscalation: false", "allowPrivilegeEscalation: true", "allowPrivilegeEscalation != false"},
		"a certificate of nobody":         {asItIs, "issuerRef:", "isuerRef:", "isuerRef"},
		"a monitor with a bad interval":   {rendered, "interval: 15s", "interval: soon", "spec.podMetricsEndpoints[0].interval"},
		"an alert that waits for nothing": {rules, "for: 5m", "for: soon", "Invalid value: \"soon\""},
	} {
		t.Run(name, func(t *testing.T) {
			planted := strings.Replace(plant.manifests, plant.old, plant.replacement, 1)
			if planted == plant.manifests {
				t.Fatalf("nothing to plant an error in: no %q", plant.old)
			}
			refuses(t, dryRun(planted), plant.why)
		})
	}
	if kept := accepts(t, kubectl("", "get", "--namespace=shop", "deployments,pods,services,networkpolicies", "--output=name")); len(kept) > 0 {
		t.Errorf("the dry runs were none, the server has kept\n%s", kept)
	}
	t.Run("keys are generated once", func(t *testing.T) {
		// `go build` makes a server that calls itself v0.0.0, which an installation would compare with this.
		for _, chart := range []string{orders, filepath.Join(orders, "charts/ringfence")} {
			path := filepath.Join(chart, "Chart.yaml")
			write(t, path, regexp.MustCompile(`(?m)^kubeVersion:.*\n`).ReplaceAllString(read(t, path), ""))
		}
		generatesOnce(t, orders, kubectl, helm)
	})
}

// generatesOnce: a release generates random keys at the first installation, and an upgrade keeps them, also after they were
// replaced by hand.
func generatesOnce(t *testing.T, chart string, kubectl func(string, ...string) *exec.Cmd, helm func(...string) *exec.Cmd) {
	accepts(t, kubectl("", "create", "namespace", "generated"))
	generate := sets("secrets.gossipKeys.secretName=", "secrets.gossipKeys.generate=true", "secrets.appToken.generate=true", "secrets.adminToken.generate=true")
	at := append([]string{"shop", chart, "--namespace=generated"}, generate...)
	kept := func(secret, key string) string {
		return string(accepts(t, kubectl("", "get", "secret", secret, "--namespace=generated", "--output=jsonpath={.data."+key+"}")))
	}
	secrets := map[string]string{"shop-orders-gossip-keys": "keys", "shop-orders-app-token": "token", "shop-orders-admin-token": "token"}

	accepts(t, helm(append([]string{"install"}, at...)...))
	first := map[string]string{}
	for secret, key := range secrets {
		first[secret] = kept(secret, key)
		text, err := base64.StdEncoding.DecodeString(first[secret])
		if err != nil {
			t.Fatal(err)
		}
		if random, err := base64.StdEncoding.DecodeString(string(text)); err != nil || len(random) != 32 {
			t.Errorf("%s holds %d bytes, want 32 in base64: %v", secret, len(random), err)
		}
	}
	if len(first) != 3 || first["shop-orders-app-token"] == first["shop-orders-admin-token"] {
		t.Errorf("three Secrets hold %d different values", len(first))
	}
	replaced := base64.StdEncoding.EncodeToString([]byte("replaced by hand"))
	accepts(t, kubectl("", "patch", "secret", "shop-orders-app-token", "--namespace=generated", "--patch", `{"data":{"token":"`+replaced+`"}}`))
	first["shop-orders-app-token"] = replaced

	accepts(t, helm(append([]string{"upgrade", "--set", "replicas=5"}, at...)...))
	if replicas := string(accepts(t, kubectl("", "get", "deployment", "shop-orders", "--namespace=generated", "--output=jsonpath={.spec.replicas}"))); replicas != "5" {
		t.Errorf("the upgrade was none: %s replicas", replicas)
	}
	for secret, key := range secrets {
		if now := kept(secret, key); now != first[secret] {
			t.Errorf("the upgrade has replaced the content of %s", secret)
		}
	}
}

// podOf returns the manifest of a pod as the controller of the Deployment would make it.
func podOf(t *testing.T, manifests string) string {
	t.Helper()
	decoder := yaml.NewDecoder(strings.NewReader(manifests))
	for {
		var manifest struct {
			Kind string
			Spec struct {
				Template struct{ Metadata, Spec map[string]any }
			}
		}
		if err := decoder.Decode(&manifest); err != nil {
			t.Fatalf("no manifest is a Deployment: %v", err)
		}
		if manifest.Kind != "Deployment" {
			continue
		}
		template := manifest.Spec.Template
		template.Metadata["name"], template.Metadata["namespace"] = "shop-orders-0", "shop"
		pod, err := yaml.Marshal(map[string]any{"apiVersion": "v1", "kind": "Pod", "metadata": template.Metadata, "spec": template.Spec})
		if err != nil {
			t.Fatal(err)
		}
		return string(pod)
	}
}

// customResources returns the definitions of the kinds that the charts use and that are
// not Kubernetes' own.
func customResources(t *testing.T) string {
	t.Helper()
	folder := filepath.Join(moduleDir(t, "github.com/prometheus-operator/prometheus-operator@"+operatorVersion), "example/prometheus-operator-crd")
	return read(t, certificateDefinition(t)) + "\n---\n" + read(t, filepath.Join(folder, "monitoring.coreos.com_podmonitors.yaml")) +
		read(t, filepath.Join(folder, "monitoring.coreos.com_prometheusrules.yaml"))
}

// certificateDefinition returns the file with cert-manager's definition of the kind Certificate.
func certificateDefinition(t *testing.T) string {
	t.Helper()
	return filepath.Join(moduleDir(t, "github.com/cert-manager/cert-manager@"+certManagerVersion), "deploy/crds/cert-manager.io_certificates.yaml")
}

// startAPIServer starts an etcd and an API server for the duration of the test. The returned
// functions make commands of kubectl and helm with administrator's access; kubectl reads a text
// from its standard input.
func startAPIServer(t *testing.T) (kubectl func(stdin string, args ...string) *exec.Cmd, helm func(args ...string) *exec.Cmd) {
	t.Helper()
	dir := t.TempDir()
	ports, err := procgroup.FreePorts(3)
	if err != nil {
		t.Fatal(err)
	}
	clients, peers := "http://"+procgroup.Loopback(ports[0]), "http://"+procgroup.Loopback(ports[1])
	runs(t, built(t, "etcd", "--data-dir="+filepath.Join(dir, "etcd"), "--unsafe-no-fsync",
		"--listen-client-urls="+clients, "--advertise-client-urls="+clients,
		"--listen-peer-urls="+peers, "--initial-advertise-peer-urls="+peers, "--initial-cluster=default="+peers))

	ca := tlstest.NewCA(t)
	pair := ca.Issue(t, "127.0.0.1")
	token, tokens := rand.Text(), filepath.Join(dir, "tokens")
	write(t, tokens, token+",admin,admin,system:masters\n")
	server := runs(t, built(t, "kube-apiserver", "--etcd-servers="+clients,
		"--bind-address=127.0.0.1", fmt.Sprintf("--secure-port=%d", ports[2]),
		"--tls-cert-file="+pair.CertFile, "--tls-private-key-file="+pair.KeyFile,
		"--service-cluster-ip-range=10.96.0.0/16", "--service-account-issuer=https://kubernetes.default.svc",
		"--service-account-key-file="+pair.CertFile, "--service-account-signing-key-file="+pair.KeyFile,
		"--authorization-mode=RBAC", "--anonymous-auth=false", "--token-auth-file="+tokens))

	kubeconfig := filepath.Join(dir, "kubeconfig")
	write(t, kubeconfig, "") // or kubectl would use that of the user who runs the test
	kubectl = func(stdin string, args ...string) *exec.Cmd {
		cmd := built(t, "kubectl", append([]string{
			"--kubeconfig=" + kubeconfig, "--cache-dir=" + filepath.Join(dir, "cache"), "--token=" + token,
			"--server=https://" + procgroup.Loopback(ports[2]), "--certificate-authority=" + ca.File,
		}, args...)...)
		cmd.Stdin = strings.NewReader(stdin)
		return cmd
	}
	helm = func(args ...string) *exec.Cmd {
		cmd := built(t, "helm", append(args, "--kubeconfig="+kubeconfig, "--kube-token="+token,
			"--kube-apiserver=https://"+procgroup.Loopback(ports[2]), "--kube-ca-file="+ca.File)...)
		for _, folder := range []string{"CACHE", "CONFIG", "DATA"} {
			cmd.Env = append(cmd.Environ(), "HELM_"+folder+"_HOME="+filepath.Join(dir, "helm"))
		}
		return cmd
	}
	for kubectl("", "get", "--raw=/readyz").Run() != nil {
		select {
		case <-server:
			t.Fatal("the API server has ended")
		case <-time.After(time.Second):
		}
	}
	return kubectl, helm
}

// runs starts a command that runs until the end of the test. If the test fails, the end of its
// output is logged. The channel is closed when the command has ended.
func runs(t *testing.T, cmd *exec.Cmd) <-chan struct{} {
	t.Helper()
	var output bytes.Buffer
	cmd.Stdout, cmd.Stderr = &output, &output
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = cmd.Wait() // it is killed, or its output tells why it failed
	}()
	t.Cleanup(func() {
		<-ended // the context of the test is over, which kills it
		if t.Failed() {
			t.Logf("%s:\n%s", filepath.Base(cmd.Path), output.Bytes()[max(0, output.Len()-4096):])
		}
	})
	return ended
}
