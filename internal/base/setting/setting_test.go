package setting

import (
	"math"
	"strings"
	"testing"
	"time"
)

type sub struct {
	RateMax int `min:"1" max:"10"`
}

type embedded struct {
	PulsarURL string
}

type sample struct {
	embedded

	Level   string        `words:"low,high"`
	Name    string        `needed:"true"`
	Items   []string      `needed:"true"`
	Off     bool          // anything
	Load    float64       `above:"1" max:"2"`
	Small   uint32        `min:"1"`
	Size    int           `unit:"bytes" min:"1KiB" max:"64MiB"`
	Wait    time.Duration `above:"0"`
	Token   Secret        // anything
	Sub     sub
	Derived int8              `from:"name" max:"100"`
	Labels  map[string]string `from:"name"`
}

func good() sample {
	return sample{Level: "low", Name: "a", Items: []string{"a"}, Load: 1.5, Small: 1, Size: 2048, Wait: time.Second, Sub: sub{RateMax: 1}}
}

func TestCheckTellsEveryField(t *testing.T) {
	if err := Check(good()); err != nil {
		t.Errorf("good values: %v", err)
	}
	err := Check(sample{Load: math.NaN()})
	for _, want := range []string{
		`level = "", want low or high`, `name = "", want text`, `items = "", want a list`, "load = NaN, want a number, more than 1, at most 2",
		"small = 0, want a whole number, 1 to 2147483647", "size = 0, want a size (65536, 64KiB, 8MiB), 1KiB to 64MiB",
		"wait = 0s, want a duration with its unit (500ms, 2s, 5m), more than 0, at most 87600h", "sub.rate_max = 0, want a whole number, 1 to 10",
	} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("the error does not tell %q:\n%v", want, err)
		}
	}
}

// TestSetAndString: Set reads the result of String, and a value of another kind changes nothing.
func TestSetAndString(t *testing.T) {
	for _, test := range []struct{ key, text, want string }{
		{"level", " high ", "high"},
		{"items", "a, b,", "a,b"},
		{"off", "true", "true"},
		{"off", "maybe", "false"},
		{"load", "1.25", "1.25"},
		{"load", "1,25", "1.5"},
		{"small", "7", "7"},
		{"small", "-7", "0"},
		{"small", "99999999999999999999", "4294967295"},
		{"small", "1KiB", "1"},
		{"small", "0x10", "1"},
		{"size", "2 MiB", "2MiB"},
		{"size", "3000", "3000"},
		{"size", "-1TiB", "-1TiB"},
		{"size", "9223372036854775807GiB", "8589934591GiB"},
		{"size", "1.5MiB", "2KiB"},
		{"wait", "1m", "1m0s"},
		{"wait", "5", "1s"},
		{"pulsar_url", "a://b", "a://b"},
		{"token", "hush", "(hidden)"},
		{"derived", "300", "127"},
		{"derived", "-300", "-128"},
	} {
		s := good()
		for _, f := range Fields(&s) {
			if f.Key == test.key {
				f.Set(test.text)
				if got := f.String(); got != test.want {
					t.Errorf("%s, set to %q, is %q, want %q", test.key, test.text, got, test.want)
				}
			}
		}
	}
}

func TestSnake(t *testing.T) {
	for name, want := range map[string]string{"FrameEventsMax": "frame_events_max", "PulsarURL": "pulsar_url", "URLOf": "url_of", "A": "a"} {
		if got := Snake(name); got != want {
			t.Errorf("Snake(%s) = %s, want %s", name, got, want)
		}
	}
}
