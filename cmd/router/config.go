package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/ringfence/router/internal/config"
	"github.com/ringfence/router/internal/node"
)

func configCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "config", Short: "Check, show and explain settings", Args: requireSubcommand, RunE: requireSubcommand}
	cmd.AddCommand(lintCommand(), printCommand(), schemaCommand(), exampleCommand())
	return cmd
}

// withSettings gives a command the flags of `router run`, and takes the file as an argument too.
func withSettings(cmd *cobra.Command, run func(cmd *cobra.Command, loaded *config.Loaded) error) *cobra.Command {
	var file string
	cmd.Use += " [FILE]"
	cmd.Args = cobra.ArbitraryArgs
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		switch {
		case len(args) > 1, len(args) == 1 && file != "":
			return usageError{fmt.Errorf("%s takes one file, as its argument or by --config: see `%s --help`", cmd.CommandPath(), cmd.CommandPath())}
		case len(args) == 1:
			file = args[0]
		}
		loaded, err := load(cmd, file)
		if err != nil {
			return err
		}
		return run(cmd, loaded)
	}
	cmd.Flags().StringVar(&file, "config", "", "file with settings, in YAML; the same as FILE")
	config.AddFlags(cmd.Flags())
	return cmd
}

func lintCommand() *cobra.Command {
	return withSettings(&cobra.Command{
		Use:   "lint",
		Short: "Check settings without starting a router; print every error",
		Long: `Check settings without starting anything, as ` + "`router run`" + ` would read them: from flags,
the environment and a file. It reports all errors together, each with what to write
instead. The exit code is 2 if there are any.`,
	}, func(cmd *cobra.Command, loaded *config.Loaded) error {
		said := 0
		for _, s := range loaded.Settings() {
			if s.Origin != config.OriginDefault {
				said++
			}
		}
		out := bufio.NewWriter(cmd.OutOrStdout()) // which keeps the first error
		fmt.Fprintf(out, "ok: %d settings, all others have their defaults\n", said)
		for _, service := range config.Services(os.Environ()) {
			fmt.Fprintf(out, "# %s is ignored: Kubernetes gives it for a Service\n", service)
		}
		for _, v := range config.MisspelledVariables(os.Environ()) {
			fmt.Fprintf(out, "# %s is ignored: settings have two underscores, as %s\n", v.Variable, v.Want)
		}
		warnOfMode(out, loaded.Config)
		return out.Flush()
	})
}

// warnOfMode warns if the ownership mode is not exclusive.
func warnOfMode(w io.Writer, cfg config.Config) {
	if modeOf(cfg) == node.Gossip {
		fmt.Fprintln(w, "# not exclusive:", node.NotExclusive)
	}
}

// printed is one setting as `router config print` shows it.
type printed struct {
	Key    string `json:"key"`
	Value  string `json:"value"`
	Origin string `json:"origin,omitempty"`
}

func printCommand() *cobra.Command {
	var o outputForm
	var origin, redacted bool
	cmd := withSettings(&cobra.Command{
		Use:   "print",
		Short: "Print every setting and where its value comes from; secrets are hidden",
	}, func(cmd *cobra.Command, loaded *config.Loaded) error {
		var all []printed
		for _, s := range loaded.Settings() {
			one := printed{Key: s.Key, Value: s.Value}
			if redacted && s.Value != "" && (s.Value != s.Default || s.Key == "node.name") && s.Kind.IsWords() {
				one.Value = "(hidden)"
			}
			if origin {
				one.Origin = s.Origin
			}
			if redacted { // the path of the file too
				one.Origin, _, _ = strings.Cut(one.Origin, " ")
			}
			all = append(all, one)
		}
		return o.show(cmd.OutOrStdout(), all, func(p *page) {
			for _, one := range all {
				p.line("%s", strings.TrimRight(fmt.Sprintf("%-36s %-28s %s", one.Key, one.Value, one.Origin), " "))
			}
			printMemoryBound(p.out, loaded.Config)
			warnOfMode(p.out, loaded.Config)
		})
	})
	cmd.Flags().BoolVar(&origin, "origin", true, "show where each value comes from")
	cmd.Flags().BoolVar(&redacted, "redacted", false, "hide names, addresses, topics and paths too, so that the output can be shown to anybody")
	o.addTo(cmd)
	return cmd
}

func schemaCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "schema",
		Short: "Print the JSON Schema of a file with settings, for editors",
		Args:  noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			encoder := json.NewEncoder(cmd.OutOrStdout())
			encoder.SetIndent("", "  ")
			encoder.SetEscapeHTML(false)
			return encoder.Encode(config.Schema())
		},
	}
}

func exampleCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "example",
		Short: "Print a file with every setting, its documentation and its default",
		Args:  noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := fmt.Fprint(cmd.OutOrStdout(), config.Example())
			return err
		},
	}
}
