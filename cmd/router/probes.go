package main

import (
	"github.com/ringfence/router/internal/adminhttp"
	"github.com/ringfence/router/internal/node"
)

// checksOf hands the checks of a node to the admin page.
func checksOf(checks []node.Check) []adminhttp.Check {
	list := make([]adminhttp.Check, len(checks))
	for i, c := range checks {
		list[i] = adminhttp.Check(c)
	}
	return list
}
