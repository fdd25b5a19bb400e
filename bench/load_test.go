package main

import (
	"encoding/json"
	"math"
	"testing"
	"time"

	"github.com/ringfence/router/internal/base/clock"
)

func drawKeys(distribution string, keys, n int) []int {
	pick, counts := keyPicker(distribution, keys), make([]int, keys)
	for range n {
		counts[pick()]++
	}
	return counts
}

func near(t *testing.T, what string, got, want, within float64) {
	t.Helper()
	if math.Abs(got-want) > within*want {
		t.Errorf("%s = %v, want about %v", what, got, want)
	}
}

func TestDistributions(t *testing.T) {
	const keys, n = 100, 200_000
	near(t, "a key of a uniform load", float64(drawKeys(distributionUniform, keys, n)[42]), n/keys, 0.1)

	hot := drawKeys(distributionHot, keys, n)
	near(t, "the hot key", float64(hot[0]), n/2+n/2/keys, 0.05)
	near(t, "a key beside the hot one", float64(hot[42]), n/2/keys, 0.15)

	zipfian := drawKeys(distributionZipf, keys, n)
	near(t, "the first key by the tenth", float64(zipfian[0])/float64(zipfian[9]), math.Pow(10, zipfExponent), 0.1)
	if zipfian[keys-1] == 0 {
		t.Error("the last key of a zipf load is never drawn")
	}
}

func TestLoadIsTheSameEachTime(t *testing.T) {
	for _, d := range []string{distributionUniform, distributionZipf, distributionHot} {
		a, b := keyPicker(d, 1000), keyPicker(d, 1000)
		for i := range 100 {
			if x, y := a(), b(); x != y {
				t.Fatalf("%s: draw %d gave %d and %d", d, i, x, y)
			}
		}
	}
}

func TestKeyNames(t *testing.T) {
	if n := keyNumber(keyName(123)); n != 123 {
		t.Errorf("the key of number 123 has number %d", n)
	}
	if n := keyNumber("somebody"); n != -1 {
		t.Errorf("number = %d of an unknown key, want -1", n)
	}
}

func TestStamp(t *testing.T) {
	for _, size := range []int{64, 256, 4096} {
		b := stampedPayload("user-77", 1234, size, clock.Instant(987654321))
		n, at, err := readStamp(b)
		if err != nil || n != 1234 || at != 987654321 {
			t.Errorf("stamp = %d, %d, %v", n, at, err)
		}
		if err := decode(b); err != nil || !json.Valid(b) {
			t.Errorf("%s: not valid for the json handler: %v", b, err)
		}
		if off := len(b) - size; off < -10 || off > 0 {
			t.Errorf("an event of %d bytes has %d", size, len(b))
		}
	}
	for _, bad := range []string{"", "{}", `{"at":                  x,"n":         1,"user":"u"}`} {
		if _, _, err := readStamp([]byte(bad)); err == nil {
			t.Errorf("%q has a stamp", bad)
		}
	}
}

func TestPayload(t *testing.T) {
	whole := visit{
		User: "user-77", N: 1234, Type: "cart_updated", Store: "s-48213", Session: "b7c9a1f20c554e0a", Campaign: "thanksgiving",
		Channel: "sms", Currency: "USD", Total: 129.9, Items: 3, Consent: true,
	}
	for _, c := range []struct {
		size int
		want visit
	}{
		{64, visit{User: whole.User, N: whole.N}},
		{256, whole},
		{65_536, whole},
	} {
		for name, b := range map[string][]byte{
			"plain":   payload(whole.User, whole.N, c.size),
			"stamped": stampedPayload(whole.User, whole.N, c.size, 1),
		} {
			var got visit
			if err := json.Unmarshal(b, &got); err != nil || got != c.want {
				t.Errorf("%s, %d bytes: %+v, %v; want %+v", name, c.size, got, err, c.want)
			}
		}
		if n := len(payload(whole.User, whole.N, c.size)); n != c.size {
			t.Errorf("an event of %d bytes has %d", c.size, n)
		}
	}
}

// The cost of the json handler.
func BenchmarkDecode(b *testing.B) {
	event := payload("user-1234", 1_234_567, 256)
	b.ReportAllocs()
	for b.Loop() {
		if err := decode(event); err != nil {
			b.Fatal(err)
		}
	}
}

func TestTimetable(t *testing.T) {
	second := clock.Instant(time.Second)
	table := timetable{begin: second, rate: 2000}
	if at := table.at(1000); at != second.Add(500*time.Millisecond) {
		t.Errorf("event 1000 is due at %v", at)
	}
	for _, n := range []int{0, 1, 999, 123_456} {
		if due := table.due(table.at(n) + 1); due != n+1 {
			t.Errorf("when event %d is due, %d are", n, due)
		}
	}
}
