package untrusted

import (
	"encoding/json"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"unicode/utf8"
)

func TestPrint(t *testing.T) {
	for text, want := range map[string]string{
		"pod-0":              "pod-0",
		"größer als 1 µs":    "größer als 1 µs",
		"\x1b]0;title\x07":   `\x1b]0;title\a`,
		"\x1b[2Jgone":        `\x1b[2Jgone`,
		"\u009b31mred":       `\u009b31mred`, // the one-character form of the same
		"a\nb\tc\r":          `a\nb\tc\r`,
		"\u202egnp.exe":      `\u202egnp.exe`,
		"broken \xff\xfe":    `broken \xff\xfe`,
		"zero\u200bwidth":    `zero\u200bwidth`,
		`C:\path "quoted"`:   `C:\path "quoted"`,
		"\x00":               `\x00`,
		"replacement \ufffd": `replacement �`,
	} {
		if got := Print(text); got != want {
			t.Errorf("Print(%q) = %q, want %q", text, got, want)
		}
	}
}

// A text for a terminal means the same, and has nothing in it that a terminal obeys.
func TestJSON(t *testing.T) {
	const name = "a\x1b[31m\u009b2J\u202ez\U000e0001ö \x7f"
	var text strings.Builder
	encoder := json.NewEncoder(&text)
	encoder.SetIndent("", "  ")
	if err := encoder.Encode(map[string]string{"name": name}); err != nil {
		t.Fatal(err)
	}
	shown := JSON(text.String())
	if got := strings.ReplaceAll(shown, "\n", ""); Print(got) != got {
		t.Errorf("it shows %q", shown)
	}
	var back map[string]string
	if err := json.Unmarshal([]byte(shown), &back); err != nil || back["name"] != name {
		t.Errorf("%q comes back as %q: %v", name, back["name"], err)
	}
}

func TestLines(t *testing.T) {
	if got, want := Lines("one\x1b[A\ntwo\r\n"), "one\\x1b[A\ntwo\\r\n"; got != want {
		t.Errorf("Lines gives %q, want %q", got, want)
	}
}

func TestTextIsCut(t *testing.T) {
	for _, text := range []string{strings.Repeat("x", 7<<20), strings.Repeat("ä", 101), strings.Repeat("\x1b", 1<<10), strings.Repeat("\xff", 1<<10)} {
		got := Text(text)
		if len(got) > 4*textMax+len("…") || !utf8.ValidString(got) || !strings.HasSuffix(got, "…") {
			t.Errorf("of %d bytes there are %d: %q", len(text), len(got), got)
		}
	}
}

func FuzzPrint(f *testing.F) {
	f.Add("a\x1b[31m\u009b\xff\u202e")
	f.Fuzz(func(t *testing.T, text string) {
		for _, r := range Print(text) {
			if r != utf8.RuneError && unprintable(r) {
				t.Fatalf("Print(%q) = %q", text, Print(text))
			}
		}
	})
}

func TestName(t *testing.T) {
	for _, good := range []string{"pod-0", "router_1.shop.svc", "A", strings.Repeat("x", 253)} {
		if err := Name(good); err != nil {
			t.Errorf("%q: %v", good, err)
		}
	}
	for _, bad := range []string{"", "a/b", "a b", "\x1b[31m", "ä", "a\n", strings.Repeat("x", 254)} {
		if Name(bad) == nil {
			t.Errorf("%q is accepted", bad)
		}
	}
}

func TestAddress(t *testing.T) {
	for _, good := range []string{"10.0.0.7:16651", "[::1]:1", "127.0.0.1:65535", "router-0.orders.svc:16651", "[fe80::1%eth0]:1"} {
		if err := Address(good); err != nil {
			t.Errorf("%q: %v", good, err)
		}
	}
	for _, bad := range []string{
		"", "10.0.0.7", "unix:/run/docker.sock", "unix:///run/docker.sock", "unix-abstract:x", "dns:///metadata:80", "dns://8.8.8.8/x:80",
		"passthrough:///10.0.0.7:1", "vsock:2:3", "http://10.0.0.7:80", "10.0.0.7:0", "10.0.0.7:65536", "10.0.0.7:http", ":1", "0.0.0.0:1", "[::]:1",
		"224.0.0.1:1", "255.255.255.255:1", "a/b:1", "user@host:1", "host :1", "host\x1b:1", "10.0.0.7:1\n",
	} {
		if Address(bad) == nil {
			t.Errorf("%q is accepted", bad)
		}
	}
}

// Only TCP is dialed, even if a process listens on another network.
func TestDialTCP(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	socket, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer socket.Close()
	for _, address := range []string{"unix:" + path, "unix://" + path, path} {
		if conn, err := DialTCP(t.Context(), address); err == nil {
			conn.Close()
			t.Errorf("%q is dialed", address)
		}
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	conn, err := DialTCP(t.Context(), listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	conn.Close()
}
