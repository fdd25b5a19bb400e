package config

import (
	"errors"
	"fmt"
	"math"
	"reflect"
	"strconv"
	"strings"
	"time"
	"unicode"
)

// leaf is one setting of a Config, under the name by which people know it.
type leaf struct {
	key   string // section.name
	value reflect.Value
	size  bool         // a number of bytes
	owner reflect.Type // struct that has the field
	field string       // its name there
}

// leaves returns every setting of c, in the order of the fields. Embedded structs
// belong to the section that embeds them.
func leaves(c *Config) []leaf {
	var all []leaf
	collect("", reflect.ValueOf(c).Elem(), &all)
	return all
}

func collect(prefix string, v reflect.Value, all *[]leaf) {
	for i := range v.NumField() {
		field := v.Type().Field(i)
		key := prefix + snake(field.Name)
		switch {
		case field.Anonymous:
			collect(prefix, v.Field(i), all)
		case field.Type.Kind() == reflect.Struct:
			collect(key+".", v.Field(i), all)
		case derived[key] == "":
			size := strings.Contains(field.Name, "Bytes") || field.Name == "FrameMax"
			*all = append(*all, leaf{key, v.Field(i), size, v.Type(), field.Name})
		}
	}
}

// snake turns FrameEventsMax into frame_events_max, and PulsarURL into pulsar_url.
func snake(name string) string {
	var b strings.Builder
	runes := []rune(name)
	for i, r := range runes {
		startsWord := i > 0 && unicode.IsUpper(r) &&
			(!unicode.IsUpper(runes[i-1]) || i+1 < len(runes) && unicode.IsLower(runes[i+1]))
		if startsWord {
			b.WriteByte('_')
		}
		b.WriteRune(unicode.ToLower(r))
	}
	return b.String()
}

// set parses what a file, a variable or a flag says about a setting.
func (l leaf) set(raw any) error {
	if l.value.Kind() == reflect.Slice {
		return l.setList(raw)
	}
	if _, text := raw.(string); !text && l.value.Kind() == reflect.String && describe(raw) == "one value" {
		if l.value.Type() == secretType {
			raw = "no text"
		}
		return fmt.Errorf("is %v for YAML, want text: put it in quotes", raw) // 0600 would come as 384
	}
	switch raw.(type) {
	case string, bool, int, int64, uint64, float64:
		return l.setText(strings.TrimSpace(fmt.Sprint(raw)))
	}
	return fmt.Errorf("is %s, want one value", describe(raw))
}

// describe says what was given without showing it: it may be secret.
func describe(raw any) string {
	switch raw.(type) {
	case nil:
		return "empty"
	case []any:
		return "a list"
	case map[string]any:
		return "a section"
	}
	return "one value"
}

func (l leaf) setList(raw any) error {
	var items []string
	switch raw := raw.(type) {
	case string:
		if raw == "" {
			break
		}
		for item := range strings.SplitSeq(raw, ",") {
			items = append(items, strings.TrimSpace(item))
		}
	case []any:
		for _, item := range raw {
			text, ok := item.(string)
			if !ok {
				return fmt.Errorf("has %v in its list, want text", item)
			}
			items = append(items, text)
		}
	default:
		return fmt.Errorf("is %s, want a list", describe(raw))
	}
	l.value.Set(reflect.ValueOf(items))
	return nil
}

var (
	durationType = reflect.TypeFor[time.Duration]()
	secretType   = reflect.TypeFor[Secret]()
)

func (l leaf) setText(text string) error {
	if l.value.Type() == durationType {
		d, err := time.ParseDuration(text)
		if err != nil {
			return fmt.Errorf("= %q, want a duration such as 500ms, 2s or 5m", text)
		}
		l.value.SetInt(int64(d))
		return nil
	}
	switch l.value.Kind() {
	case reflect.String:
		l.value.SetString(text)
	case reflect.Bool:
		b, err := strconv.ParseBool(text)
		if err != nil {
			return fmt.Errorf("= %q, want true or false", text)
		}
		l.value.SetBool(b)
	case reflect.Float64:
		f, err := strconv.ParseFloat(text, 64)
		if err != nil {
			return fmt.Errorf("= %q, want a number", text)
		}
		l.value.SetFloat(f)
	default:
		return l.setNumber(text)
	}
	return nil
}

func (l leaf) setNumber(text string) error {
	n, err := parseNumber(text)
	switch {
	case err != nil && l.size:
		return fmt.Errorf("= %q, want a size such as 65536, 64KiB or 8MiB", text)
	case err != nil:
		return fmt.Errorf("= %q, want a whole number", text)
	case l.value.CanInt() && !l.value.OverflowInt(n):
		l.value.SetInt(n)
	case l.value.CanUint() && n >= 0 && !l.value.OverflowUint(uint64(n)):
		l.value.SetUint(uint64(n))
	default:
		return fmt.Errorf("= %q, which is out of the range of its type", text)
	}
	return nil
}

// units of sizes, largest first.
var units = []struct {
	suffix string
	bytes  int64
}{{"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10}}

var errNumber = errors.New("not a whole number")

func parseNumber(text string) (int64, error) {
	factor := int64(1)
	for _, unit := range units {
		if number, ok := strings.CutSuffix(text, unit.suffix); ok {
			text, factor = strings.TrimSpace(number), unit.bytes
		}
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n > math.MaxInt64/factor || n < math.MinInt64/factor {
		return 0, errNumber
	}
	return n * factor, nil
}

// String formats the setting so that set reads it back, unless it is secret.
func (l leaf) String() string {
	switch v := l.value.Interface().(type) {
	case fmt.Stringer: // time.Duration, Secret
		return v.String()
	case []string:
		return strings.Join(v, ",")
	case string:
		return withoutUser(v)
	}
	if l.size && l.value.CanInt() {
		return formatSize(l.value.Int())
	}
	return fmt.Sprint(l.value.Interface())
}

func formatSize(n int64) string {
	for _, unit := range units {
		if n != 0 && n%unit.bytes == 0 {
			return fmt.Sprint(n/unit.bytes) + unit.suffix
		}
	}
	return fmt.Sprint(n)
}
