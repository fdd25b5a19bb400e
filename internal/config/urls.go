package config

import (
	"fmt"
	"strings"
)

// authority returns where the part of a URL begins and ends that may hold a user and a password.
func authority(text string) (begin, end int) {
	begin = strings.Index(text, "://")
	if begin < 0 {
		return 0, 0
	}
	begin += len("://")
	end = len(text)
	if i := strings.IndexAny(text[begin:], "/?#"); i >= 0 {
		end = begin + i
	}
	return begin, end
}

// hasUser reports whether a URL holds a user, and perhaps a password.
func hasUser(text string) bool {
	begin, end := authority(text)
	return strings.Contains(text[begin:end], "@")
}

// withoutUser returns a text for showing. What stands before an @ behind :// may be a password, even if the text is no
// good URL.
func withoutUser(text string) string {
	begin := strings.Index(text, "://")
	if begin < 0 {
		return text
	}
	begin += len("://")
	at := strings.LastIndex(text[begin:], "@")
	if at < 0 {
		return text
	}
	return text[:begin] + "(hidden)" + text[begin+at:]
}

// validateUsers refuses URLs with a user: they are shown and logged, and have better places for secrets.
func (c Config) validateUsers() []error {
	var errs []error
	for _, u := range []struct{ key, url, instead string }{
		{"pulsar.url", c.Pulsar.URL, "pulsar.token_file, pulsar.oauth2 or pulsar.tls"},
		{"pulsar.admin_url", c.Pulsar.AdminURL, "pulsar.token_file, pulsar.oauth2 or pulsar.tls"},
		{"pulsar.oauth2.issuer_url", c.Pulsar.Oauth2.IssuerURL, "pulsar.oauth2.key_file"},
	} {
		if hasUser(u.url) {
			errs = append(errs, fmt.Errorf("config: %s = %q has a user in it, and is shown and logged: want %s instead", u.key, withoutUser(u.url), u.instead))
		}
	}
	return errs
}
