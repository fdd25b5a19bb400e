package config

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	"github.com/spf13/pflag"
	"go.yaml.in/yaml/v3"

	"github.com/ringfence/router/internal/base/setting"
	"github.com/ringfence/router/internal/netx/reload"
)

// EnvPrefix is the prefix of all environment variables with settings.
const EnvPrefix = "RINGFENCE__"

// Sources are the places that settings are read from, apart from the defaults.
type Sources struct {
	File    string         // in YAML; empty: none
	Environ []string       // NAME=value, as os.Environ has it
	Flags   *pflag.FlagSet // with the flags of [AddFlags], parsed; nil: none
}

// Setting is one setting and its value in effect.
type Setting struct {
	Key     string
	Value   string // secrets are hidden
	Default string
	Origin  string // [OriginDefault], or the line of the file, the variable or the flag that sets it
	Kind    setting.Kind
}

// OriginDefault is the origin of a value that no source sets.
const OriginDefault = "default"

// Loaded is a valid Config with the origin of each value.
type Loaded struct {
	Config
	origins map[string]origin // of settings that a source sets, by name
}

// Settings returns all settings in the order of their sections, for printing.
func (l *Loaded) Settings() []Setting {
	var all []Setting
	was := table(new(Default()))
	for i, f := range table(&l.Config) {
		all = append(all, Setting{f.Key, shown(f), shown(was[i]), cmp.Or(l.origins[f.Key].String(), OriginDefault), f.Kind()})
	}
	return all
}

// table returns the settings of c in the order of their sections.
func table(c *Config) []setting.Field {
	return slices.DeleteFunc(setting.Fields(c), func(f setting.Field) bool { return f.Tag.Get("from") != "" })
}

// shown returns the value of a setting without secrets.
func shown(f setting.Field) string { return withoutUser(f.String()) }

// usual maps the flags that help texts list to their help. All other flags are hidden.
var usual = map[string]string{
	"node.group":          "name of the group of routers that share the events",
	"node.name":           "name of this router: stable across restarts, unique in its group",
	"pulsar.url":          "URL of the Pulsar broker",
	"pulsar.topics":       "topics to consume, comma-separated",
	"pulsar.subscription": "name of the SHARED subscription",
	"key.from":            "place of an event's key: message_key, property:NAME or json:PATH",
	"app.listen":          "address for the application: HOST:PORT or unix:PATH",
	"gossip.seeds":        "addresses of other routers of the group, comma-separated: HOST:PORT or dns+HOST:PORT",
	"ownership.mode":      "strict, or gossip (which is not exclusive)",
	"ownership.profile":   "times of ownership: default, fast or calm",
	"log.level":           "debug, info, warn or error",
}

// AddFlags adds a flag for every setting that is not secret, named by its key. Help lists the usual flags. Secrets have no
// flags: every user of a machine sees the command lines of its processes.
func AddFlags(flags *pflag.FlagSet) {
	for _, f := range table(new(Default())) {
		if f.Kind() == setting.Hidden {
			continue
		}
		flags.String(f.Key, shown(f), usual[f.Key])
		flags.Lookup(f.Key).Hidden = usual[f.Key] == ""
	}
}

// Names returns the names of all settings, in the order of their sections.
func Names() (names []string) {
	for _, f := range table(new(Default())) {
		names = append(names, f.Key)
	}
	return names
}

// Values returns the settings whose values are a few words, with these words.
func Values() map[string][]string {
	values := map[string][]string{}
	for _, f := range table(new(Default())) {
		if f.Kind() == setting.Truth {
			values[f.Key] = []string{"true", "false"}
		}
		if words := f.Words(); words != nil {
			values[f.Key] = words
		}
	}
	return values
}

// IsSecret reports whether a setting is secret.
func IsSecret(key string) bool {
	return slices.ContainsFunc(table(new(Default())), func(f setting.Field) bool { return f.Key == key && f.Kind() == setting.Hidden })
}

// origin is the place where a value is set.
type origin struct {
	source string // "file PATH", "variable NAME" or "flag --NAME"; "": none
	line   int    // of a file, from 1
	number string // the value as it is written, if it is a number
}

func (o origin) String() string {
	if o.line > 0 {
		return fmt.Sprintf("%s:%d", o.source, o.line)
	}
	return o.source
}

// problem is one error in the settings.
type problem struct {
	at   origin
	text string
}

// problemsMax bounds the reported problems. It is more than there are settings.
const problemsMax = 500

// reader reads settings, and collects the problems with them.
type reader struct {
	*Loaded
	known    map[string]setting.Field
	sections map[string]bool
	derived  map[string]string // fields that follow from a setting: name → that setting
	said     []said
	unread   bool            // the file cannot be read, so its settings are unknown
	doubtful map[string]bool // settings with a problem of their own, for which rules are not checked
	problems []problem
}

// said is the value that a source gives a setting.
type said struct {
	key   string
	value *yaml.Node
	at    origin
}

func newReader() *reader {
	r := &reader{
		Loaded: &Loaded{Config: Default(), origins: map[string]origin{}},
		known:  map[string]setting.Field{}, sections: map[string]bool{}, derived: map[string]string{}, doubtful: map[string]bool{},
	}
	for _, f := range setting.Fields(&r.Config) {
		if from := f.Tag.Get("from"); from != "" {
			r.derived[f.Key] = from
			continue
		}
		r.known[f.Key] = f
		for i, c := range f.Key {
			if c == '.' {
				r.sections[f.Key[:i]] = true
			}
		}
	}
	return r
}

// Load reads all sources and validates the result. The error lists all problems, each with its place: unknown keys, values of
// another kind or out of range, and broken rules between settings.
func Load(from Sources) (*Loaded, error) {
	r := newReader()
	r.read(from)
	if !r.unread {
		r.derive()
		r.check()
	}
	return r.result()
}

// Read is [Load] without the checks of ranges and rules. It is for commands that need only a few settings of a router, and
// check these themselves.
func Read(from Sources) (*Loaded, error) {
	r := newReader()
	r.read(from)
	return r.result()
}

func (r *reader) result() (*Loaded, error) {
	if len(r.problems) == 0 {
		return r.Loaded, nil
	}
	slices.SortStableFunc(r.problems, func(a, b problem) int {
		return cmp.Or(strings.Compare(a.at.source, b.at.source), a.at.line-b.at.line)
	})
	var errs []error
	if n := len(r.problems); n > 1 {
		errs = append(errs, fmt.Errorf("%d problems in the settings", n))
	}
	for _, p := range r.problems[:min(len(r.problems), problemsMax)] {
		if p.at.source != "" {
			p.text = strings.TrimPrefix(p.at.String(), "file ") + ": " + p.text
		}
		errs = append(errs, errors.New(p.text))
	}
	if more := len(r.problems) - problemsMax; more > 0 {
		errs = append(errs, fmt.Errorf("and %d more", more))
	}
	return nil, errors.Join(errs...)
}

func (r *reader) wrong(at origin, format string, args ...any) {
	r.problems = append(r.problems, problem{at, fmt.Sprintf(format, args...)})
}

// read applies the sources, the weakest first, to the defaults and the times of the profile.
func (r *reader) read(from Sources) {
	if from.File != "" {
		r.readFile(from.File)
	}
	for _, variable := range withoutServices(from.Environ) {
		name, value, _ := strings.Cut(variable, "=")
		if key, ok := strings.CutPrefix(name, EnvPrefix); ok {
			r.say(strings.ReplaceAll(strings.ToLower(key), "__", "."), text(value), origin{source: "variable " + name})
		}
	}
	if from.Flags != nil {
		from.Flags.Visit(func(f *pflag.Flag) {
			if strings.Contains(f.Name, ".") { // flags without a dot are not settings
				r.say(f.Name, text(f.Value.String()), origin{source: "flag --" + f.Name})
			}
		})
	}
	r.twice()
	for _, s := range r.said {
		if profile := profiles[strings.TrimSpace(s.value.Value)]; s.key == "ownership.profile" && profile != nil {
			r.Ownership.Timing = profile()
		}
	}
	for _, s := range r.said {
		r.set(s)
	}
}

// twice reports settings for which one source has two values under two names: two variables that differ in case, or a secret and
// its file. One of the values would be ignored. [reader.section] reports two values under one name.
func (r *reader) twice() {
	first := map[string]said{} // by kind of source and setting
	for _, s := range r.said {
		f := r.known[s.key]
		if secret, ok := r.secretOf(s.key); ok {
			f = secret
		}
		kind, _, _ := strings.Cut(s.at.source, " ")
		before, there := first[kind+" "+f.Key]
		switch {
		case !there:
			first[kind+" "+f.Key] = s
		case r.doubtful[f.Key], kind == "file" && before.key == s.key, kind != "file" && before.at.source == s.at.source: // the last one of equal names counts
		case kind == "file":
			r.wrong(s.at, "%s is set a second time, first in line %d: want it once", f.Key, before.at.line)
		default:
			_, name, _ := strings.Cut(before.at.source, " ")
			r.wrong(s.at, "%s is set a second time, first by %s: want it once", f.Key, name)
		}
	}
}

// text returns the value of a variable or a flag as a node.
func text(value string) *yaml.Node {
	return &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!str", Value: value}
}

// say records the value of a setting, if there is one of that name.
func (r *reader) say(key string, value *yaml.Node, at origin) {
	_, secret := r.secretOf(key)
	switch _, known := r.known[key]; {
	case known || secret:
		r.said = append(r.said, said{key, value, at})
	case r.derived[key] != "":
		r.wrong(at, "%s cannot be set: it follows from %s", key, r.derived[key])
	case r.sections[key]:
		if value.ShortTag() != "!!null" && value.Kind != yaml.MappingNode { // an empty section
			r.wrong(at, "%s is a section, not a setting: want settings in it, such as %s", key, r.firstOf(key))
		}
	default:
		r.unknown(key, value, at)
	}
}

// firstOf returns the first setting of a section.
func (r *reader) firstOf(section string) string {
	all := slices.Sorted(maps.Keys(r.known))
	return all[slices.IndexFunc(all, func(key string) bool { return strings.HasPrefix(key, section+".") })]
}

// misspelledMax is the number of edits within which a key counts as a misspelling of another. One within a third of its length is named, too.
const misspelledMax = 2

// keyBytesMax is the greatest length of keys for which a similar one is looked up.
const keyBytesMax = 64

// unknown reports an unknown key and the nearest known one. If the two are very similar, the value is also checked as
// a value of the known key.
func (r *reader) unknown(key string, value *yaml.Node, at origin) {
	if len(key) <= keyBytesMax && len(r.problems) < problemsMax {
		if near, ok := Nearest(key, slices.Sorted(maps.Keys(r.known)), len(key)/3); ok {
			r.wrong(at, "unknown key %s, the nearest is %s", key, near)
			r.doubtful[near] = true
			if edits(key, near) <= misspelledMax {
				r.said = append(r.said, said{near, value, at})
			}
			return
		}
	}
	r.wrong(at, "unknown key %.64s; `router config example` lists all", key)
}

// set sets a setting to the value of a source.
func (r *reader) set(s said) {
	f, how := r.known[s.key], setFrom
	if secret, ok := r.secretOf(s.key); ok {
		f, how = secret, setFromFile
	}
	if f.Kind().IsNumber() {
		s.at.number = fmt.Sprintf("%.100s", s.value.Value)
	}
	r.origins[f.Key] = s.at
	if complaint := how(f, s.value); complaint != "" {
		r.wrong(s.at, "%s %s", s.key, complaint)
		r.doubtful[f.Key] = true
	}
}

// setFrom sets a setting to a value. complaint says why the value is invalid, without showing secrets.
func setFrom(f setting.Field, value *yaml.Node) (complaint string) {
	list := f.Kind() == setting.List
	switch {
	case value.Kind == yaml.AliasNode:
		return "is an alias, want the value itself; text that begins with * needs quotes"
	case value.Kind == yaml.MappingNode:
		return "is a section, want " + one(f)
	case value.Kind == yaml.SequenceNode && list:
		return setList(f, value.Content)
	case value.Kind == yaml.SequenceNode:
		return "is a list, want " + one(f)
	}
	text := value.Value
	switch tag := value.ShortTag(); tag {
	case "!!str":
	case "!!null":
		return "is empty, want " + one(f)
	case "!!int", "!!float", "!!bool", "!!timestamp":
		if f.Kind() == setting.Text || f.Kind() == setting.Hidden || list { // 0600 is 384 for other readers of YAML
			return fmt.Sprintf("= %s, which is not text in YAML: put it in quotes", visible(f, text))
		}
		if octal := strings.TrimLeft(text, "+-"); tag == "!!int" && len(octal) > 1 && octal[0] == '0' && !strings.ContainsAny(octal[1:2], "xXoObB") {
			return fmt.Sprintf("= %.100s, which is octal in some YAML and decimal in other: leave the leading 0 out", text)
		}
		var n int64
		if tag == "!!int" && value.Decode(&n) == nil {
			text = fmt.Sprint(n) // for 1_000 or 0x10
		}
	default:
		return "has a tag, want a value without one; text that begins with ! needs quotes"
	}
	if !f.Set(text) {
		return fmt.Sprintf("= %.100q, want %s", text, f.Want())
	}
	return ""
}

// one describes the wanted value, for messages about a list, a section or an empty value.
func one(f setting.Field) string {
	if f.Kind() == setting.List {
		return "a list, as in [a, b]"
	}
	return "one value: " + f.Want()
}

// visible returns the text of a value that is not text in YAML, unless it is secret.
func visible(f setting.Field, text string) string {
	if f.Kind() == setting.Hidden {
		return "(hidden)"
	}
	return fmt.Sprintf("%.100s", text)
}

func setList(f setting.Field, values []*yaml.Node) (complaint string) {
	var items []string
	for _, value := range values {
		switch {
		case value.Kind != yaml.ScalarNode:
			return "has a list, a section or an alias in its list, want text"
		case value.ShortTag() != "!!str":
			return fmt.Sprintf("has %.100s in its list, want text: put it in quotes", value.Value)
		}
		items = append(items, strings.TrimSpace(value.Value)) // as the items of a variable
	}
	f.Value.Set(reflect.ValueOf(items))
	return ""
}

// fileSuffix makes the key of a secret the key of a file that contains it.
const fileSuffix = "_file"

// secretBytesMax bounds the size of a file with a secret.
const secretBytesMax = 64 << 10

// secretOf returns the secret for whose file a key stands, unless a setting has that name.
func (r *reader) secretOf(key string) (f setting.Field, ok bool) {
	f, ok = r.known[strings.TrimSuffix(key, fileSuffix)]
	_, own := r.known[key]
	return f, ok && !own && f.Kind() == setting.Hidden
}

// setFromFile sets a secret to the content of a file, without the trailing newline.
func setFromFile(f setting.Field, value *yaml.Node) (complaint string) {
	if value.Kind != yaml.ScalarNode || value.ShortTag() != "!!str" || value.Value == "" {
		return "is not the path of a file"
	}
	content, err := reload.Secret(value.Value, secretBytesMax)
	switch {
	case err != nil:
		return "cannot be read: " + err.Error()
	case strings.TrimSpace(string(content)) == "":
		return "cannot be used: " + value.Value + " is empty"
	}
	f.Set(string(content))
	return ""
}

// Nearest returns the name that takes the fewest edits to reach from key, and whether these
// are at most editsMax. names must not be empty.
func Nearest(key string, names []string, editsMax int) (near string, ok bool) {
	near = slices.MinFunc(names, func(a, b string) int { return edits(key, a) - edits(key, b) })
	return near, edits(key, near) <= editsMax
}

// edits counts the insertions, deletions and substitutions that turn a into b.
func edits(a, b string) int {
	row := make([]int, len(b)+1) // for the prefixes of b, against the prefix of a so far
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			substitute := diagonal
			if a[i] != b[j] {
				substitute++
			}
			diagonal = row[j+1]
			row[j+1] = min(substitute, diagonal+1, row[j]+1)
		}
	}
	return row[len(b)]
}
