package config

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/ringfence/router/internal/base/setting"
)

// hostnameKey is the only setting whose default depends on the machine.
const hostnameKey = "node.name"

// description documents one setting, for people and editors. The Field's value is the default.
type description struct {
	setting.Field

	given string // the default as it is written; "": none
	limit string // the range, and the rules about the setting
	doc   string // the comment of the field
}

// describe returns all settings in the order of their sections.
func describe() []description {
	var all []description
	defaults := Default()
	defaults.Node.Name = "" // it depends on the machine
	for _, f := range table(&defaults) {
		var limits []string
		if text := f.Range(); text != "" {
			limits = append(limits, text)
		}
		for _, rule := range rules {
			if want, _, _ := strings.Cut(rule.want, ": "); rule.setting == f.Key {
				limits = append(limits, want)
			}
		}
		d := description{f, shown(f), strings.Join(limits, "; "), docs[f.Key]}
		if f.Tag.Get("agree") != "" {
			d.doc += " The same at all members of a group."
		}
		all = append(all, d)
	}
	return all
}

// mustBeSet reports whether a router cannot run on the default.
func (d description) mustBeSet() bool { return d.Needed() && d.given == "" && d.Key != hostnameKey }

// Schema returns the JSON Schema of a file with settings.
func Schema() map[string]any {
	sections := map[string]any{}
	root := object(sections)
	root["$schema"] = "https://json-schema.org/draft/2020-12/schema"
	root["title"] = "Settings of a Ringfence router"
	for _, d := range describe() {
		at := sections
		parts := strings.Split(d.Key, ".")
		for _, section := range parts[:len(parts)-1] {
			if at[section] == nil {
				at[section] = object(map[string]any{})
			}
			at = at[section].(map[string]any)["properties"].(map[string]any)
		}
		name := parts[len(parts)-1]
		at[name] = d.schema()
		if _, own := docs[d.Key+fileSuffix]; d.Kind() == setting.Hidden && !own {
			at[name+fileSuffix] = map[string]any{"type": "string", "description": "File with " + d.Key + ", read once at the start."}
		}
	}
	return root
}

func object(properties map[string]any) map[string]any {
	return map[string]any{"type": "object", "additionalProperties": false, "properties": properties}
}

// kindSchemas holds the schema of each kind of value: its type in JSON, and a pattern for sizes and durations as text.
var kindSchemas = map[setting.Kind]map[string]any{
	setting.Truth:  {"type": "boolean"},
	setting.Whole:  {"type": "integer"},
	setting.Number: {"type": "number"},
	setting.Size:   {"type": []string{"integer", "string"}, "pattern": `^[0-9]+ *(KiB|MiB|GiB|TiB)?$`},
	setting.Duration: {
		"type":    "string",
		"pattern": `^-?([0-9]+(\.[0-9]*)?|\.[0-9]+)(ns|us|µs|ms|s|m|h)(([0-9]+(\.[0-9]*)?|\.[0-9]+)(ns|us|µs|ms|s|m|h))*$`,
	},
	setting.List:   {"type": []string{"array", "string"}, "items": map[string]any{"type": "string"}},
	setting.Text:   {"type": "string"},
	setting.Hidden: {"type": "string"},
}

// schema returns the schema of the setting.
func (d description) schema() map[string]any {
	s := maps.Clone(kindSchemas[d.Kind()])
	s["description"] = d.about()
	switch d.Kind() {
	case setting.Whole, setting.Size, setting.Number: // durations are text in JSON
		for tag, word := range map[string]string{"min": "minimum", "above": "exclusiveMinimum", "max": "maximum"} {
			if bound, ok := d.Bound(tag); ok {
				s[word] = bound
			}
		}
	}
	if words := d.Words(); words != nil {
		s["enum"] = words
	}
	if d.given != "" && d.Kind() != setting.Hidden {
		s["default"] = d.given
		switch d.Kind() {
		case setting.Truth, setting.Whole, setting.Number, setting.List:
			s["default"] = d.Value.Interface()
		}
	}
	return s
}

// about returns the documentation with the range.
func (d description) about() string {
	text := d.doc
	if d.limit != "" && d.Words() == nil {
		text += " Range: " + d.limit + "."
	}
	return strings.TrimSpace(text)
}

// Example returns a file with every setting and its documentation. All settings are commented
// out but the required ones.
func Example() string {
	var b strings.Builder
	b.WriteString("# Settings of a Ringfence router. Settings that are commented out show the default.\n" +
		"# A router starts once peer and gossip are protected (docs/security.md), listen on loopback only, or are insecure: true.\n")
	var open []string
	for _, d := range describe() {
		parts := strings.Split(d.Key, ".")
		sections, name := parts[:len(parts)-1], parts[len(parts)-1]
		for i, section := range sections {
			if len(open) > i && open[i] == section {
				continue
			}
			if open = slices.Concat(open[:i:i], []string{section}); i == 0 {
				b.WriteString("\n")
			}
			fmt.Fprintf(&b, "%s%s:\n", strings.Repeat("  ", i), section)
		}
		open = open[:len(sections)]
		indent := strings.Repeat("  ", len(sections))
		for _, line := range wrap(d.about(), 96) {
			fmt.Fprintf(&b, "%s# %s\n", indent, line)
		}
		switch {
		case d.Kind() == setting.List && d.mustBeSet():
			fmt.Fprintf(&b, "%s%s: [orders]\n", indent, name)
		case d.mustBeSet():
			fmt.Fprintf(&b, "%s%s: orders\n", indent, name)
		default:
			fmt.Fprintf(&b, "%s#%s: %s\n", indent, name, d.yaml())
		}
	}
	return b.String()
}

// plain matches text that YAML reads as text without quotes.
var plain = regexp.MustCompile(`^[a-z_][a-z0-9_/-]*$`)

// yaml returns the default in YAML.
func (d description) yaml() string {
	switch d.Kind() {
	case setting.List:
		return "[" + d.given + "]"
	case setting.Text, setting.Hidden:
		if !plain.MatchString(d.given) {
			return fmt.Sprintf("%q", d.given)
		}
	}
	return d.given
}

// wrap breaks text into lines of at most width runes, except for longer words.
func wrap(text string, width int) []string {
	var lines []string
	line := ""
	for word := range strings.FieldsSeq(text) {
		if line != "" && len([]rune(line))+1+len([]rune(word)) > width {
			lines, line = append(lines, line), ""
		}
		if line != "" {
			line += " "
		}
		line += word
	}
	if line != "" {
		lines = append(lines, line)
	}
	return lines
}
