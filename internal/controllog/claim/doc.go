// Package claim records which group a subscription and a control topic belong to.
//
// Each namespace has one claims topic, a log of Claim records that all groups of that namespace append to
// and read in one order. A group claims the subscription on each of its data topics in the namespace of that
// topic, and its control topic in the namespace of the control topic. The value of a claim is the group's
// identity. The first claim of a free resource wins; it ends only by a release.
//
// # Invariants
//
//   - The holder of a resource depends only on the records and their order: all readers of a log agree.
//   - A router neither joins its control log nor subscribes before every one of its resources is held by an
//     identity that does not differ from its own. It exits when it reads that it no longer holds one of them.
//   - No record is appended while a resource is known to belong to another group.
//
// # Files
//
//	fold.go      Fold: records in, holders out                       (pure)
//	codec.go     records to bytes and back, and their bounds         (pure)
//	resource.go  the names of resources and claims topics            (pure)
//	keeper.go    Keeper: claims at start, watches while a router runs
//	read.go      Read and Release: for the commands that show and end claims
package claim
