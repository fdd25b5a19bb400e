package main

import (
	"github.com/ringfence/router/internal/node"
	"github.com/ringfence/router/internal/telemetry"
)

// checksOf hands the checks of a node to the admin page.
func checksOf(checks []node.Check) []telemetry.Check {
	list := make([]telemetry.Check, len(checks))
	for i, c := range checks {
		list[i] = telemetry.Check(c)
	}
	return list
}
