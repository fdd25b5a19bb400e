//go:build planted

package claim

import (
	"testing"

	"github.com/ringfence/router/internal/testing/planted"
)

// TestPlantedClaim: the contract of claims sees a router that takes another group's claim for its own, and
// sees nothing without that bug.
func TestPlantedClaim(t *testing.T) {
	if broken := secondIsRefused(t, memSite(t)); broken != "" {
		t.Fatalf("without a bug: %s", broken)
	}
	defer planted.Plant(planted.None)
	planted.Plant(planted.IdentityClaim)
	broken := secondIsRefused(t, memSite(t))
	if broken == "" {
		t.Fatal("not found")
	}
	t.Log(broken)
}
