package config

import "strings"

// authority returns the begin and the end of the part of a URL that may hold a user and a password.
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

// withoutUser returns a text for showing. It hides everything between :// and the last @, which may be a password even if
// the text is not a valid URL.
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
