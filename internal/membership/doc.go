// Package membership finds the other members and gathers evidence about them. It
// is the only importer of memberlist.
//
// It decides nothing about ownership: an address is a hint where to dial, and evidence only makes
// members check sooner. No member gains or loses a partition because of this package alone; a
// member that gossip considers dead still has its lease.
//
// # How it works
//
// A node's gossip name is name/incarnation, so that a restarted member is a new gossip node and
// never conflicts with its predecessor. Gossip distributes addresses. Every few seconds this
// package contacts the members that the control log knows and gossip does not, because gossip
// forgets dead nodes: after a network partition that lasts longer than that, the two halves would
// never find each other again.
//
// memberlist calls back under its own locks and from its packet loop, so a callback only notes
// the change; [Gossip.Run]'s goroutine compares the notes with its last report, and reports the
// difference.
package membership
