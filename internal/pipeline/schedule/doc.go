// Package schedule decides at which times a schedule fires, and what becomes of a firing that
// arrives at the owner of its key.
//
// It is pure: no goroutine, clock, lock, log line or socket. Time is an argument. The one thing
// that it reads is the time zone database ([time.LoadLocation]), when a [Definition] is parsed:
// that of the system, else the embedded one.
//
// # Times
//
// A schedule has a cron expression, a period or one instant. The expression is parsed by
// robfig/cron; the times are computed here, because that library skips a firing at a time that a
// change of the clocks leaves out, and repeats one at a time that comes twice. Here:
//
//   - Fixed hours ("30 2 * * *", "0 9-17 * * *") go by the civil clock. A time that the clocks skip
//     fires when the skipped hour is over, and a time that comes twice fires the first time.
//   - Free hours ("*/15 * * * *", "0 */2 * * *") go by elapsed time: each minute whose civil
//     time matches, so the hour that comes twice fires twice, and a skipped one not at all.
//   - Days match as in Vixie cron: if both day fields are restricted, either suffices. A
//     field that begins with a star is not restricted, with a step or without.
//
// # Firings
//
// A firing is a message in a topic whose messages are delayed. The owner of the schedule's key arms it, that is
// publishes it, one occurrence ahead; equal ids make all copies of a firing one. The topic holds the
// only durable state: a new owner starts with an empty [Book].
//
// # Invariants
//
// The times of a schedule strictly increase, and each has an id of its own. A firing enters the lane of its key
// only after the one that follows is safe in the topic, never before its time by the wall clock of the
// owner, and only while no other firing of its schedule is in the lane. A firing that a policy drops
// is dropped only after the one that runs for it, or follows it, is safe.
package schedule
