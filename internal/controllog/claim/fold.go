package claim

import (
	"errors"
	"maps"
	"slices"

	"github.com/ringfence/router/internal/base/event"
	"github.com/ringfence/router/internal/base/identity"
)

// Result is the effect of a record.
type Result string

// The results.
const (
	Claimed   Result = "claimed"   // at least one resource was free and has a holder now
	Confirmed Result = "confirmed" // an identity that does not differ held all of them already
	Refused   Result = "refused"   // another identity holds one of them: the record has no effect
	Released  Result = "released"  // at least one resource is free again
	Malformed Result = "malformed" // it cannot be read, or is out of bounds: it has no effect
	Later     Result = "version"   // its format is of a later version: it has no effect
	Repeated  Result = "repeated"  // its position was read before: it has no effect again
)

// State is the state of one resource.
type State struct {
	Holder   identity.Identity // nil: free
	Since    event.Position    // of the record by which it got its holder, or became free
	Released bool              // free because a record released it
	Forced   bool              // that record was by force

	// Began says that fencing tokens were given out, of generation Gen at most. It outlasts the claim: sinks
	// still hold those tokens when another group comes.
	Began bool
	Gen   uint32
}

// Fold is the state that results from the records of a claims topic. The zero value is that of
// an empty log.
type Fold struct {
	states map[string]State
	last   event.Position
	read   bool // last is a position
}

// Apply takes the record at a position. Positions ascend; one that was read before changes nothing. The
// record is returned as far as it could be read.
func (f *Fold) Apply(at event.Position, data []byte) (Record, Result) {
	if f.read && !f.last.Before(at) {
		return Record{}, Repeated
	}
	f.last, f.read = at, true
	r, err := Decode(data)
	switch {
	case errors.Is(err, errVersion):
		return Record{}, Later
	case err != nil:
		return Record{}, Malformed
	case r.Release:
		return r, f.release(at, r)
	}
	return r, f.claim(at, r)
}

// claim gives a record's resources to its identity, all of them or none.
func (f *Fold) claim(at event.Position, r Record) Result {
	next := make(map[string]State, len(r.Resources))
	result := Confirmed
	for _, name := range r.Resources {
		s := f.states[name]
		switch {
		case s.Holder == nil:
			s.Holder, s.Since, s.Released, s.Forced = r.Identity, at, false, false
			result = Claimed
		case differs(s.Holder, r.Identity):
			return Refused
		default:
			s.Holder = merged(s.Holder, r.Identity)
			if s.Holder.Validate() != nil {
				return Malformed
			}
		}
		if r.Began {
			s.Began, s.Gen = true, max(s.Gen, r.Gen)
		}
		next[name] = s
	}
	fresh := 0
	for name := range next {
		if _, known := f.states[name]; !known {
			fresh++
		}
	}
	if len(f.states)+fresh > allResourcesMax {
		return Malformed
	}
	if f.states == nil {
		f.states = map[string]State{}
	}
	maps.Copy(f.states, next)
	return result
}

// release frees those of a record's resources that its identity holds; by force, all that have a holder.
func (f *Fold) release(at event.Position, r Record) Result {
	result := Refused
	for _, name := range r.Resources {
		s, known := f.states[name]
		if !known || s.Holder == nil || !r.Force && differs(s.Holder, r.Identity) {
			continue
		}
		s.Holder, s.Since, s.Released, s.Forced = nil, at, true, r.Force
		f.states[name] = s
		result = Released
	}
	return result
}

func differs(holder, other identity.Identity) bool {
	return len(holder.Against(other)) > 0
}

// merged returns the holder's settings and those that it did not have.
func merged(holder, other identity.Identity) identity.Identity {
	var more []identity.Setting
	for _, s := range other {
		if _, ok := holder.Value(s.Name); !ok {
			more = append(more, s)
		}
	}
	if more == nil {
		return holder
	}
	return identity.Of(slices.Concat(holder, more)...)
}

// Last returns the position of the newest record that was read, and whether there is one.
func (f *Fold) Last() (event.Position, bool) { return f.last, f.read }

// State returns the state of a resource; the zero value if there is none.
func (f *Fold) State(resource string) State { return f.states[resource] }

// Resources returns all that the log knows, ascending.
func (f *Fold) Resources() []string { return slices.Sorted(maps.Keys(f.states)) }

// Conflict is a resource that another group holds.
type Conflict struct {
	Resource    string
	Differences identity.Differences
}

// Verdict is the state of the resources that one group needs.
type Verdict struct {
	Conflicts []Conflict // held by another identity
	Free      []string   // without a holder
	Released  []string   // of Free: by a record that released them
	Extends   bool       // a holder lacks a setting that our identity has
	Began     bool       // of one of them fencing tokens were given out, of generation Gen at most
	Gen       uint32
	AllBegan  bool // of all of them, of generation GenLeast at least
	GenLeast  uint32
}

// Held reports whether an identity that does not differ holds all.
func (v Verdict) Held() bool { return len(v.Conflicts) == 0 && len(v.Free) == 0 }

// Judge compares an identity's resources with their holders.
func (f *Fold) Judge(ours identity.Identity, wanted []string) Verdict {
	v := Verdict{AllBegan: true, GenLeast: generationMax}
	for _, name := range wanted {
		s := f.states[name]
		switch {
		case s.Holder == nil:
			v.Free = append(v.Free, name)
			if s.Released {
				v.Released = append(v.Released, name)
			}
		case differs(ours, s.Holder):
			v.Conflicts = append(v.Conflicts, Conflict{Resource: name, Differences: ours.Against(s.Holder)})
		case len(merged(s.Holder, ours)) > len(s.Holder):
			v.Extends = true
		}
		if s.Began {
			v.Began, v.Gen = true, max(v.Gen, s.Gen)
			v.GenLeast = min(v.GenLeast, s.Gen)
		}
		v.AllBegan = v.AllBegan && s.Began
	}
	return v
}
