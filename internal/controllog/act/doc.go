// Package act records what operators do to single keys of a group, and makes it take effect at every member.
//
// Each group has one acts topic beside its control topic, a log of Act records in one order. Every member reads
// it. A hold keeps the events of a key waiting until it expires or is released: each member knows all holds, so a
// hold outlasts moves of the key and the death of its owner. A park sends all events of a key to the parking topic, and an unpark
// brings them back, in their order. A skip sends one event to the dead letter topic, at whichever
// member owns its key. The records are also the audit trail: who, when, why.
//
// Exclusivity does not depend on this package. A member that cannot read the topic says so and continues, without
// the holds that it does not know (docs/adr/0039).
//
// # Invariants
//
//   - Which keys are held at an instant depends only on the records, their order and the instant.
//   - No act lasts longer than [DurationMax]. The number of held keys, skips and parked keys, and the memory of all records, are bounded.
//   - A skip concerns the event that its record names, and no other, however often it is ordered or read.
//
// # Files
//
//	record.go   records to bytes and back, and their bounds     (pure)
//	fold.go     Fold: records in, held keys and the list out    (pure)
//	restore.go  Fold, when the topic has lost records           (pure)
//	effects.go  Effects: what of the acts the mailboxes go by   (pure)
//	keeper.go   Keeper: answers operators, appends acts, lets holds expire
//	visit.go    one reader of the topic, until it is lost
//	ends.go     the ends of skips and unparks at this member, on their way to the topic
//	http.go     the pages of the admin endpoint
//	metrics.go
package act
