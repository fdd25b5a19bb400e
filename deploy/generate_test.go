package deploy_test

import (
	"encoding/base64"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestChartGeneratesKeysOnce: asked for it, the chart makes Secrets of 32 random bytes where there is none, and renders one that is
// there as it is, so that an upgrade changes no key. TestAPIServer does the same with a real cluster and real releases.
func TestChartGeneratesKeysOnce(t *testing.T) {
	tool(t, "helm") // skips early
	orders := filepath.Join(charts(t), "orders")
	generate := sets("networkPolicy.enabled=false", "podDisruptionBudget.enabled=false", "secrets.peerTLS.issuer.name=", "config.peer.insecure=true",
		"secrets.gossipKeys.secretName=", "secrets.gossipKeys.generate=true", "secrets.adminToken.generate=true", "secrets.appToken.generate=true")
	template := func(there map[string]map[string]string, more ...string) *exec.Cmd {
		arguments := append([]string{"--dry-run=server", "--kube-apiserver=" + clusterWith(t, there), "--kube-token=x", "--disable-openapi-validation"}, generate...)
		return helmTemplate(t, orders, append(arguments, more...)...)
	}
	secrets := func(there map[string]map[string]string) map[string]map[string]string {
		found := map[string]map[string]string{}
		for _, m := range ofKind(parsed(t, accepts(t, template(there))), "Secret") {
			found[m.Metadata.Name] = m.Data
		}
		return found
	}

	first, second := secrets(nil), secrets(nil)
	keys := map[string]string{"shop-orders-gossip-keys": "keys", "shop-orders-admin-token": "token", "shop-orders-app-token": "token"}
	if len(first) != len(keys) {
		t.Errorf("%d Secrets, want %d: %v", len(first), len(keys), first)
	}
	for name, key := range keys {
		text, err := base64.StdEncoding.DecodeString(first[name][key])
		if err != nil {
			t.Fatal(err)
		}
		if random, err := base64.StdEncoding.DecodeString(string(text)); err != nil || len(random) != 32 {
			t.Errorf("%s holds %q, want 32 bytes in base64", name, text)
		}
		if first[name][key] == second[name][key] || name != "shop-orders-app-token" && first[name][key] == first["shop-orders-app-token"]["token"] {
			t.Errorf("%s has the same content as another Secret", name)
		}
	}

	there := map[string]map[string]string{
		"shop-orders-gossip-keys": {"keys": first["shop-orders-gossip-keys"]["keys"], "note": base64.StdEncoding.EncodeToString([]byte("by hand"))},
	}
	upgraded := secrets(there)
	if got := upgraded["shop-orders-gossip-keys"]; len(got) != 2 || got["keys"] != there["shop-orders-gossip-keys"]["keys"] || got["note"] == "" {
		t.Errorf("the Secret that is there is rendered with %v, want %v", got, there["shop-orders-gossip-keys"])
	}
	if len(upgraded) != len(keys) {
		t.Errorf("%d Secrets beside one that is there, want %d", len(upgraded), len(keys))
	}

	refuses(t, template(there, sets("secrets.gossipKeys.key=others")...), "has no key others")
}

// clusterWith starts a fake cluster for Helm's lookups of Secrets in the namespace shop, and returns its URL.
func clusterWith(t *testing.T, secrets map[string]map[string]string) string {
	t.Helper()
	type object map[string]any
	secret := func(name string) object {
		return object{"apiVersion": "v1", "kind": "Secret", "data": secrets[name], "metadata": object{
			"name": name, "namespace": "shop", "labels": object{"app.kubernetes.io/managed-by": "Helm"},
			"annotations": object{"meta.helm.sh/release-name": "shop", "meta.helm.sh/release-namespace": "shop"},
		}}
	}
	resource := func(kind string) object {
		return object{"name": strings.ToLower(kind) + "s", "namespaced": true, "kind": kind, "verbs": []string{"get", "list"}}
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var answer object
		switch name, one := strings.CutPrefix(r.URL.Path, "/api/v1/namespaces/shop/secrets/"); {
		case r.URL.Path == "/version":
			answer = object{"major": "1", "minor": "36", "gitVersion": kubernetesVersion}
		case r.URL.Path == "/api":
			answer = object{"kind": "APIVersions", "versions": []string{"v1"}}
		case r.URL.Path == "/apis":
			version := object{"groupVersion": "apps/v1", "version": "v1"}
			answer = object{"kind": "APIGroupList", "apiVersion": "v1", "groups": []object{{"name": "apps", "versions": []object{version}, "preferredVersion": version}}}
		case r.URL.Path == "/api/v1":
			answer = object{"kind": "APIResourceList", "groupVersion": "v1", "resources": []object{resource("Secret"), resource("ConfigMap"), resource("Service")}}
		case r.URL.Path == "/apis/apps/v1":
			answer = object{"kind": "APIResourceList", "groupVersion": "apps/v1", "resources": []object{resource("Deployment")}}
		case one && secrets[name] != nil:
			answer = secret(name)
		case r.URL.Path == "/api/v1/namespaces/shop/secrets":
			items := []object{}
			for name := range secrets {
				items = append(items, secret(name))
			}
			answer = object{"kind": "SecretList", "apiVersion": "v1", "metadata": object{}, "items": items}
		default:
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(http.StatusNotFound)
			answer = object{"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "NotFound", "code": http.StatusNotFound, "message": r.URL.Path + " is not there"}
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(answer) // helm reports a broken answer
	}))
	t.Cleanup(server.Close)
	return server.URL
}
