package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"
	"go.yaml.in/yaml/v3"
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
		encoder := json.NewEncoder(w)
		encoder.SetIndent("", "  ")
		encoder.SetEscapeHTML(false)
		return encoder.Encode(data)
	case "yaml":
		return writeYAML(w, data)
	}
	p := &page{out: w, colour: mayColour(w)}
	table(p)
	return nil
}

// writeYAML writes data under the names and in the order of its JSON.
func writeYAML(w io.Writer, data any) error {
	text, err := json.Marshal(data)
	if err != nil {
		return err
	}
	var node yaml.Node // which keeps the order; JSON is YAML
	if err := yaml.Unmarshal(text, &node); err != nil {
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
	if n.Kind == yaml.ScalarNode {
		n.Style &^= yaml.DoubleQuotedStyle // the encoder puts them back around what would be no text without
	}
	for _, child := range n.Content {
		unquote(child)
	}
}

// mayColour reports whether w is a terminal whose user has nothing against colours
// (https://no-color.org).
func mayColour(w io.Writer) bool {
	f, ok := w.(*os.File)
	if !ok || os.Getenv("NO_COLOR") != "" || os.Getenv("TERM") == "dumb" {
		return false
	}
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}

// page is what people read: tables and lines.
type page struct {
	out    io.Writer
	colour bool
}

// table writes rows in columns under headings.
func (p *page) table(headings []string, rows [][]string) {
	w := tabwriter.NewWriter(p.out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, strings.Join(headings, "\t"))
	for _, row := range rows {
		fmt.Fprintln(w, strings.TrimRight(strings.Join(row, "\t"), "\t"))
	}
	_ = w.Flush() // a terminal that has gone has nobody to be told
}

// line writes one line.
func (p *page) line(format string, args ...any) { fmt.Fprintf(p.out, format+"\n", args...) }

// alarm writes a line that should not be missed.
func (p *page) alarm(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	if p.colour {
		text = "\x1b[31m" + text + "\x1b[0m"
	}
	fmt.Fprintln(p.out, text)
}
