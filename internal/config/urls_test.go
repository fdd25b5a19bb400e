package config

import "testing"

// TestUsersOfURLs: a user is between :// and the path, and whatever may be one is hidden.
func TestUsersOfURLs(t *testing.T) {
	for text, want := range map[string]struct {
		user  bool
		shown string
	}{
		"pulsar://me:secret@b:6650":      {true, "pulsar://(hidden)@b:6650"},
		"pulsar://a:1,me:secret@b:6650/": {true, "pulsar://(hidden)@b:6650/"},
		"pulsar://me:sec@ret@b:6650":     {true, "pulsar://(hidden)@b:6650"},
		"http://me:sec/ret@b":            {false, "http://(hidden)@b"}, // not valid
		"http://@b":                      {true, "http://(hidden)@b"},
		"http://b/me@c":                  {false, "http://(hidden)@c"},
		"http://b?me@c":                  {false, "http://(hidden)@c"},
		"http://b#me@c":                  {false, "http://(hidden)@c"},
		"http:///me@c":                   {false, "http://(hidden)@c"},
		"me@b":                           {false, "me@b"},
		"http://b:8080":                  {false, "http://b:8080"},
	} {
		if hasUser(text) != want.user || withoutUser(text) != want.shown {
			t.Errorf("%s: has a user: %v, is shown as %s; want %v, %s", text, hasUser(text), withoutUser(text), want.user, want.shown)
		}
	}
}
