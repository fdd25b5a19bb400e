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
	contents := []string{string(e.Payload)}
	for _, p := range e.Properties {
		contents = append(contents, p.Value)
	}
	if strings.ContainsRune(text, '\\') { // as %q and JSON write it
		for _, content := range contents {
			quoted := strconv.Quote(content)
			contents = append(contents, quoted[1:len(quoted)-1])
		}
	}
	marks := make([]mark, len(text))
	markRuns(text, contents, marks)
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

// markRuns marks every run of excerptMin bytes or more that the text and one of the contents have in common: it consists
// of pieces of that many bytes that both have.
func markRuns(text string, contents []string, marks []mark) {
	common := make(map[string]bool, len(text)) // by piece of the text: whether a content has it, too
	for at := range len(text) - excerptMin + 1 {
		common[text[at:at+excerptMin]] = false
	}
	for _, content := range contents {
		for at := range len(content) - excerptMin + 1 {
			piece := content[at : at+excerptMin]
			if _, ok := common[piece]; ok {
				common[piece] = true
			}
		}
	}
	for at := range len(text) - excerptMin + 1 {
		if common[text[at:at+excerptMin]] {
			for i := range excerptMin {
				marks[at+i] = markContent
			}
		}
	}
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
