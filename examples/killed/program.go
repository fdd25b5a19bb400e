package killed

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
)

// Options are those that the examples share.
type Options struct {
	Router  string // the binary; "": it is built
	Verbose bool   // what the processes log is shown
}

// Program is the command of an example: the driver that people start, or, with serve as its first argument, the application that the driver starts.
type Program struct {
	Name  string
	Flags func(*flag.FlagSet) // declares the flags beside those of Options
	Drive func(context.Context, Options, io.Writer) error
	Serve func(ctx context.Context, arguments []string) error
}

// Main runs the program with the arguments of this process until it has ended, or a signal ends it, and exits with 1 if it fails.
func (p Program) Main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer stop()
	if err := p.run(ctx, os.Args[1:]); err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", p.Name, err)
		stop()
		os.Exit(1) //nolint:gocritic // stopped above
	}
}

func (p Program) run(ctx context.Context, arguments []string) error {
	if len(arguments) > 0 && arguments[0] == "serve" {
		return p.Serve(ctx, arguments[1:])
	}
	var o Options
	flags := flag.NewFlagSet(p.Name, flag.ContinueOnError)
	flags.StringVar(&o.Router, "router", "", "the router's binary; it is built without")
	flags.BoolVar(&o.Verbose, "verbose", false, "show what the processes log")
	p.Flags(flags)
	if err := flags.Parse(arguments); err != nil {
		return err
	}
	return p.Drive(ctx, o, os.Stdout)
}
