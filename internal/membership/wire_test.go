package membership

import (
	"bytes"
	"compress/lzw"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"io"
	"net"
	"slices"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/hashicorp/memberlist"
)

// The wire as memberlist (v0.7.0) writes it.

func str(s string) string {
	if len(s) < 32 {
		return string([]byte{byte(0xa0 | len(s))}) + s
	}
	return "\xdb" + string(binary.BigEndian.AppendUint32(nil, uint32(len(s)))) + s
}

func num(n uint32) string { return "\xce" + string(binary.BigEndian.AppendUint32(nil, n)) }

func labelled(label, message string) string {
	return "\xf4" + string([]byte{byte(len(label))}) + label + message
}

func withCRC(message string) string {
	return "\x0c" + string(binary.BigEndian.AppendUint32(nil, crc32.ChecksumIEEE([]byte(message)))) + message
}

func compound(parts ...string) string {
	out := "\x07" + string([]byte{byte(len(parts))})
	for _, p := range parts {
		out += string(binary.BigEndian.AppendUint16(nil, uint16(len(p))))
	}
	return out + strings.Join(parts, "")
}

func lzwOf(message string) string {
	var buf bytes.Buffer
	w := lzw.NewWriter(&buf, lzw.LSB, 8)
	_, _ = w.Write([]byte(message))
	_ = w.Close()
	return buf.String()
}

func compressed(message string) string {
	return "\x09\x82" + str("Algo") + "\x00" + str("Buf") + str(lzwOf(message))
}

// inBytes is compressed with another form of bytes, whose length has so many bytes.
func inBytes(form string, size int, message string) string {
	text := lzwOf(message)
	length := binary.BigEndian.AppendUint32(nil, uint32(len(text)))
	return "\x09\x82" + str("Algo") + "\x00" + str("Buf") + form + string(length[4-size:]) + text
}

const (
	aPing  = "\x00\x81\xa5SeqNo\x01"
	aDeath = "\x05\x83\xabIncarnation\x01\xa4Node\xa1x\xa4From\xa1y"
)

func TestPackets(t *testing.T) {
	plain, encrypted := screen{label: "orders"}, screen{label: "orders", encrypted: true}
	full, same := aPing+strings.Repeat("x", packetBytesMax-len(aPing)), aPing
	for len(same) < len(compressed(same)) {
		same += "x"
	}
	if len(same) != len(compressed(same)) {
		t.Fatalf("%d bytes are compressed to %d", len(same), len(compressed(same)))
	}
	for name, c := range map[string]struct {
		screen screen
		packet string
		want   string // without its label; "": refused
		why    refusal
	}{
		"a ping":                   {plain, labelled("orders", aPing), aPing, ""},
		"with a checksum":          {plain, labelled("orders", withCRC(aPing)), aPing, ""},
		"news":                     {plain, labelled("orders", compound(aPing, aDeath, aDeath)), compound(aPing, aDeath, aDeath), ""},
		"compressed":               {plain, labelled("orders", withCRC(compressed(compound(aDeath, aDeath)))), compound(aDeath, aDeath), ""},
		"encrypted":                {encrypted, labelled("orders", "\x01secret"), "\x01secret", ""},
		"as large as may be":       {encrypted, labelled("orders", "\x01"+strings.Repeat("x", packetBytesMax-9)), "\x01" + strings.Repeat("x", packetBytesMax-9), ""},
		"as many as may be":        {plain, labelled("orders", compound(slices.Repeat([]string{aDeath}, packetPartsMax)...)), compound(slices.Repeat([]string{aDeath}, packetPartsMax)...), ""},
		"compressed, of all size":  {plain, labelled("orders", compressed(full)), full, ""},
		"in 8 bits of length":      {plain, labelled("orders", inBytes("\xc4", 1, aPing)), aPing, ""},
		"in 8 bits, as text":       {plain, labelled("orders", inBytes("\xd9", 1, aPing)), aPing, ""},
		"in 16 bits of length":     {plain, labelled("orders", inBytes("\xc5", 2, aPing)), aPing, ""},
		"in 16 bits, as text":      {plain, labelled("orders", inBytes("\xda", 2, aPing)), aPing, ""},
		"in 32 bits of length":     {plain, labelled("orders", inBytes("\xc6", 4, aPing)), aPing, ""},
		"compressed to its length": {plain, labelled("orders", compressed(same)), same, ""},
		"encrypted, of version 0":  {encrypted, labelled("orders", "\x00secret"), "\x00secret", ""},

		"nothing":                     {plain, "", "", refusedLabel},
		"no label":                    {plain, aPing, "", refusedLabel},
		"another group":               {plain, labelled("other", aPing), "", refusedLabel},
		"a longer label":              {plain, labelled("orders2", aPing), "", refusedLabel},
		"a label cut short":           {plain, "\xf4\x06ord", "", refusedLabel},
		"a label alone":               {plain, labelled("orders", ""), "", refusedMalformed},
		"a wrong checksum":            {plain, labelled("orders", "\x0cabcd"+aPing), "", refusedMalformed},
		"a checksum alone":            {plain, labelled("orders", "\x0cabcd"), "", refusedMalformed},
		"a checksum of nothing":       {plain, labelled("orders", withCRC("")), "", refusedMalformed},
		"a compound of nothing":       {plain, labelled("orders", "\x07"), "", refusedMalformed},
		"nothing, compressed":         {plain, labelled("orders", compressed("")), "", refusedMalformed},
		"compressed and cut inside":   {plain, labelled("orders", "\x09\x82"+str("Algo")+"\x00"+str("Buf")+str(lzwOf(aDeath)[:20])), "", refusedMalformed},
		"by another algorithm":        {plain, labelled("orders", "\x09\x82"+str("Algo")+"\x01"+str("Buf")+str(lzwOf(aPing))), "", refusedMalformed},
		"garbage":                     {plain, labelled("orders", "\xd3\x8a\x01"), "", refusedMalformed},
		"a user's message":            {plain, labelled("orders", "\x08hello"), "", refusedMalformed},
		"an exchange in a packet":     {plain, labelled("orders", "\x06\x83"), "", refusedMalformed},
		"a bomb":                      {plain, labelled("orders", compressed(strings.Repeat("x", 39<<20))), "", refusedTooLarge},
		"a small bomb":                {plain, labelled("orders", compressed(strings.Repeat("\x00", packetBytesMax+1))), "", refusedTooLarge},
		"compressed twice":            {plain, labelled("orders", compressed(compressed(aPing))), "", refusedMalformed},
		"compressed in a compound":    {plain, labelled("orders", compound(aPing, compressed(aPing))), "", refusedMalformed},
		"compounds in a compound":     {plain, labelled("orders", compound(compound(aPing, aPing))), "", refusedMalformed},
		"many that want an answer":    {plain, labelled("orders", compound(aPing, aPing)), "", refusedMalformed},
		"many of them":                {plain, labelled("orders", compound(strings.Split(strings.Repeat(aDeath+"|", 65), "|")[:65]...)), "", refusedMalformed},
		"an empty part":               {plain, labelled("orders", compound("")), "", refusedMalformed},
		"a part cut short":            {plain, labelled("orders", "\x07\x01\x00\xff"+aPing), "", refusedMalformed},
		"lengths cut short":           {plain, labelled("orders", "\x07\xff\x00"), "", refusedMalformed},
		"compressed by another means": {plain, labelled("orders", "\x09\x82\xa4Algo\x01\xa3Buf\xa1x"), "", refusedMalformed},
		"a length that is a lie":      {plain, labelled("orders", "\x09\x82\xa4Algo\x00\xa3Buf\xdb\xff\xff\xff\xffx"), "", refusedTooLarge},
		"compressed and cut":          {plain, labelled("orders", compressed(aPing)[:20]), "", refusedMalformed},
		"compressed nothing":          {plain, labelled("orders", "\x09\x81\xa4Algo\x00"), "", refusedMalformed},
		"too large":                   {plain, labelled("orders", aPing+strings.Repeat("x", packetBytesMax)), "", refusedTooLarge},
		"in the clear":                {encrypted, labelled("orders", withCRC(aPing)), "", refusedClear},
		"a bomb in the clear":         {encrypted, labelled("orders", compressed(strings.Repeat("x", 39<<20))), "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := c.screen.packet([]byte(c.packet))
			switch {
			case c.want != "":
				if err != nil || string(got) != labelled("orders", c.want) {
					t.Errorf("it passes as %q, %v; want %q", got, err, c.want)
				}
			case err == nil:
				t.Errorf("it passes as %.100q", got)
			case c.why != "" && c.why != refusedMalformed && !errors.Is(err, c.why):
				t.Errorf("it is refused as %v, want %v", err, c.why)
			}
		})
	}
}

func exchange(nodes, userState uint32, rest string) string {
	return "\x06\x83" + str("Nodes") + num(nodes) + str("UserStateLen") + num(userState) + str("Join") + "\xc3" + rest
}

func TestStreams(t *testing.T) {
	plain, encrypted := screen{label: "orders"}, screen{label: "orders", encrypted: true}
	secret := "\x0a\x00\x00\x00\x06secret"
	for name, c := range map[string]struct {
		screen screen
		dialed bool // by us: received packets have no label
		bytes  string
		want   string // "": refused
		why    refusal
	}{
		"an exchange":                     {plain, false, labelled("orders", exchange(5, 300, "rest")), labelled("orders", exchange(5, 300, "rest")), ""},
		"its answer":                      {plain, true, exchange(5, 300, "rest"), exchange(5, 300, "rest"), ""},
		"compressed":                      {plain, false, labelled("orders", compressed(exchange(5, 300, "rest"))), labelled("orders", exchange(5, 300, "rest")), ""},
		"a compressed answer":             {plain, true, compressed(exchange(5, 300, "rest")), exchange(5, 300, "rest"), ""},
		"a ping":                          {plain, false, labelled("orders", aPing), labelled("orders", aPing), ""},
		"encrypted":                       {encrypted, false, labelled("orders", secret), labelled("orders", secret), ""},
		"an encrypted answer":             {encrypted, true, secret, secret, ""},
		"as much as may be":               {plain, false, labelled("orders", exchange(streamNodesMax, settingsBytesMax, "rest")), labelled("orders", exchange(streamNodesMax, settingsBytesMax, "rest")), ""},
		"numbers of one byte":             {plain, true, "\x06\x83\xa5Nodes\x7f\xacUserStateLen\x00\xa4Join\xc2rest", "\x06\x83\xa5Nodes\x7f\xacUserStateLen\x00\xa4Join\xc2rest", ""},
		"an error":                        {plain, true, "\x0d\x81\xa5Error\xa1x", "\x0d\x81\xa5Error\xa1x", ""},
		"the longest cipher":              {encrypted, true, "\x0a\x00\x10\x00\x00secret", "\x0a\x00\x10\x00\x00secret", ""},
		"encrypted, while both are taken": {plain, false, labelled("orders", secret), labelled("orders", secret), ""},

		"another group":           {plain, false, labelled("other!", aPing), "", refusedLabel},
		"no gossip":               {plain, false, "GET / HTTP/1.1\r\n\r\n", "", refusedLabel},
		"in the clear":            {encrypted, false, labelled("orders", aPing), "", refusedClear},
		"a bomb":                  {plain, false, labelled("orders", compressed(strings.Repeat("\x06", 39<<20))), "", refusedTooLarge},
		"a bomb for an answer":    {plain, true, compressed(strings.Repeat("\x06", 39<<20)), "", refusedTooLarge},
		"a million nodes":         {plain, false, labelled("orders", exchange(1<<20, 0, "")), "", refusedTooLarge},
		"a million, compressed":   {plain, false, labelled("orders", compressed(exchange(1<<20, 0, ""))), "", refusedTooLarge},
		"megabytes of state":      {plain, false, labelled("orders", exchange(1, 20<<20, "")), "", refusedTooLarge},
		"megabytes of cipher":     {encrypted, false, labelled("orders", "\x0a\x01\x40\x00\x00"), "", refusedTooLarge},
		"a negative number":       {plain, false, labelled("orders", "\x06\x81\xa5Nodes\xff"), "", refusedTooLarge},
		"the least of one byte":   {plain, false, labelled("orders", "\x06\x81\xa5Nodes\xe0"), "", refusedTooLarge},
		"a number for a bool":     {plain, false, labelled("orders", "\x06\x81\xa4Join\x01"), "", refusedMalformed},
		"another field, longer":   {plain, false, labelled("orders", "\x06\x81\xd9\x20"+strings.Repeat("x", 32)+"\x01"), "", refusedMalformed},
		"a number of 64 bits":     {plain, false, labelled("orders", "\x06\x81\xa5Nodes\xcf\xff\xff\xff\xff\xff\xff\xff\xff"), "", refusedMalformed},
		"a user's message":        {plain, false, labelled("orders", "\x08\x81\xaaUserMsgLen\x01x"), "", refusedMalformed},
		"another field":           {plain, false, labelled("orders", "\x06\x81\xa5Other\x01"), "", refusedMalformed},
		"compressed twice":        {plain, false, labelled("orders", compressed(compressed(aPing))), "", refusedMalformed},
		"encrypted in compressed": {plain, false, labelled("orders", compressed(secret)), "", refusedMalformed},
	} {
		t.Run(name, func(t *testing.T) {
			from, err := c.screen.stream(iotest.OneByteReader(strings.NewReader(c.bytes)), !c.dialed)
			if c.want == "" {
				if !errors.Is(err, c.why) {
					t.Errorf("it is refused as %v, want %v", err, c.why)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if got, err := io.ReadAll(from); err != nil || string(got) != c.want {
				t.Errorf("memberlist reads %q, %v; want %q", got, err, c.want)
			}
		})
	}
}

// However long a stream is, memberlist reads only as much of it as it may hold.
func TestStreamsEnd(t *testing.T) {
	endless := io.MultiReader(strings.NewReader(labelled("orders", exchange(5, 300, ""))), rand0{})
	from, err := screen{label: "orders"}.stream(endless, true)
	if err != nil {
		t.Fatal(err)
	}
	if n, _ := io.Copy(io.Discard, from); n > streamBytesMax+512 {
		t.Errorf("%d bytes are read", n)
	}
}

// A connection that ends without a message, as after a ping that was given up, is no traffic of another group: memberlist takes an empty label from an
// io.EOF, and logs that.
func TestAConnectionWithoutAMessageHasNoLabel(t *testing.T) {
	theirs, ours := net.Pipe()
	_ = theirs.Close()
	conn := &screened{Conn: ours, transport: &transport{screen: screen{label: "orders"}}, labelled: true}
	_, label, err := memberlist.RemoveLabelHeaderFromStream(conn)
	if err == nil {
		t.Fatalf("memberlist reads the label %q", label)
	}
	if kind := kindOf("failed to receive and remove the stream label header: " + err.Error()); kind != "stream" {
		t.Errorf("its line counts as %s, want stream", kind)
	}
}

// rand0 never ends.
type rand0 struct{}

func (rand0) Read(p []byte) (int, error) { return len(p), nil }

func FuzzScreen(f *testing.F) {
	for _, seed := range []string{
		labelled("orders", aPing), labelled("orders", withCRC(compressed(compound(aPing, aDeath)))), exchange(5, 300, "x"),
		labelled("orders", compressed(exchange(5, 300, "x"))), labelled("orders", "\x0a\x00\x00\x00\x06secret"),
	} {
		f.Add([]byte(seed), true, true)
		f.Add([]byte(seed), false, false)
	}
	f.Fuzz(func(t *testing.T, bytes []byte, encrypted, dialed bool) {
		s := screen{label: "orders", encrypted: encrypted}
		packet, err := s.packet(slices.Clone(bytes))
		if err == nil && len(packet) > packetBytesMax+2+len(s.label) {
			t.Errorf("a packet of %d bytes passes as %d", len(bytes), len(packet))
		}
		if from, err := s.stream(strings.NewReader(string(bytes)), !dialed); err == nil {
			if n, _ := io.Copy(io.Discard, from); n > streamBytesMax+512 {
				t.Errorf("a stream of %d bytes passes as %d", len(bytes), n)
			}
		}
	})
}
