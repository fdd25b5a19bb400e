// Package setting reads the name, kind and range of each setting from the types and tags of a
// Config's fields. The check of a package, the reader of the router's settings, their
// documentation and their JSON Schema are derived from it.
//
//	FrameMax int `unit:"bytes" min:"64KiB" max:"64MiB"`
//
// The tags, with values as they are written in a settings file:
//
//	min, max  the smallest and the largest value
//	above     the value must be greater
//	words     all allowed values, separated by commas
//	unit      bytes: the number is a size
//	needed    true: the value must not be empty
//	agree     true: the value must be equal at all members of a group; a name: the value is compared as part of that setting
//	from      the setting that the value is derived from; the field itself is not a setting
//
// Numbers without max are bounded by [WholeMax], [SizeMax] and [DurationMax], so that sums and products of them do not overflow.
package setting

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
)

// The greatest values of settings that have no max of their own.
const (
	WholeMax    = "2147483647"
	SizeMax     = "1TiB"
	DurationMax = "87600h"
)

// Kind is the form of a setting's value.
type Kind string

// IsWords reports whether values of this kind are text, which may contain names.
func (k Kind) IsWords() bool { return k == Text || k == List || k == Hidden }

// IsNumber reports whether values of this kind are numbers, perhaps with a unit.
func (k Kind) IsNumber() bool { return k == Whole || k == Number || k == Size || k == Duration }

// The kinds of settings.
const (
	Text     Kind = "text"
	Hidden   Kind = "secret" // text that is never shown
	Truth    Kind = "true or false"
	Whole    Kind = "whole number"
	Number   Kind = "number"
	Size     Kind = "size"     // bytes, as in 65536, 64KiB or 8MiB
	Duration Kind = "duration" // with its unit, as in 500ms, 2s or 5m
	List     Kind = "list"     // of text, with commas
)

// Secret is a value that is never shown.
type Secret string

// String returns a word instead of the secret.
func (s Secret) String() string {
	if s == "" {
		return ""
	}
	return "(hidden)"
}

// GoString returns a word instead of the secret.
func (s Secret) GoString() string { return s.String() }

// Field is one field of a Config.
type Field struct {
	reflect.StructField

	Key   string        // the name of the setting, as in spill.rate_max
	Value reflect.Value // of the field; it can be set if Fields was given a pointer
	Owner reflect.Type  // the struct that has the field
}

// Fields returns the fields of a struct, or of the struct that config points to, in their order. Those of embedded structs are
// named as if they were its own, those of other structs behind the name of the field that holds them.
func Fields(config any) []Field { return collect("", reflect.Indirect(reflect.ValueOf(config)), nil) }

func collect(prefix string, v reflect.Value, all []Field) []Field {
	for i := range v.NumField() {
		field := v.Type().Field(i)
		key := prefix + Snake(field.Name)
		switch {
		case field.Anonymous:
			all = collect(prefix, v.Field(i), all)
		case field.Type.Kind() == reflect.Struct:
			all = collect(key+".", v.Field(i), all)
		default:
			all = append(all, Field{field, key, v.Field(i), v.Type()})
		}
	}
	return all
}

// Snake turns FrameEventsMax into frame_events_max, and PulsarURL into pulsar_url.
func Snake(name string) string {
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

// Check reports every field of config that is out of range. Rules between settings are those of the router's settings.
func Check(config any) error {
	var errs []error
	for _, f := range Fields(config) {
		if !f.InRange() {
			errs = append(errs, fmt.Errorf("%s = %s, want %s", f.Key, f.Quoted(), f.Want()))
		}
	}
	return errors.Join(errs...)
}

// Kind returns how the value is written; "" if no file can have it.
func (f Field) Kind() Kind {
	switch f.Type {
	case reflect.TypeFor[time.Duration]():
		return Duration
	case reflect.TypeFor[Secret]():
		return Hidden
	}
	switch f.Type.Kind() {
	case reflect.Slice:
		return List
	case reflect.String:
		return Text
	case reflect.Bool:
		return Truth
	case reflect.Float64:
		return Number
	}
	switch {
	case !f.Value.CanInt() && !f.Value.CanUint():
		return ""
	case f.Tag.Get("unit") == "bytes":
		return Size
	}
	return Whole
}

// Needed reports whether the value must not be empty.
func (f Field) Needed() bool { return f.Tag.Get("needed") != "" }

// Empty reports whether the value is an empty text or list.
func (f Field) Empty() bool {
	return (f.Value.Kind() == reflect.String || f.Value.Kind() == reflect.Slice) && f.Value.Len() == 0
}

// Words returns all values there are, nil if they are not listed.
func (f Field) Words() []string {
	words, ok := f.Tag.Lookup("words")
	if !ok {
		return nil
	}
	return strings.Split(words, ",")
}

// Set sets the value to text's value, and reports whether text is of its kind; if not, the
// value is unchanged. Whole numbers that are too large for the type of the field become the
// largest one, which is out of range.
func (f Field) Set(text string) (ok bool) {
	text = strings.TrimSpace(text)
	var value any
	var err error
	switch kind := f.Kind(); kind {
	case Text, Hidden:
		value = text
	case List:
		items := strings.FieldsFunc(text, func(r rune) bool { return r == ',' })
		for i := range items {
			items[i] = strings.TrimSpace(items[i])
		}
		value = items
	case Truth:
		value, err = strconv.ParseBool(text)
	case Number:
		value, err = strconv.ParseFloat(text, 64)
	case Duration:
		value, err = time.ParseDuration(text)
	default:
		var n int64
		n, err = parseWhole(text, kind == Size)
		value = f.nearest(n)
	}
	if err == nil {
		f.Value.Set(reflect.ValueOf(value).Convert(f.Type))
	}
	return err == nil
}

// nearest returns the whole number nearest to n that the type of the field has.
func (f Field) nearest(n int64) int64 {
	least, most := int64(math.MinInt64)>>(64-f.Type.Bits()), int64(math.MaxInt64)>>(64-f.Type.Bits())
	if f.Value.CanUint() && f.Type.Bits() < 64 {
		least, most = 0, 2*most+1
	} else if f.Value.CanUint() {
		least = 0
	}
	return max(least, min(n, most))
}

// units of sizes, the largest first.
var units = []struct {
	suffix string
	bytes  int64
}{{"TiB", 1 << 40}, {"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10}}

// parseWhole returns the number that text has, or the nearest one there is.
func parseWhole(text string, size bool) (int64, error) {
	factor := int64(1)
	for _, unit := range units {
		if number, ok := strings.CutSuffix(text, unit.suffix); ok && size {
			text, factor = strings.TrimSpace(number), unit.bytes
			break
		}
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if errors.Is(err, strconv.ErrRange) {
		err = nil
	}
	return max(min(n, math.MaxInt64/factor), math.MinInt64/factor) * factor, err
}

// InRange reports whether the value is one that the tags allow.
func (f Field) InRange() bool {
	if words := f.Words(); words != nil {
		return slices.Contains(words, f.Value.String())
	}
	if f.Empty() {
		return !f.Needed()
	}
	if !f.Kind().IsNumber() {
		return true
	}
	n := f.Float()
	least, hasLeast := f.Bound("min")
	above, hasAbove := f.Bound("above")
	most, hasMost := f.Bound("max")
	return (!hasLeast || n >= least) && (!hasAbove || n > above) && (!hasMost || n <= most) // not a number is out of every range
}

// Float returns the value of a number, of durations in nanoseconds.
func (f Field) Float() float64 { return f.Value.Convert(reflect.TypeFor[float64]()).Float() }

// Bound returns the number of the tag min, above or max; for max, that of the kind if there is none. A tag that
// cannot be read is not a number, which puts every value out of range, the default too.
func (f Field) Bound(tag string) (n float64, ok bool) {
	text := f.Tag.Get(tag)
	if tag == "max" {
		text = f.most()
	}
	if text == "" {
		return 0, false
	}
	f.Value = reflect.New(f.Type).Elem()
	if !f.Set(text) {
		return math.NaN(), true
	}
	return f.Float(), true
}

func (f Field) most() string {
	return cmp.Or(f.Tag.Get("max"), map[Kind]string{Whole: WholeMax, Size: SizeMax, Duration: DurationMax}[f.Kind()])
}

// Range returns the range as the tags have it; "" is anything of the kind.
func (f Field) Range() string {
	if f.Needed() {
		return "not empty"
	}
	return f.within(f.Tag.Get("max"))
}

func (f Field) within(most string) string {
	least, above := f.Tag.Get("min"), f.Tag.Get("above")
	switch words := f.Words(); {
	case words != nil:
		return strings.Join(words[:len(words)-1], ", ") + " or " + words[len(words)-1]
	case least != "" && most != "":
		return least + " to " + most
	case least != "":
		return least + " or more"
	case above != "" && most != "":
		return "more than " + above + ", at most " + most
	case above != "":
		return "more than " + above
	case most != "":
		return "at most " + most
	}
	return ""
}

// forms are the kinds of values with examples.
var forms = map[Kind]string{
	Size:     "a size (65536, 64KiB, 8MiB)",
	Duration: "a duration with its unit (500ms, 2s, 5m)",
	Whole:    "a whole number",
	Number:   "a number",
	Truth:    "true or false",
	List:     "a list",
	Text:     "text",
	Hidden:   "text",
}

// Want describes the valid values, for messages.
func (f Field) Want() string {
	limits := f.within(f.most())
	switch {
	case f.Words() != nil:
		return limits
	case limits != "":
		return forms[f.Kind()] + ", " + limits
	}
	return forms[f.Kind()]
}

// String formats the value so that Set reads it back, unless it is secret.
func (f Field) String() string {
	switch v := f.Value.Interface().(type) {
	case fmt.Stringer: // time.Duration, Secret
		return v.String()
	case []string:
		return strings.Join(v, ",")
	}
	if n := f.Value; f.Kind() == Size && n.Int() != 0 {
		for _, unit := range units {
			if n.Int()%unit.bytes == 0 {
				return fmt.Sprint(n.Int()/unit.bytes) + unit.suffix
			}
		}
	}
	return fmt.Sprint(f.Value.Interface())
}

// Quoted formats the value for messages: text is in quotes and cut.
func (f Field) Quoted() string {
	switch f.Kind() {
	case Text, List:
		return fmt.Sprintf("%.100q", f.String())
	default:
		return f.String()
	}
}
