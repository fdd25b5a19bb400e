package forward

import "strings"

// Bounds of the wire. They are constants, so that every version accepts the frames of
// every other.
const (
	// frameItemsMax bounds the events, verdicts or topics of a frame.
	frameItemsMax = 4096
	// setWordsMax bounds the words of 64 events in all sets of a frame, each from the first event of its entry on.
	setWordsMax = 1 << 14
	// textMax is the length to which errors and reasons are cut, in bytes.
	textMax = 4 << 10
	// frameOverheadMax is the part of FrameMax reserved for the overhead of one event:
	// numbers, tags and lengths, and errors that are added to it later.
	frameOverheadMax = 2*textMax + 1<<10
	// helloBytesMax is the largest first frame of a stream, with member names and the
	// settings on which the group agrees.
	helloBytesMax = 64 << 10
	// peerTextMax is the length to which a peer's text is cut in an error, in bytes.
	peerTextMax = 1 << 10
	// propertyBytesMin is event.Event.Bytes's count for an empty property: a frame of n bytes
	// never holds more than n/32 of them.
	propertyBytesMin = 32
)

// smallMax returns how many items of a number of bytes fit into a frame that is not hot.
func (c *Config) smallMax(bytes int) int { return (c.FrameMax - frameOverheadMax) / bytes }

// The encoded size of an item of small frames, at most: of a Cancel, of Renewals and of Renewed.
const (
	cancelBytesMax  = 11
	renewalBytesMax = 2 * 11
	renewedBytesMax = 3*11 + 6
)

func clip(s string) string {
	if len(s) <= textMax {
		return s
	}
	return strings.ToValidUTF8(s[:textMax], "")
}
