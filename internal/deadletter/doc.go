// Package deadletter lists, sends again and removes the dead letters of a group, and sends events
// of its topics again.
//
// # What is sent once
//
// The replays topic beside the dead letter topic holds a record of each act, and of each batch of dead
// letters before it is sent ([Record]). [Memory] is computed from these records: which letters were
// sent, and which are in doubt because the command that sent them ended before the broker's answer.
// The next command looks for those in their topics, so that a command that was killed, or is run
// twice, sends no letter twice. A producer with exclusive access to the replays topic is the lock: one
// act at a time, and a command that has lost it sends no further batch.
//
// Events of topics are not recorded one by one: a replayed event carries the id of its original, and
// Pulsar deletes a topic from its beginning, so while the original can be read, so can its copy.
//
// # Hostile input
//
// Anyone who may produce to the dead letter topic can write anything into it. A letter's claims
// choose neither a topic outside of the settings nor, by a false id, the end of another letter:
// letters are the same only if they have the same original, the same topic and the same content. Anyone who may produce
// to the replays topic can make letters count as sent.
//
// All topics are read with package entries ([Connect]). A message is bounded, also after decompression, and one that cannot be read is
// shown as bytes, with the reason. Nothing is acked but what an act removes.
//
// # Concurrency
//
// Nothing here is safe for concurrent use.
package deadletter
