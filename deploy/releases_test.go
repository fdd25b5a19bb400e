package deploy_test

import (
	"bytes"
	"path/filepath"
	"slices"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/ringfence/router/internal/config"
)

// TestTwoReleasesAreOneGroup follows the blue/green row of docs/install.md: with the values that it names the routers of both
// releases find, admit and trust each other.
func TestTwoReleasesAreOneGroup(t *testing.T) {
	tool(t, "helm") // skips early
	orders := filepath.Join(charts(t), "orders")
	type release struct {
		settings *config.Loaded
		labels   map[string]string // of its pods
		policy   manifest
	}
	render := func(name, other string) release {
		manifests := accepts(t, tool(t, "helm", append([]string{"template", name, orders, "--namespace", "shop", "--kube-version", kubernetesVersion}, sets(
			"group=orders", "config.gossip.seeds={dns+"+other+"-orders-gossip.shop.svc:16652}", "secrets.peerTLS.name=orders-router",
			`networkPolicy.peers[0].podSelector.matchLabels.app\.kubernetes\.io/instance=`+other,
		)...)...))
		settings, err := config.Load(config.Sources{File: routerFile(t, manifests), Environ: []string{"RINGFENCE__NODE__NAME=" + name}})
		if err != nil {
			t.Fatal(err)
		}
		var pods struct {
			Spec struct {
				Template struct {
					Metadata struct{ Labels map[string]string }
				}
			}
		}
		decoder := yaml.NewDecoder(bytes.NewReader(manifests))
		for len(pods.Spec.Template.Metadata.Labels) == 0 {
			if err := decoder.Decode(&pods); err != nil {
				t.Fatal(err)
			}
		}
		return release{settings, pods.Spec.Template.Metadata.Labels, ofKind(parsed(t, manifests), "NetworkPolicy")[0]}
	}
	blue, green := render("blue", "green"), render("green", "blue")

	if blue.settings.Node.Group != green.settings.Node.Group || blue.settings.Peer.TLS.Name != green.settings.Peer.TLS.Name {
		t.Errorf("groups %q and %q, names in certificates %q and %q, want the same", blue.settings.Node.Group, green.settings.Node.Group,
			blue.settings.Peer.TLS.Name, green.settings.Peer.TLS.Name)
	}
	want := []string{"dns+blue-orders-gossip.shop.svc:16652", "dns+green-orders-gossip.shop.svc:16652"}
	for _, r := range []release{blue, green} {
		if got := slices.Sorted(slices.Values(r.settings.Gossip.Seeds)); !slices.Equal(got, want) {
			t.Errorf("seeds %q, want %q", got, want)
		}
	}
	// admits reports whether a rule on the port of peers selects these pods.
	admits := func(rules []policyRule, labels map[string]string) bool {
		for _, r := range rules {
			if len(r.Ports) == 0 || r.Ports[0].Port != 16651 {
				continue
			}
			for _, place := range slices.Concat(r.From, r.To) {
				selector, _ := place["podSelector"].(map[string]any)
				match, _ := selector["matchLabels"].(map[string]any)
				all := len(match) > 0
				for label := range match {
					all = all && labels[label] == match[label]
				}
				if all {
					return true
				}
			}
		}
		return false
	}
	for _, labels := range []map[string]string{blue.labels, green.labels} {
		if !admits(blue.policy.Spec.Ingress, labels) || !admits(blue.policy.Spec.Egress, labels) {
			t.Errorf("the policy of blue keeps pods with the labels %v from its routers", labels)
		}
	}
	if admits(blue.policy.Spec.Ingress, map[string]string{"app.kubernetes.io/name": "orders", "app.kubernetes.io/instance": "red"}) {
		t.Error("the policy of blue admits a release that it does not name")
	}
}
