package deploy_test

import (
	"encoding/json"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

// kubernetesVersion is the API that the charts are checked against.
const kubernetesVersion = "v1.36.3"

// kubernetesSchemas writes a JSON schema for each kind that the charts use, and returns
// their folder. They come from the OpenAPI document of the module k8s.io/kubernetes,
// which the Go proxy serves; sites that serve schemas are not needed.
func kubernetesSchemas(t *testing.T) string {
	t.Helper()
	swagger := filepath.Join(moduleDir(t, "k8s.io/kubernetes@"+kubernetesVersion), "api/openapi-spec/swagger.json")
	var document struct{ Definitions map[string]any }
	if err := json.Unmarshal([]byte(read(t, swagger)), &document); err != nil {
		t.Fatal(err)
	}
	// Swagger 2 knows no choice of types, so these two are "string" there.
	const machinery = "io.k8s.apimachinery.pkg."
	document.Definitions[machinery+"util.intstr.IntOrString"] = map[string]any{"type": []string{"string", "integer"}}
	document.Definitions[machinery+"api.resource.Quantity"] = map[string]any{"type": []string{"string", "number"}}

	dir := t.TempDir()
	for kind, definition := range map[string]string{
		"configmap-v1":                  "core.v1.ConfigMap",
		"service-v1":                    "core.v1.Service",
		"deployment-apps-v1":            "apps.v1.Deployment",
		"poddisruptionbudget-policy-v1": "policy.v1.PodDisruptionBudget",
		"networkpolicy-networking-v1":   "networking.v1.NetworkPolicy",
	} {
		name := "io.k8s.api." + definition
		needed := map[string]any{}
		strict(document.Definitions, name, needed)
		schema, err := json.Marshal(map[string]any{"$ref": "#/definitions/" + name, "definitions": needed})
		if err != nil {
			t.Fatal(err)
		}
		write(t, filepath.Join(dir, kind+".json"), string(schema))
	}
	write(t, filepath.Join(dir, "certificate-cert-manager-v1.json"), certificateSchema(t))
	return dir
}

// certificateSchema returns the JSON schema of cert-manager's kind Certificate.
func certificateSchema(t *testing.T) string {
	t.Helper()
	var definition struct {
		Spec struct {
			Versions []struct {
				Name   string
				Schema struct {
					OpenAPIV3Schema map[string]any `yaml:"openAPIV3Schema"`
				}
			}
		}
	}
	if err := yaml.Unmarshal([]byte(read(t, certificateDefinition(t))), &definition); err != nil {
		t.Fatal(err)
	}
	version := definition.Spec.Versions[0]
	if version.Name != "v1" {
		t.Fatalf("the first version of Certificate is %s, want v1", version.Name)
	}
	const name = "Certificate"
	strict(map[string]any{name: version.Schema.OpenAPIV3Schema}, name, map[string]any{})
	schema, err := json.Marshal(version.Schema.OpenAPIV3Schema)
	if err != nil {
		t.Fatal(err)
	}
	return string(schema)
}

// moduleDir returns the folder of a module of the Go proxy, as path@version.
func moduleDir(t *testing.T, module string) string {
	t.Helper()
	download := exec.CommandContext(t.Context(), "go", "mod", "download", "-json", module)
	download.Dir = t.TempDir() // outside of our module
	var downloaded struct{ Dir string }
	if err := json.Unmarshal(accepts(t, download), &downloaded); err != nil {
		t.Fatal(err)
	}
	return downloaded.Dir
}

// strict adds the definition of a name to needed, with all that it refers to. An object
// with known properties may have no others.
func strict(definitions map[string]any, name string, needed map[string]any) {
	if needed[name] != nil {
		return
	}
	definition, ok := definitions[name].(map[string]any)
	if !ok {
		return
	}
	needed[name] = definition
	if definition["properties"] != nil && definition["additionalProperties"] == nil {
		definition["additionalProperties"] = false
	}
	var walk func(any)
	walk = func(value any) {
		switch value := value.(type) {
		case map[string]any:
			if ref, ok := value["$ref"].(string); ok {
				strict(definitions, strings.TrimPrefix(ref, "#/definitions/"), needed)
			}
			if properties, ok := value["properties"].(map[string]any); ok && len(properties) > 0 && value["additionalProperties"] == nil && value["type"] == "object" {
				value["additionalProperties"] = false
			}
			for _, inner := range value {
				walk(inner)
			}
		case []any:
			for _, inner := range value {
				walk(inner)
			}
		}
	}
	walk(definition)
}
