package config

import (
	"fmt"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"time"
)

// Description is what can be said about one setting, for people and for editors.
type Description struct {
	Key     string
	Kind    Kind
	Default string   // as [Setting.Value] has it; "" is none
	Range   string   // what [Config.Validate] wants of it, in its words; "" is anything of its kind
	Words   []string // all values there are, if they are words
	Least   *int64   // the least whole number that is taken, if it is small
	Doc     string   // the comment of its field
	Needed  bool     // it has no default, and a router cannot run without it
}

// Variable returns the name of the environment variable of the setting.
func (d Description) Variable() string { return variable(d.Key) }

// Kind is how the value of a setting is written.
type Kind string

// The kinds of settings.
const (
	Text     Kind = "text"
	Hidden   Kind = "secret" // text that is never shown; also to be given as KEY_file, a file that holds it
	Truth    Kind = "true or false"
	Whole    Kind = "whole number"
	Number   Kind = "number"
	Size     Kind = "size"     // bytes, as in 65536, 64KiB or 8MiB
	Duration Kind = "duration" // with its unit, as in 500ms, 2s or 5m
	List     Kind = "list"     // of YAML, or with commas
)

// IsWords reports whether values of this kind may name somebody or something.
func (k Kind) IsWords() bool { return k == Text || k == List || k == Hidden }

func (l leaf) kind() Kind {
	switch {
	case l.value.Type() == durationType:
		return Duration
	case l.value.Type() == secretType:
		return Hidden
	case l.value.Kind() == reflect.Slice:
		return List
	case l.size:
		return Size
	}
	switch l.value.Kind() {
	case reflect.String:
		return Text
	case reflect.Bool:
		return Truth
	case reflect.Float64:
		return Number
	default:
		return Whole
	}
}

// needed are the settings without a default that a router cannot run without.
var needed = []string{"node.group", "pulsar.topics", "pulsar.subscription"}

// hostnameKey is the one setting whose default is another one on each machine.
const hostnameKey = "node.name"

// Describe returns all settings in the order of their sections. What it says about
// their ranges it has from [Config.Validate], by asking it about values that are not good.
func Describe() []Description {
	var all []Description
	valid := complete()
	for i, l := range leaves(&valid) {
		d := Description{Key: l.key, Kind: l.kind(), Doc: docs[l.key], Needed: slices.Contains(needed, l.key)}
		if !d.Needed {
			d.Default = l.String()
		}
		if l.key == hostnameKey {
			d.Default = "" // and the documentation says so
		}
		d.Range = rangeOf(i, l)
		if choice.MatchString(d.Range) {
			d.Words = strings.Split(strings.ReplaceAll(d.Range, " or ", ", "), ", ")
		}
		if d.Kind == Whole || d.Kind == Size {
			d.Least = leastOf(i)
		}
		all = append(all, d)
	}
	return all
}

// choice is what Validate wants of a setting that takes one of some words.
var choice = regexp.MustCompile(`^[a-z_]+(, [a-z_]+)*( or [a-z_]+)+$`)

// complete returns settings with which a router could run.
func complete() Config {
	c := Default()
	c.Node.Group, c.Node.Name = "group", "name"
	c.Pulsar.Topics, c.Pulsar.Subscription = []string{"topic"}, "subscription"
	return c
}

// wants is what follows the "want" of a complaint, up to its reason.
var wants = regexp.MustCompile(`, want (.+?)(?:: |; | \(|$)`)

// fields are names of other settings as Go has them.
var fields = regexp.MustCompile(`\b[A-Z][a-z]+([A-Z][a-z]+)*\b`)

// rangeOf returns what Validate wants of the setting with this place among all, if it is
// given what is most likely out of range.
func rangeOf(place int, l leaf) string {
	var found []string
	for _, bad := range badValues[l.kind()] {
		for _, complaint := range complaintsAbout(place, bad) {
			m := wants.FindStringSubmatch(complaint)
			if m == nil || !l.isSubject(complaint) {
				continue
			}
			if text := fields.ReplaceAllStringFunc(m[1], snakeOfField); !slices.Contains(found, text) {
				found = append(found, text)
			}
		}
		if len(found) > 0 && l.kind() != Duration {
			break
		}
	}
	return strings.Join(found, ", and ")
}

// isSubject reports whether a complaint is about this setting: "Name = bad, want …".
func (l leaf) isSubject(complaint string) bool {
	subject, _, _ := strings.Cut(complaint, " = ")
	subject = subject[strings.LastIndexByte(subject, ' ')+1:]
	return subject == l.key || strings.EqualFold(subject[strings.LastIndexByte(subject, '.')+1:], l.field) && !strings.Contains(subject, "_")
}

// snakeOfField leaves the words alone that are no names of settings.
func snakeOfField(word string) string {
	if slices.Contains([]string{"HOST", "Unix", "UTF", "IP"}, word) {
		return word
	}
	return snake(word)
}

// badValues are not good for most settings of a kind, the most likely ones first.
var badValues = map[Kind][]any{
	Text:     {"\x00", "", strings.Repeat("x", 1<<10)},
	Hidden:   {},
	Truth:    {},
	Whole:    {int64(-1), int64(0), int64(1) << 30},
	Size:     {int64(-1), int64(0)},
	Number:   {-1.0, 0.0},
	Duration: {-time.Nanosecond, time.Duration(0), 1000 * time.Hour},
	List:     {[]string{"\x00"}, []string(nil)},
}

// complaintsAbout returns what is wrong when one setting has a value, and was not before.
func complaintsAbout(place int, value any) []string {
	c := complete()
	before := complaintsOf(&c)
	c = complete()
	v := leaves(&c)[place].value
	given := reflect.ValueOf(value)
	if !given.CanConvert(v.Type()) || v.Kind() == reflect.Slice && v.Type() != given.Type() {
		return nil
	}
	if v.CanUint() && given.CanInt() && given.Int() < 0 {
		return []string{"x = -1, want 0 or more"} // it cannot even be read
	}
	v.Set(given.Convert(v.Type()))
	return slices.DeleteFunc(complaintsOf(&c), func(s string) bool { return slices.Contains(before, s) })
}

func complaintsOf(c *Config) []string {
	var all []string
	for _, err := range []error{c.derive(), c.Validate()} {
		if err != nil {
			all = append(all, strings.Split(err.Error(), "\n")...)
		}
	}
	return all
}

// leastOf returns the least of -1, 0 and 1 that is taken, nil if none or the first is.
func leastOf(place int) *int64 {
	for n := int64(-1); n <= 1; n++ {
		if len(complaintsAbout(place, n)) == 0 {
			if n < 0 {
				return nil
			}
			return &n
		}
	}
	return nil
}

// Schema returns the JSON Schema of a file with settings.
func Schema() map[string]any {
	sections := map[string]any{}
	root := object(sections)
	root["$schema"] = "https://json-schema.org/draft/2020-12/schema"
	root["title"] = "Settings of a Ringfence router"
	for _, d := range Describe() {
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
		if _, own := docs[d.Key+fileSuffix]; d.Kind == Hidden && !own {
			at[name+fileSuffix] = map[string]any{"type": "string", "description": "File with " + d.Key + ", read once at the start."}
		}
	}
	return root
}

func object(properties map[string]any) map[string]any {
	return map[string]any{"type": "object", "additionalProperties": false, "properties": properties}
}

// The patterns of what is text in JSON and more than that here.
const (
	durationPattern = `^-?([0-9]+(\.[0-9]*)?|\.[0-9]+)(ns|us|µs|ms|s|m|h)(([0-9]+(\.[0-9]*)?|\.[0-9]+)(ns|us|µs|ms|s|m|h))*$`
	sizePattern     = `^[0-9]+ *(KiB|MiB|GiB)?$`
)

// schema is that of one setting.
func (d Description) schema() map[string]any {
	s := map[string]any{"description": d.about()}
	switch d.Kind {
	case Truth:
		s["type"] = "boolean"
	case Whole:
		s["type"] = "integer"
	case Number:
		s["type"] = "number"
	case Size:
		s["type"], s["pattern"] = []string{"integer", "string"}, sizePattern
	case Duration:
		s["type"], s["pattern"] = "string", durationPattern
	case List:
		s["type"], s["items"] = []string{"array", "string"}, map[string]any{"type": "string"}
	case Text, Hidden:
		s["type"] = "string"
	}
	if d.Least != nil {
		s["minimum"] = *d.Least
	}
	if d.Words != nil {
		s["enum"] = d.Words
	}
	if d.Default != "" && d.Kind != Hidden {
		s["default"] = d.value()
	}
	return s
}

// value is the default as JSON has it.
func (d Description) value() any {
	c := Default()
	for _, l := range leaves(&c) {
		if l.key == d.Key && (d.Kind == Truth || d.Kind == Whole || d.Kind == Number || d.Kind == List) {
			return l.value.Interface()
		}
	}
	return d.Default
}

// about is the documentation with the range.
func (d Description) about() string {
	text := d.Doc
	if d.Range != "" && d.Words == nil {
		text += " Want " + d.Range + "."
	}
	return strings.TrimSpace(text)
}

// Example returns a file with every setting and its documentation, as comments but for
// what a router cannot run without.
func Example() string {
	var b strings.Builder
	b.WriteString("# Settings of a Ringfence router. What is commented out shows the default.\n" +
		"# A router starts once peer and gossip are protected (docs/security.md), listen on loopback only, or are insecure: true.\n")
	var open []string
	for _, d := range Describe() {
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
		if d.Needed {
			fmt.Fprintf(&b, "%s%s: %s\n", indent, name, exampleOf(d.Key))
			continue
		}
		fmt.Fprintf(&b, "%s#%s: %s\n", indent, name, yamlOf(d))
	}
	return b.String()
}

func exampleOf(key string) string {
	if key == "pulsar.topics" {
		return "[orders]"
	}
	return "orders"
}

// plain is text that YAML takes for nothing else.
var plain = regexp.MustCompile(`^[a-z_][a-z0-9_/-]*$`)

// yamlOf is a default as YAML has it.
func yamlOf(d Description) string {
	switch {
	case d.Kind == List:
		return "[" + d.Default + "]"
	case (d.Kind == Text || d.Kind == Hidden) && !plain.MatchString(d.Default):
		return fmt.Sprintf("%q", d.Default)
	}
	return d.Default
}

// wrap breaks text into lines of at most width runes, where it can.
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
