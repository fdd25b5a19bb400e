// Package signal wakes a goroutine that waits on a channel of capacity one, and tells whether a channel is closed.
//
// The channel carries no data: the receiver looks at the state that the sender has
// changed. Pending signals merge into one.
package signal

// Set signals c, whose capacity is one, unless a signal is pending. It does not block,
// and any number of goroutines may call it at once.
func Set(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// IsClosed reports whether c, on which nothing is sent, is closed.
func IsClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}
