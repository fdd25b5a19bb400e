package event

import (
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"net/url"
	"slices"
	"strconv"
	"strings"
)

// The replacement of hidden text.
const (
	hiddenKey     = "(key hidden)"
	hiddenContent = "(content hidden)"
)

// excerptMin is the length from which parts of a payload or a property are hidden in a text. Shorter ones are common words.
const excerptMin = 12

// mark says what a byte of a text is part of.
type mark uint8

const (
	markContent mark = iota + 1
	markKey
)

// HideIn returns an external text, such as an application's error, without the contents of the
// event: without its key, verbatim and in the usual encodings, and without any run of
// [excerptMin] bytes or more that also occurs in its payload or in the value of one of its
// properties. It takes time in proportion to the sizes of both.
func (e *Event) HideIn(text string) string {
	marks := make([]mark, len(text))
	escaped := strings.ContainsRune(text, '\\')
	fits := true
	hide := func(content string) {
		if escaped { // as %q and JSON write it
			quoted := strconv.Quote(content)
			fits = fits && markRuns(text, quoted[1:len(quoted)-1], marks)
		}
		fits = fits && markRuns(text, content, marks)
	}
	hide(string(e.Payload))
	for _, p := range e.Properties {
		hide(p.Value)
	}
	if !fits {
		return hiddenContent
	}
	e.Key.markIn(text, marks) // a run of contents may begin or end within it, and go on behind it
	return withoutMarked(text, marks)
}

// HideIn returns a foreign text, such as an application's error, without the key.
func (k Key) HideIn(text string) string {
	marks := make([]mark, len(text))
	k.markIn(text, marks)
	return withoutMarked(text, marks)
}

func (k Key) markIn(text string, marks []mark) {
	if k == "" || text == "" {
		return
	}
	raw := string(k)
	quoted, inASCII := strconv.Quote(raw), strconv.QuoteToASCII(raw)
	inHex := hex.EncodeToString([]byte(raw))
	forms := []string{
		raw, quoted[1 : len(quoted)-1], inASCII[1 : len(inASCII)-1], url.QueryEscape(raw), url.PathEscape(raw),
		base64.StdEncoding.EncodeToString([]byte(raw)), base64.URLEncoding.EncodeToString([]byte(raw)),
		base64.RawStdEncoding.EncodeToString([]byte(raw)), base64.RawURLEncoding.EncodeToString([]byte(raw)),
		inHex, strings.ToUpper(inHex),
	}
	if inJSON, err := json.Marshal(raw); err == nil {
		forms = append(forms, string(inJSON[1:len(inJSON)-1]))
	}
	for _, form := range forms {
		for at := 0; ; {
			next := strings.Index(text[at:], form)
			if next < 0 {
				break
			}
			for i := at + next; i < at+next+len(form); i++ {
				marks[i] = markKey
			}
			at += next + len(form)
		}
	}
}

// gram is the number of bytes compared at once: every run of excerptMin bytes has such a piece at a multiple of its length.
const gram = (excerptMin + 1) / 2

// workPerByte bounds how many bytes are compared for each byte of a content. A text that takes more was made for this
// purpose, and is hidden as a whole.
const workPerByte = 16

// markRuns marks every run of excerptMin bytes or more that text and content have in common. It returns false if that takes too much work.
func markRuns(text, content string, marks []mark) (fits bool) {
	if len(text) < excerptMin || len(content) < excerptMin {
		return true
	}
	pieces := make(map[string][]int) // of text, and where they begin
	for at := 0; at+gram <= len(text); at += gram {
		pieces[text[at:at+gram]] = append(pieces[text[at:at+gram]], at)
	}
	hide, work := make([]bool, len(text)), workPerByte*(len(text)+len(content))
	for i := 0; i+gram <= len(content); i++ {
		for _, at := range pieces[content[i:i+gram]] {
			if work--; work < 0 {
				return false
			}
			if hide[at] && hide[at+gram-1] {
				continue
			}
			begin, end := at, at+gram
			for j := i; begin > 0 && j > 0 && text[begin-1] == content[j-1]; j-- {
				begin--
			}
			for j := i + gram; end < len(text) && j < len(content) && text[end] == content[j]; j++ {
				end++
			}
			work -= end - begin
			if end-begin < excerptMin {
				continue
			}
			for h := begin; h < end; h++ {
				hide[h], marks[h] = true, markContent
			}
		}
	}
	return true
}

// withoutMarked returns the text with a word in the place of each row of equal marks.
func withoutMarked(text string, marks []mark) string {
	if !slices.ContainsFunc(marks, func(m mark) bool { return m != 0 }) {
		return text
	}
	var b strings.Builder
	for i, m := range marks {
		switch {
		case m == 0:
			b.WriteByte(text[i])
		case i > 0 && marks[i-1] == m:
		case m == markKey:
			b.WriteString(hiddenKey)
		default:
			b.WriteString(hiddenContent)
		}
	}
	return b.String()
}
