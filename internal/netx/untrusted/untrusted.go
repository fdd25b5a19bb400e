// Package untrusted handles strings that may come from outside the group: names and addresses
// from gossip, names in certificates, answers of servers.
//
// [Text] and [Print] escape them for display, [Name] and [Address] validate them, and [DialTCP]
// dials only TCP, whatever the address contains.
package untrusted

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"
)

const (
	textMax = 100 // bytes of a text that are shown
	nameMax = 253 // bytes of a name, as of a DNS name
)

// Text returns s for a log line or a page: unprintable characters escaped, and cut.
func Text(s string) string { return Short(s, textMax) }

// Short is Text with at most so many bytes of s.
func Short(s string, bytesMax int) string {
	if len(s) <= bytesMax {
		return Print(s)
	}
	cut := bytesMax
	for cut > max(0, bytesMax-utf8.UTFMax) && !utf8.RuneStart(s[cut]) {
		cut--
	}
	return Print(s[:cut]) + "…"
}

// Print returns s for a terminal: control characters, escape sequences, characters that
// change the direction of a text and broken UTF-8 are escaped as in a Go string.
func Print(s string) string {
	if !strings.ContainsFunc(s, unprintable) {
		return s
	}
	var out strings.Builder
	for i := 0; i < len(s); {
		r, size := utf8.DecodeRuneInString(s[i:])
		if unprintable(r) {
			quoted := strconv.Quote(s[i : i+size])
			out.WriteString(quoted[1 : len(quoted)-1])
		} else {
			out.WriteString(s[i : i+size])
		}
		i += size
	}
	return out.String()
}

// Lines is Print for a text of several lines.
func Lines(s string) string {
	lines := strings.Split(s, "\n")
	for i, line := range lines {
		lines[i] = Print(line)
	}
	return strings.Join(lines, "\n")
}

// JSON returns a JSON text for a terminal: characters that [Print] escapes are escaped in
// JSON's way.
func JSON(text string) string {
	return escaped(text, func(out *strings.Builder, r rune) {
		high, low := utf16.EncodeRune(r)
		fmt.Fprintf(out, `\u%04x\u%04x`, high, low)
	})
}

// YAML is [JSON] for a reader of YAML, which knows no pairs of surrogates.
func YAML(text string) string {
	return escaped(text, func(out *strings.Builder, r rune) { fmt.Fprintf(out, `\U%08x`, r) })
}

// escaped escapes the characters of a JSON text; long writes one that takes more than four digits.
func escaped(text string, long func(*strings.Builder, rune)) string {
	var out strings.Builder
	for _, r := range text {
		switch {
		case r == '\n' || r == '\t' || r == '\r' || !unprintable(r): // white space between values
			out.WriteRune(r)
		case r > 0xffff:
			long(&out, r)
		default:
			fmt.Fprintf(&out, `\u%04x`, r)
		}
	}
	return out.String()
}

func unprintable(r rune) bool { return r == utf8.RuneError || !unicode.IsPrint(r) }

// Name reports the fault of a member's name: it must have 1 to 253 bytes of letters, digits,
// dots, hyphens and underscores.
func Name(name string) error {
	if name == "" || len(name) > nameMax {
		return fmt.Errorf("a name has 1 to %d bytes, not %d", nameMax, len(name))
	}
	if strings.ContainsFunc(name, func(r rune) bool { return !inName(r) }) {
		return errors.New("a name has letters, digits, dots, hyphens and underscores only")
	}
	return nil
}

func inName(r rune) bool {
	return 'a' <= r && r <= 'z' || 'A' <= r && r <= 'Z' || '0' <= r && r <= '9' || r == '.' || r == '-' || r == '_'
}

// Address reports the fault of an address for dialing by TCP: it must be IP:PORT or HOST:PORT,
// of one host that may have a listener.
func Address(address string) error {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return errors.New("not host:port")
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
		return errors.New("the port is not 1 to 65535")
	}
	if ip, err := netip.ParseAddr(host); err == nil {
		if ip.IsUnspecified() || ip.IsMulticast() || ip == netip.AddrFrom4([4]byte{255, 255, 255, 255}) {
			return errors.New("the IP address is not one of a host")
		}
		return nil
	}
	return Name(host)
}

// DialTCP dials an address that [Address] accepts. gRPC uses it, because its own dialer would
// accept unix:PATH as an address, too.
func DialTCP(ctx context.Context, address string) (net.Conn, error) {
	if err := Address(address); err != nil {
		return nil, fmt.Errorf("dial %q: %w", Text(address), err)
	}
	var dialer net.Dialer
	return dialer.DialContext(ctx, "tcp", address)
}
