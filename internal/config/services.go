package config

import (
	"regexp"
	"slices"
	"strings"
)

// Kubernetes gives every container variables for each Service of its namespace: NAME_SERVICE_HOST and NAME_SERVICE_PORT
// always, and more for each port. The variables of a Service called ringfence--x look like settings.
const (
	serviceHost = "_SERVICE_HOST"
	servicePort = "_SERVICE_PORT"
)

// serviceRest matches the part of a variable's name after the NAME of its Service.
var serviceRest = regexp.MustCompile(`^_(SERVICE_HOST|SERVICE_PORT(_[A-Z0-9_]+)?|PORT(_[0-9]+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)?)$`)

// WithoutSettings returns the variables that are not settings. It reuses the memory of environ.
func WithoutSettings(environ []string) []string {
	return slices.DeleteFunc(environ, func(variable string) bool { return strings.HasPrefix(variable, EnvPrefix) })
}

// Services returns the names of variables of Kubernetes Services that look like settings. [Load] ignores them.
func Services(environ []string) []string {
	given := map[string]bool{}
	for _, variable := range environ {
		if name, _, _ := strings.Cut(variable, "="); strings.HasPrefix(name, EnvPrefix) {
			given[name] = true
		}
	}
	var found []string
	for name := range given {
		service, ok := strings.CutSuffix(name, serviceHost)
		if !ok || !given[service+servicePort] {
			continue
		}
		for variable := range given {
			if rest, ok := strings.CutPrefix(variable, service); ok && serviceRest.MatchString(rest) {
				found = append(found, variable)
			}
		}
	}
	slices.Sort(found)
	return slices.Compact(found)
}

// withoutServices returns the variables that may be settings.
func withoutServices(environ []string) []string {
	services := Services(environ)
	if len(services) == 0 {
		return environ
	}
	return slices.DeleteFunc(slices.Clone(environ), func(variable string) bool {
		name, _, _ := strings.Cut(variable, "=")
		_, ours := slices.BinarySearch(services, name)
		return ours
	})
}
