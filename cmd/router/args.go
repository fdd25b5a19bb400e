package main

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/ringfence/router/internal/config"
)

// noArgs refuses arguments.
func noArgs(cmd *cobra.Command, args []string) error {
	if len(args) > 0 {
		return usageError{fmt.Errorf("%s takes no argument, and %q is one%s: see `%s --help`", cmd.CommandPath(), args[0], meant(cmd, args), cmd.CommandPath())}
	}
	return nil
}

// oneArg wants one argument.
func oneArg(name string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) != 1 {
			return usageError{fmt.Errorf("%s takes one argument, %s, and was given %d%s: see `%s --help`", cmd.CommandPath(), name, len(args), meant(cmd, args), cmd.CommandPath())}
		}
		return nil
	}
}

// meant returns a hint if an argument was probably meant as the value of a flag: the interval of --watch, whose value
// is optional, or a file with settings.
func meant(cmd *cobra.Command, args []string) string {
	for _, one := range args {
		if _, err := time.ParseDuration(one); err == nil && cmd.Flags().Changed("watch") {
			return "; for --watch write --watch=" + one
		}
		if file := strings.HasSuffix(one, ".yaml") || strings.HasSuffix(one, ".yml"); file && cmd.Flags().Lookup("config") != nil {
			return "; a file with settings comes after --config"
		}
	}
	return ""
}

// kinds says what a flag wants, by the type of its value.
var kinds = map[string]string{"duration": "a duration with its unit (500ms, 2s, 5m)", "int": "a whole number", "bool": "true or false"}

// wrongFlag returns a usage error that says what the flag wants, or suggests the nearest flag or the command's help.
func wrongFlag(cmd *cobra.Command, err error) error {
	if wrong, ok := errors.AsType[*pflag.InvalidValueError](err); ok {
		if want := kinds[wrong.GetFlag().Value.Type()]; want != "" {
			return usageError{fmt.Errorf("--%s = %q, want %s", wrong.GetFlag().Name, wrong.GetValue(), want)}
		}
	}
	unknown, ok := errors.AsType[*pflag.NotExistError](err)
	if !ok {
		return usageError{err}
	}
	var names []string
	cmd.Flags().VisitAll(func(f *pflag.Flag) { names = append(names, f.Name) })
	if near, ok := config.Nearest(unknown.GetSpecifiedName(), names, editsMax); ok {
		return usageError{fmt.Errorf("%w; did you mean --%s?", err, near)}
	}
	return usageError{fmt.Errorf("%w: see `%s --help`", err, cmd.CommandPath())}
}

// editsMax is the number of edits within which a word counts as a misspelling of another.
const editsMax = 2

// requireSubcommand is for commands that have others below them and do nothing themselves.
func requireSubcommand(cmd *cobra.Command, args []string) error {
	var verbs []string
	for _, sub := range cmd.Commands() {
		if sub.IsAvailableCommand() {
			verbs = append(verbs, sub.Name())
		}
	}
	if len(args) == 0 {
		return usageError{fmt.Errorf("%s needs a subcommand: %s; see `%s --help`", cmd.CommandPath(), strings.Join(verbs, "|"), cmd.CommandPath())}
	}
	cmd.SuggestionsMinimumDistance = editsMax
	if near := cmd.SuggestionsFor(args[0]); len(near) > 0 {
		return usageError{fmt.Errorf("there is no %s %s; did you mean %s?", cmd.CommandPath(), args[0], strings.Join(near, " or "))}
	}
	return usageError{fmt.Errorf("there is no %s %s; there are %s", cmd.CommandPath(), args[0], strings.Join(verbs, ", "))}
}

// requireWords has the commands that cobra adds refuse words that they do not know.
func requireWords(root *cobra.Command) {
	root.InitDefaultHelpCmd()
	root.SetOut(outputOf{root}) // cobra looks the output up here, before the caller may have set it
	root.InitDefaultCompletionCmd()
	root.SetOut(nil)
	for _, cmd := range root.Commands() {
		switch cmd.Name() {
		case "completion":
			cmd.Args, cmd.RunE = requireSubcommand, requireSubcommand
			for _, shell := range cmd.Commands() {
				shell.Args = noArgs
			}
		case "help":
			cmd.Args = func(_ *cobra.Command, args []string) error {
				on, left, err := root.Find(args)
				if err != nil || on.HasSubCommands() && len(left) > 0 {
					return requireSubcommand(on, left)
				}
				return nil
			}
		}
	}
}

// outputOf writes to the output that a command has at the time of the write.
type outputOf struct{ cmd *cobra.Command }

func (o outputOf) Write(b []byte) (int, error) { return o.cmd.OutOrStdout().Write(b) }
