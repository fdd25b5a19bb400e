package main

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"
)

// noArgs refuses arguments.
func noArgs(cmd *cobra.Command, args []string) error {
	if len(args) > 0 {
		return usageError{fmt.Errorf("%s takes no argument, and %q is one: see `%s --help`", cmd.CommandPath(), args[0], cmd.CommandPath())}
	}
	return nil
}

// oneArg wants one argument.
func oneArg(name string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) != 1 {
			return usageError{fmt.Errorf("%s takes one argument, %s, and was given %d: see `%s --help`", cmd.CommandPath(), name, len(args), cmd.CommandPath())}
		}
		return nil
	}
}

// aVerb is for commands that have others below them and do nothing themselves.
func aVerb(cmd *cobra.Command, args []string) error {
	var verbs []string
	for _, sub := range cmd.Commands() {
		if sub.IsAvailableCommand() {
			verbs = append(verbs, sub.Name())
		}
	}
	if len(args) == 0 {
		return usageError{fmt.Errorf("say what to do: %s %s", cmd.CommandPath(), strings.Join(verbs, "|"))}
	}
	if near := cmd.SuggestionsFor(args[0]); len(near) > 0 {
		return usageError{fmt.Errorf("there is no %s %s; did you mean %s?", cmd.CommandPath(), args[0], strings.Join(near, " or "))}
	}
	return usageError{fmt.Errorf("there is no %s %s; there are %s", cmd.CommandPath(), args[0], strings.Join(verbs, ", "))}
}
