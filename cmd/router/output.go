package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"reflect"
	"regexp"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"
	"go.yaml.in/yaml/v3"

	"github.com/ringfence/router/internal/netx/untrusted"
)

// outputForm is in which form a command shows data.
type outputForm struct{ form string }

// addTo adds the flag to a command.
func (o *outputForm) addTo(cmd *cobra.Command) {
	cmd.Flags().StringVarP(&o.form, "output", "o", "table", "table, json or yaml")
	before := cmd.RunE
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if o.form != "table" && o.form != "json" && o.form != "yaml" {
			return usageError{fmt.Errorf("--output = %q, want table, json or yaml", o.form)}
		}
		return before(cmd, args)
	}
}

// show writes data in the form that was asked for; table writes it for people.
func (o *outputForm) show(w io.Writer, data any, table func(*page)) error {
	switch o.form {
	case "json":
		var text strings.Builder
		encoder := json.NewEncoder(&text)
		encoder.SetIndent("", "  ")
		encoder.SetEscapeHTML(false)
		if err := encoder.Encode(data); err != nil {
			return err
		}
		_, err := io.WriteString(w, untrusted.JSON(text.String()))
		return err
	case "yaml":
		return writeYAML(w, data)
	}
	kept := bufio.NewWriter(w) // keeps the first error, for tables look at none
	table(&page{out: kept, colour: mayColour(w)})
	return kept.Flush()
}

// writeYAML writes data under the names and in the order of its JSON.
func writeYAML(w io.Writer, data any) error {
	text, err := json.Marshal(data)
	if err != nil {
		return err
	}
	var node yaml.Node // which keeps the order; JSON is YAML
	if err := yaml.Unmarshal([]byte(untrusted.YAML(string(text))), &node); err != nil {
		return err
	}
	unquote(&node)
	encoder := yaml.NewEncoder(w)
	encoder.SetIndent(2)
	if err := encoder.Encode(&node); err != nil {
		return err
	}
	return encoder.Close()
}

// unquote takes the braces and quotes of JSON off, where YAML needs none.
func unquote(n *yaml.Node) {
	if len(n.Content) > 0 {
		n.Style = 0
	}
	if n.Kind == yaml.ScalarNode && !notTextInYAML11.MatchString(n.Value) {
		n.Style &^= yaml.DoubleQuotedStyle // the encoder quotes again where a value would not be a string otherwise
	}
	for _, child := range n.Content {
		unquote(child)
	}
}

// notTextInYAML11 matches text that parsers of YAML 1.1, such as PyYAML, read as a number or as a
// boolean without quotes; the encoder follows YAML 1.2. The position 3:39 is 219 in base 60.
var notTextInYAML11 = regexp.MustCompile(`^(?:[-+]?[0-9][0-9_]*(?::[0-5]?[0-9])+(?:\.[0-9_]*)?|(?i:y|n|yes|no|on|off))$`)

// mayColour reports whether w is a terminal whose user has nothing against colours
// (https://no-color.org).
func mayColour(w io.Writer) bool {
	if r, collected := w.(*round); collected {
		w = r.out
	}
	return isTerminal(w) && os.Getenv("NO_COLOR") == ""
}

// isTerminal reports whether w is a terminal that understands escape sequences.
func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	if !ok || os.Getenv("TERM") == "dumb" {
		return false
	}
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}

// page writes tables and lines for people. Routers answer with names that others have
// given, so no cell and no argument reaches the terminal with a control character in it.
type page struct {
	out    io.Writer
	colour bool
}

// table writes rows in columns under headings.
func (p *page) table(headings []string, rows [][]string) {
	var text strings.Builder
	w := tabwriter.NewWriter(&text, 0, 0, 2, ' ', 0)
	for _, row := range append([][]string{headings}, rows...) {
		for _, cell := range row {
			fmt.Fprint(w, untrusted.Print(cell), "\t")
		}
		fmt.Fprint(w, strings.Repeat("\t", max(0, len(headings)-len(row)))) // a row that ends early would end the columns for those below it
		fmt.Fprintln(w)
	}
	_ = w.Flush() // to memory
	for line := range strings.Lines(text.String()) {
		fmt.Fprintln(p.out, strings.TrimRight(line, " \n"))
	}
}

// line writes one line.
func (p *page) line(format string, args ...any) {
	fmt.Fprintln(p.out, printable(format, args))
}

// alarm writes a line that should not be missed.
func (p *page) alarm(format string, args ...any) {
	text := printable(format, args)
	if p.colour {
		text = "\x1b[31m" + text + "\x1b[0m"
	}
	fmt.Fprintln(p.out, text)
}

// printable formats args as a terminal may see them.
func printable(format string, args []any) string {
	shown := make([]any, len(args))
	for i, arg := range args {
		switch arg := arg.(type) {
		case string:
			shown[i] = untrusted.Print(arg)
		case error:
			shown[i] = untrusted.Print(arg.Error())
		case fmt.Stringer:
			shown[i] = untrusted.Print(arg.String())
		default:
			shown[i] = arg
			if v := reflect.ValueOf(arg); v.Kind() == reflect.String { // a type of its own
				shown[i] = untrusted.Print(v.String())
			}
		}
	}
	return fmt.Sprintf(format, shown...)
}
