package main

import (
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"

	"github.com/ringfence/router/internal/telemetry"
	"github.com/ringfence/router/ring"
)

// build identifies the build of this router.
type build struct {
	Version  string `json:"version"`
	Revision string `json:"revision"`
	Go       string `json:"go"`
	HashID   string `json:"hash_id"` // members of one group have the same
}

func versionCommand() *cobra.Command {
	var o outputForm
	cmd := &cobra.Command{
		Use:   "version",
		Short: "Print the version",
		Args:  noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			b := build{Version: version(), Revision: telemetry.Revision(), Go: runtime.Version(), HashID: ring.HashID}
			return o.show(cmd.OutOrStdout(), b, func(p *page) { p.line("%s", b.Version) })
		},
	}
	o.addTo(cmd)
	return cmd
}

// version is the Go toolchain's data about this build.
func version() string {
	info, ok := debug.ReadBuildInfo()
	if !ok || info.Main.Version == "" {
		return "(unknown)"
	}
	return info.Main.Version
}
