// Package conformance checks whether a worker, a process that speaks ringfence.app.v1, keeps the
// rules of docs/sdk-protocol.md. It plays the router: each scene starts a process of its own,
// scripts its stream, and reads its standard output.
//
// The worker obeys instructions. The payload of each event is a JSON object:
//
//	{"id": 7, "do": "sleep", "ms": 500}
//
// "do" is one of done, fail, reject, retry_after (ms), sleep (ms, ended early by the
// cancellation), progress (report progress, then be done), ignore_cancel (sleep for ms, whatever
// happens) and crash (panic, throw). The handler writes a line when it starts and one when it ends,
// before it returns; CLOCK is CLOCK_BOOTTIME in nanoseconds:
//
//	start ID KEY CLOCK
//	end ID KEY CLOCK
//
// The instruction fence makes the handler write its fence as text, and succeed:
//
//	fence ID FENCE
//
// A worker that takes calls registers two methods, whose payloads are instructions too, and whose handlers write the same lines: echo
// returns its payload, and obey does one of done (an empty reply), reply (of as many bytes x as "bytes" says), fail (with the code
// "told"), crash and sleep.
//
// A worker with timers knows two more instructions for events, and the first also as one of obey: after sets the timers "first", with the payload "1"
// and due after ms, and "second", with the payload "2" and due at once, and is done; after_fail sets them, and fails. The handler of an event that is
// a timer writes another line, before its end; DUE is in milliseconds since 1970:
//
//	timer ID DUE NAME
//
// A worker with schedules declares one, "conformance", every hour. Its handler writes one line; TIME is in milliseconds since 1970, and FENCE the fence as
// text:
//
//	firing TIME MISSED ATTEMPT FENCE
//
// MISSED says what it then does: 1 fails, 2 sets the timers of the instruction after with 60,000 ms, 3 rejects the firing, and any other number is done.
//
// A worker with state between the turns of a key knows the instruction state for events. The handler asks for the state of its key, whose load writes the line
// loaded and returns an empty list of ids. Then the handler writes the line state with the first id of the list, or with its own if there is none, and adds its own:
//
//	loaded ID
//	state ID FIRST
//
// "then" says what it does next: nothing, which succeeds, or one of fail, sleep and ignore_cancel.
//
// If its SDK cannot do what the instruction says, it writes "unsupported ID". Other lines are
// ignored. SIGTERM stops the worker in an orderly way.
//
// Verdicts depend on the order of frames and on the clock of the worker's lines, never on how
// fast the machine is, except for the time in which a worker must have done what it has to do
// ([Options.Patience]).
//
// # Concurrency
//
// [Run] has a goroutine for each scene, and each scene has one for each stream and each Send and one for the
// worker's output; all have ended when it returns.
package conformance
