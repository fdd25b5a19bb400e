// Package identity holds the settings on which all members of a group must agree, and compares them.
//
// Members that differ in one of them would give one key to two applications, or the events of
// one application to another. Each member therefore sends its [Identity] with every
// introduction: in the control log, in the claims topic, to its peers and in gossip.
package identity

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// Bounds of an identity that comes from elsewhere.
const (
	SettingsMax = 64   // settings
	nameMax     = 128  // bytes of a name
	valueMax    = 4096 // bytes of a value
)

// Setting is one setting, as text.
type Setting struct {
	Name  string // as in the configuration, such as "key.from"
	Value string
}

// Identity is a list of settings, ascending by name and each there once. Nil is an identity that is not
// known. It is immutable.
type Identity []Setting

// Of returns the identity with these settings, in any order.
func Of(settings ...Setting) Identity {
	i := Identity(slices.Clone(settings))
	slices.SortFunc(i, func(a, b Setting) int { return cmp.Compare(a.Name, b.Name) })
	return i
}

// Value returns the value of a setting, and whether the identity has it.
func (i Identity) Value(name string) (string, bool) {
	at, ok := slices.BinarySearchFunc(i, name, func(s Setting, name string) int { return cmp.Compare(s.Name, name) })
	if !ok {
		return "", false
	}
	return i[at].Value, true
}

// Validate reports whether an identity that comes from elsewhere has the right shape: names ascending, and
// all within bounds. An unknown one is valid.
func (i Identity) Validate() error {
	if len(i) > SettingsMax {
		return fmt.Errorf("identity of %d settings, want at most %d", len(i), SettingsMax)
	}
	for n, s := range i {
		switch {
		case s.Name == "" || len(s.Name) > nameMax || len(s.Value) > valueMax:
			return fmt.Errorf("identity: setting %d has a name of %d and a value of %d bytes", n, len(s.Name), len(s.Value))
		case n > 0 && i[n-1].Name >= s.Name:
			return errors.New("identity: settings out of order")
		}
	}
	return nil
}

// Difference is one setting in which two identities differ.
type Difference struct {
	Name   string
	Ours   string
	Theirs string
}

// String says both values.
func (d Difference) String() string {
	return fmt.Sprintf("%s is %q here and %q there", d.Name, d.Ours, d.Theirs)
}

// Differences are all of them, ascending by name. Empty: the two agree.
type Differences []Difference

// String lists them for one line of a log, with their remark.
func (d Differences) String() string {
	texts := make([]string, len(d))
	for n, one := range d {
		texts[n] = one.String()
	}
	if remark := d.Remark(); remark != "" {
		texts = append(texts, remark)
	}
	return strings.Join(texts, "; ")
}

// Remark says where differing values may come from if not from the settings that bear their names, "" if
// from these alone. A mistyped topic shows only in the names of the topics that follow from it.
func (d Differences) Remark() string {
	if !slices.ContainsFunc(d, func(one Difference) bool {
		return one.Name == "pulsar.retry_topic" || one.Name == "pulsar.dead_letter_topic"
	}) {
		return ""
	}
	return "where the retry and dead letter topics are not set, their names follow from pulsar.topics: compare these first"
}

// Names lists the settings that differ, for labels.
func (d Differences) Names() []string {
	names := make([]string, len(d))
	for n, one := range d {
		names[n] = one.Name
	}
	return names
}

// Against returns in which settings theirs differs from i, which is ours. A setting that only one of them has
// is no difference: versions of the router that know more settings join groups of those that know fewer.
func (i Identity) Against(theirs Identity) Differences {
	var differ Differences
	for _, ours := range i {
		if value, ok := theirs.Value(ours.Name); ok && value != ours.Value {
			differ = append(differ, Difference{ours.Name, ours.Value, value})
		}
	}
	return differ
}
