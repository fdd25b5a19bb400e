package config

import (
	"maps"
	"slices"
	"strings"
)

// sdkVariable is the SDKs' variable that would be a setting's with one underscore for two.
const sdkVariable = "RINGFENCE_APP_TOKEN_FILE"

// Misspelled is a variable that [Load] ignores, and the variable that its author probably means.
type Misspelled struct {
	Variable string
	Want     string
}

// MisspelledVariables returns the variables whose names are those of settings, but for a single
// underscore where two belong, as in RINGFENCE_PULSAR_URL for RINGFENCE__PULSAR__URL.
func MisspelledVariables(environ []string) []Misspelled {
	flat := map[string]string{} // the name with single underscores → the right one
	r := newReader()
	for key, f := range r.known {
		flat[flatVariable(key)] = variableOf(key)
		if _, secret := r.secretOf(key + fileSuffix); secret {
			flat[flatVariable(f.Key+fileSuffix)] = variableOf(key + fileSuffix)
		}
	}
	found := map[string]string{}
	for _, variable := range environ {
		name, _, _ := strings.Cut(variable, "=")
		if strings.HasPrefix(name, EnvPrefix) || name == sdkVariable {
			continue
		}
		if want, ok := flat[strings.ReplaceAll(name, "__", "_")]; ok {
			found[name] = want
		}
	}
	var all []Misspelled
	for _, name := range slices.Sorted(maps.Keys(found)) {
		all = append(all, Misspelled{name, found[name]})
	}
	return all
}

// variableOf returns the variable of a setting.
func variableOf(key string) string {
	return EnvPrefix + strings.ToUpper(strings.ReplaceAll(key, ".", "__"))
}

// flatVariable is variableOf with single underscores.
func flatVariable(key string) string {
	return strings.ReplaceAll(variableOf(key), "__", "_")
}
