package config

import (
	"fmt"
	"strings"
)

const pageHead = `# Settings

Every setting of a router. One name serves all places that a value may come from; the stronger one wins:

` + "```" + `
--mailbox.depth_max 500                  flag
RINGFENCE__MAILBOX__DEPTH_MAX=500        environment
mailbox: {depth_max: 500}                file, given with --config
` + "```" + `

A **size** is a number of bytes, or has a unit (64KiB, 8MiB). A **duration** has a unit (500ms, 2s, 5m). A **list** is one of YAML, or has commas.
A **secret** is never shown, has no flag, and may be given as a file: the key with ` + "`_file`" + ` at its end, or the variable with ` + "`_FILE`" + `.

` + "`router config lint`" + ` checks settings without starting anything, ` + "`router config print --origin`" + ` shows each with where its value comes from,
` + "`router config example`" + ` writes this page as a YAML file, and ` + "`router config schema`" + ` as a JSON Schema for editors.

This page is written from the code (` + "`go test ./internal/config -run UpToDate -update`" + `): the ranges are what the router itself wants.
`

// Page returns docs/settings.md.
func Page() string {
	var b strings.Builder
	b.WriteString(pageHead)
	section := ""
	for _, d := range Describe() {
		name, _, _ := strings.Cut(d.Key, ".")
		if name != section {
			section = name
			fmt.Fprintf(&b, "\n## %s\n\n| Setting | Kind | Default | Range | What it is |\n|---|---|---|---|---|\n", section)
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s | %s |\n", d.Key, d.Kind, d.defaultCell(), cell(d.Range), cell(d.Doc))
	}
	return b.String()
}

func (d Description) defaultCell() string {
	switch {
	case d.Needed:
		return "none: has to be set"
	case d.Key == hostnameKey:
		return "the host's name"
	case d.Default == "":
		return "empty"
	}
	return "`" + d.Default + "`"
}

// cell makes text fit for a table of Markdown.
func cell(text string) string {
	return strings.NewReplacer("|", `\|`, "<", "&lt;", "\n", " ").Replace(text)
}
