package main

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/ringfence/router/internal/config"
	"github.com/ringfence/router/internal/netx/untrusted"
	"github.com/ringfence/router/internal/report"
)

// fileFlags maps flags that name files to the extensions of these files; none: any file.
var fileFlags = map[string][]string{"config": {"yaml", "yml"}, "token-file": nil, "ca-file": nil}

// addCompletions lets shells complete the values of flags: words of a setting, forms of output,
// files, settings after --set, and the members of the group that answers.
func addCompletions(root *cobra.Command) {
	values := config.Values()
	each(root, func(cmd *cobra.Command) {
		cmd.LocalFlags().VisitAll(func(f *pflag.Flag) {
			if complete := completionOf(f, values); complete != nil {
				_ = cmd.RegisterFlagCompletionFunc(f.Name, complete) // it is there, and has none yet
			}
		})
	})
}

func each(cmd *cobra.Command, do func(*cobra.Command)) {
	do(cmd)
	for _, sub := range cmd.Commands() {
		each(sub, do)
	}
}

func completionOf(f *pflag.Flag, values map[string][]string) cobra.CompletionFunc {
	words := values[f.Name]
	extensions, isFile := fileFlags[f.Name]
	switch {
	case words != nil:
	case f.Name == "output" && strings.Contains(f.Usage, "yaml"):
		words = []string{"table", "json", "yaml"}
	case f.Name == "output":
		words = []string{"table", "json"}
	case f.Name == "from" && strings.Contains(f.Usage, fromRedlock):
		words = migrateFrom
	case f.Name == "set":
		return completeSetting
	case f.Name == "member":
		return completeMember
	case isFile:
		return func(*cobra.Command, []string, string) ([]cobra.Completion, cobra.ShellCompDirective) {
			if len(extensions) == 0 {
				return nil, cobra.ShellCompDirectiveDefault
			}
			return extensions, cobra.ShellCompDirectiveFilterFileExt
		}
	case strings.Contains(f.Name, "."): // a setting with too many values to list
		return cobra.NoFileCompletions
	default:
		return nil
	}
	return cobra.FixedCompletions(words, cobra.ShellCompDirectiveNoFileComp)
}

// completeSetting completes SECTION.KEY=VALUE.
func completeSetting(_ *cobra.Command, _ []string, typed string) ([]cobra.Completion, cobra.ShellCompDirective) {
	key, _, hasKey := strings.Cut(typed, "=")
	if !hasKey {
		names := slices.DeleteFunc(config.Names(), func(name string) bool { return config.IsSecret(name) || !strings.HasPrefix(name, typed) })
		for i := range names {
			names[i] += "="
		}
		return names, cobra.ShellCompDirectiveNoSpace | cobra.ShellCompDirectiveNoFileComp
	}
	var all []cobra.Completion
	for _, value := range config.Values()[key] {
		all = append(all, key+"="+value)
	}
	return all, cobra.ShellCompDirectiveNoFileComp
}

// completionPatience is how long a shell waits for the names of members.
const completionPatience = time.Second

// completeMember asks the router that the flags name.
func completeMember(cmd *cobra.Command, _ []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
	a := asker{}
	for name, to := range map[string]*string{"admin": &a.address, "token-file": &a.tokenFile, "ca-file": &a.caFile, "tls-name": &a.tlsName, "config": &a.file} {
		*to, _ = cmd.Flags().GetString(name) // without the flag it is the default
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(cmd.Context()), completionPatience)
	defer cancel()
	var m report.Members
	if a.get(ctx, "/v1/members", &m) != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	var names []cobra.Completion
	for _, one := range m.Members {
		if untrusted.Name(one.Name) == nil { // a shell may evaluate what it completes
			names = append(names, one.Name)
		}
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}
