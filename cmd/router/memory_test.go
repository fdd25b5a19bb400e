package main

import (
	"fmt"
	"log/slog"
	"regexp"
	"runtime/debug"
	"strconv"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/ringfence/router/internal/config"
	"github.com/ringfence/router/internal/node"
)

// TestDeploymentsHaveMemoryForTheBound: the chart and the compose file give the runtime a third more than the memory bound of the
// defaults, as docs/install.md advises, and their texts name that bound.
func TestDeploymentsHaveMemoryForTheBound(t *testing.T) {
	loaded, err := config.Load(config.Sources{File: settingsFile(t, least)})
	if err != nil {
		t.Fatal(err)
	}
	bound := node.MemorySum(memoryBound(nodeConfigOf(loaded.Config), loaded.Pulsar.Config)) >> 20
	named := fmt.Sprintf("%d,%03d MiB", bound/1000, bound%1000)
	mebibytesIn := func(text, pattern string) int {
		t.Helper()
		found := regexp.MustCompile(pattern).FindStringSubmatch(text)
		if found == nil {
			t.Fatalf("no %s", pattern)
		}
		n, err := strconv.Atoi(found[1])
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	chart, compose := read(t, "../../deploy/helm/ringfence/values.yaml"), read(t, "../../deploy/compose/compose.yaml")
	limit := mebibytesIn(chart, `(?m)^  limits:\n(?:    #.*\n)*    memory: (\d+)Mi$`)
	for file, text := range map[string]string{"values.yaml": chart, "compose.yaml": compose} {
		soft := mebibytesIn(text, `(?:goMemLimit|GOMEMLIMIT): (\d+)MiB`)
		if soft*3 < bound*4 || soft*10 > limit*9 {
			t.Errorf("%s gives Go %d MiB of %d, want a third more than the bound, which is %d, and at most nine tenths of the limit", file, soft, limit, bound)
		}
		if !strings.Contains(text, named) {
			t.Errorf("%s does not name the memory bound, %s", file, named)
		}
	}
}

// A router with less memory than its settings may take says so at its start.
func TestMemoryBoundAboveTheLimit(t *testing.T) {
	loaded, err := config.Load(config.Sources{File: settingsFile(t, least)})
	if err != nil {
		t.Fatal(err)
	}
	before := debug.SetMemoryLimit(-1)
	defer debug.SetMemoryLimit(before)
	for limit, want := range map[int64]bool{1 << 30: true, 4 << 30: false} {
		debug.SetMemoryLimit(limit)
		var log strings.Builder
		noteMemoryBound(nodeConfigOf(loaded.Config), loaded.Pulsar.Config, prometheus.NewRegistry(), slog.New(slog.NewTextHandler(&log, nil)))
		if got := strings.Contains(log.String(), "exceeds GOMEMLIMIT"); got != want {
			t.Errorf("with a limit of %d it warns: %t, want %t", limit, got, want)
		}
	}
}
