package config

import (
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	"github.com/knadh/koanf/parsers/yaml"
	"github.com/knadh/koanf/providers/env/v2"
	"github.com/knadh/koanf/providers/posflag"
	"github.com/knadh/koanf/v2"
	"github.com/spf13/pflag"

	"github.com/ringfence/router/internal/netx/reload"
)

// EnvPrefix begins the name of every variable that is a setting.
const EnvPrefix = "RINGFENCE__"

// Sources are the places that settings are read from, apart from the defaults.
type Sources struct {
	File    string         // of YAML; empty: none
	Environ []string       // NAME=value, as os.Environ has it
	Flags   *pflag.FlagSet // with the flags of [AddFlags], parsed; nil: none
}

// Setting is one setting as it is in effect.
type Setting struct {
	Key    string
	Value  string // what is secret is hidden
	Origin string // [OriginDefault], or the file, variable or flag that has said so
	Kind   Kind
}

// OriginDefault is the origin of a value that nobody has said.
const OriginDefault = "default"

// Loaded is a valid Config, and where each of its values comes from.
type Loaded struct {
	Config
	origins map[string]string
}

// Settings returns all settings in the order of their sections, for printing.
func (l *Loaded) Settings() []Setting {
	var settings []Setting
	for _, leaf := range leaves(&l.Config) {
		origin := l.origins[leaf.key]
		if origin == "" {
			origin = OriginDefault
		}
		settings = append(settings, Setting{leaf.key, leaf.String(), origin, leaf.kind()})
	}
	return settings
}

// shown are the flags that a help text lists; the others exist all the same.
var shown = map[string]string{
	"node.group":          "name of the group of routers that share the events",
	"node.name":           "name of this router: stable over restarts, unique in its group",
	"pulsar.url":          "URL of the Pulsar broker",
	"pulsar.topics":       "topics to consume, with commas",
	"pulsar.subscription": "SHARED subscription to consume them with",
	"key.from":            "where the key of an event is: message_key, property:NAME or json:PATH",
	"app.listen":          "address for the application: HOST:PORT or unix:PATH",
	"gossip.seeds":        "addresses of other routers of the group, with commas: HOST:PORT or dns+HOST:PORT",
	"ownership.mode":      "strict, or gossip (which is not exclusive)",
	"ownership.profile":   "times of ownership: default, fast or calm",
	"log.level":           "debug, info, warn or error",
}

// AddFlags adds a flag for every setting that is not secret, named by its key. Help lists
// the usual ones. What is secret has none: everybody on a machine sees how processes
// were started.
func AddFlags(flags *pflag.FlagSet) {
	defaults := Default()
	for _, l := range leaves(&defaults) {
		if l.value.Type() == reflect.TypeFor[Secret]() {
			continue
		}
		usage, usual := shown[l.key]
		flags.String(l.key, l.String(), usage)
		flags.Lookup(l.key).Hidden = !usual
	}
}

// Load reads all sources and validates the result. The error lists everything
// that is wrong: every unknown key, every value that cannot be read, or else every
// value that does not make sense.
func Load(from Sources) (*Loaded, error) {
	loaded, err := Read(from)
	if err != nil {
		return nil, err
	}
	if err := errors.Join(loaded.derive(), loaded.Validate()); err != nil {
		return nil, err
	}
	return loaded, nil
}

// Read is [Load] without the last step: for commands that need a few settings of a
// router, and not a router that could run. What they need they look at themselves.
func Read(from Sources) (*Loaded, error) {
	layers, err := read(from)
	if err != nil {
		return nil, err
	}
	loaded := &Loaded{Config: Default(), origins: map[string]string{}}
	if err := apply(loaded, layers); err != nil {
		return nil, err
	}
	if profile, ok := profiles[loaded.Ownership.Profile]; ok { // once more, upon the times of the profile
		loaded.Ownership.Timing = profile()
		if err := apply(loaded, layers); err != nil {
			return nil, err
		}
	}
	return loaded, nil
}

// layer is what one source says.
type layer struct {
	values map[string]any // by key
	origin func(key string) string
}

// read reads the sources, the weakest first.
func read(from Sources) ([]layer, error) {
	var layers []layer
	add := func(provider koanf.Provider, parser koanf.Parser, origin func(key string) string) error {
		k := koanf.New(".")
		if err := k.Load(provider, parser); err != nil {
			return err
		}
		layers = append(layers, layer{k.All(), origin})
		return nil
	}
	if from.File != "" {
		if err := add(settingsFile(from.File), yaml.Parser(), func(string) string { return "file " + from.File }); err != nil {
			return nil, fmt.Errorf("config: file %s: %w", from.File, err)
		}
	}
	if err := add(environment(from.Environ), nil, func(key string) string { return "variable " + variable(key) }); err != nil {
		return nil, fmt.Errorf("config: environment: %w", err)
	}
	if from.Flags != nil {
		settings := posflag.ProviderWithValue(from.Flags, ".", nil, flagValue)
		if err := add(settings, nil, func(key string) string { return "flag --" + key }); err != nil {
			return nil, fmt.Errorf("config: flags: %w", err)
		}
	}
	return layers, nil
}

func environment(environ []string) *env.Env {
	return env.Provider("", env.Opt{
		Prefix:      EnvPrefix,
		EnvironFunc: func() []string { return withoutServices(environ) },
		TransformFunc: func(name, value string) (string, any) {
			key := strings.ToLower(strings.TrimPrefix(name, EnvPrefix))
			return strings.ReplaceAll(key, "__", "."), value
		},
	})
}

// variable returns the name of the variable for a key.
func variable(key string) string {
	return EnvPrefix + strings.ToUpper(strings.ReplaceAll(key, ".", "__"))
}

// flagValue leaves out the flags that are not settings: those have no section.
func flagValue(name, value string) (string, any) {
	if !strings.Contains(name, ".") {
		return "", nil
	}
	return name, value
}

// apply sets what the layers say, the strongest last.
func apply(to *Loaded, layers []layer) error {
	known := map[string]leaf{}
	for _, l := range leaves(&to.Config) {
		known[l.key] = l
	}
	var errs []error
	for _, layer := range layers {
		for _, key := range slices.Sorted(maps.Keys(layer.values)) {
			if err := applyOne(known, key, layer.values[key]); err != nil {
				errs = append(errs, fmt.Errorf("config: %s: %w", layer.origin(key), err))
				continue
			}
			to.origins[key] = layer.origin(key)
		}
	}
	return errors.Join(errs...)
}

func applyOne(known map[string]leaf, key string, raw any) error {
	if l, ok := known[key]; ok {
		if err := l.set(raw); err != nil {
			return fmt.Errorf("%s %w", key, err)
		}
		return nil
	}
	if l, ok := known[strings.TrimSuffix(key, fileSuffix)]; ok && strings.HasSuffix(key, fileSuffix) && l.kind() == Hidden {
		return l.setFromFile(raw)
	}
	if instead := derived[key]; instead != "" {
		return fmt.Errorf("%s cannot be set: it follows from %s", key, instead)
	}
	if isSection(known, key) {
		if isEmpty(raw) {
			return nil
		}
		return fmt.Errorf("%s is a section, not a setting", key)
	}
	if near, ok := Nearest(key, slices.Sorted(maps.Keys(known)), max(editsMin, len(key)/3)); ok {
		return fmt.Errorf("unknown key %s, the nearest is %s", key, near)
	}
	return fmt.Errorf("unknown key %s; `router config example` lists all", key)
}

// editsMin is how many letters of any key may be wrong for it to be taken for another; of
// a long one it may be a third.
const editsMin = 2

// fileSuffix makes the key of a secret that of a file with it.
const fileSuffix = "_file"

// secretBytesMax is the largest file that is taken for a secret.
const secretBytesMax = 64 << 10

// setFromFile sets a secret to what a file has, without the end of its line.
func (l leaf) setFromFile(raw any) error {
	path, ok := raw.(string)
	if !ok || path == "" {
		return fmt.Errorf("%s%s is %s, want the path of a file", l.key, fileSuffix, describe(raw))
	}
	content, err := reload.Secret(path, secretBytesMax)
	switch {
	case err != nil:
		return fmt.Errorf("%s%s: %w", l.key, fileSuffix, err)
	case strings.TrimSpace(string(content)) == "":
		return fmt.Errorf("%s%s: %s is empty", l.key, fileSuffix, path)
	}
	l.value.SetString(strings.TrimSpace(string(content)))
	return nil
}

func isSection(known map[string]leaf, key string) bool {
	for k := range known {
		if strings.HasPrefix(k, key+".") {
			return true
		}
	}
	return false
}

// isEmpty tells whether a section has nothing in it.
func isEmpty(raw any) bool {
	section, ok := raw.(map[string]any)
	return raw == nil || ok && len(section) == 0
}

// Nearest returns the one of names that takes the fewest edits to reach from key, and
// whether these are at most editsMax. There must be a name.
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
