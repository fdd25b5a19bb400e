package event

// Skip is what an operator decided about one event: it goes to the dead letter topic, and no handler is called with it any
// more. It concerns the event of that message id under that key, and no other.
type Skip struct {
	Key    Key
	Event  MessageID
	Act    [16]byte // the id of the record that says so
	Reason string   // who has decided it, why and by which act, as the dead letter has it
}

// Known is an event that a router has published, and of which a further copy ended here because the event had
// finished before, at this owner or an earlier one.
type Known struct {
	Key   Key
	Event MessageID
}

// Skipped is the end of a skip at the owner of the key.
type Skipped struct {
	Skip

	Done bool // a handler that ran already had done the event: it is acked. Else it goes to the dead letter topic
}
