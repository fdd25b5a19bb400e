// Package membership finds the other members and gathers evidence about them. It
// is the only importer of memberlist.
//
// It decides nothing about ownership: an address is a hint where to dial, evidence is
// a reason to look sooner. Nobody may act, and nobody loses a partition, because of
// what stands here; a member that gossip believes dead still has its lease.
//
// # How it works
//
// A node's gossip name is name/incarnation, so that a restarted member is a new one
// and never conflicts with what it was. Gossip tells the addresses; every few seconds
// the members that the control log knows and gossip does not are contacted again,
// because gossip alone forgets: after a partition that outlasts its memory of the
// dead, two halves would stay apart for ever.
//
// memberlist calls back under its own locks and from its packet loop, so a callback
// only notes what it was told; [Gossip.Run]'s goroutine compares the notes with what
// was last reported, and reports the difference.
package membership
