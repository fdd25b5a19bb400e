package event

import (
	"cmp"
	"fmt"
)

// Position is the place of a record in the control log: the id that Pulsar gave
// it. Positions of one log are totally ordered, and the order is the same for
// every reader. The zero Position is before every record.
type Position struct{ Ledger, Entry int64 }

// Before reports whether p comes earlier in the log than q.
func (p Position) Before(q Position) bool {
	return p.Ledger < q.Ledger || p.Ledger == q.Ledger && p.Entry < q.Entry
}

// Compare returns -1 if p comes earlier in the log than q, 0 if they are equal, and 1 if p comes later.
func (p Position) Compare(q Position) int {
	return cmp.Or(cmp.Compare(p.Ledger, q.Ledger), cmp.Compare(p.Entry, q.Entry))
}

// IsZero reports whether p is before every record.
func (p Position) IsZero() bool { return p == Position{} }

// String formats the position as ledger:entry.
func (p Position) String() string { return fmt.Sprintf("%d:%d", p.Ledger, p.Entry) }
