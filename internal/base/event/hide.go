package event

import (
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"net/url"
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

// HideIn returns an external text, such as an application's error, without the contents of the
// event: without its key, verbatim and in the usual encodings, and without any run of
// [excerptMin] bytes or more that also occurs in its payload or in the value of one of its
// properties. It takes time in proportion to the sizes of both.
func (e *Event) HideIn(text string) string {
	text = e.Key.HideIn(text)
	if len(text) < excerptMin {
		return text
	}
	escaped := strings.ContainsRune(text, '\\')
	hide := func(content string) {
		if escaped { // as %q and JSON write it
			quoted := strconv.Quote(content)
			text = hideRuns(text, quoted[1:len(quoted)-1])
		}
		text = hideRuns(text, content)
	}
	hide(string(e.Payload))
	for _, p := range e.Properties {
		hide(p.Value)
	}
	return text
}

// HideIn returns a foreign text, such as an application's error, without the key.
func (k Key) HideIn(text string) string {
	if k == "" || text == "" {
		return text
	}
	raw := string(k)
	text = strings.ReplaceAll(text, raw, hiddenKey)
	quoted := strconv.Quote(raw)
	forms := []string{
		quoted[1 : len(quoted)-1], url.QueryEscape(raw), url.PathEscape(raw),
		base64.StdEncoding.EncodeToString([]byte(raw)), base64.URLEncoding.EncodeToString([]byte(raw)), hex.EncodeToString([]byte(raw)),
	}
	if inJSON, err := json.Marshal(raw); err == nil {
		forms = append(forms, string(inJSON[1:len(inJSON)-1]))
	}
	for _, form := range forms {
		if form != raw {
			text = strings.ReplaceAll(text, form, hiddenKey)
		}
	}
	return text
}

// gram is the number of bytes compared at once: every run of excerptMin bytes has such a piece at a multiple of its length.
const gram = (excerptMin + 1) / 2

// workPerByte bounds how many bytes are compared for each byte of a content. A text that takes more is hidden whole: it
// was made to.
const workPerByte = 16

// hideRuns hides every run of excerptMin bytes or more that text and content have in common.
func hideRuns(text, content string) string {
	if len(text) < excerptMin || len(content) < excerptMin {
		return text
	}
	pieces := make(map[string][]int) // of text, and where they begin
	for at := 0; at+gram <= len(text); at += gram {
		pieces[text[at:at+gram]] = append(pieces[text[at:at+gram]], at)
	}
	hide, work := make([]bool, len(text)), workPerByte*(len(text)+len(content))
	found := false
	for i := 0; i+gram <= len(content); i++ {
		for _, at := range pieces[content[i:i+gram]] {
			if work--; work < 0 {
				return hiddenContent
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
			found = true
			for h := begin; h < end; h++ {
				hide[h] = true
			}
		}
	}
	if !found {
		return text
	}
	var b strings.Builder
	for i := range len(text) {
		switch {
		case !hide[i]:
			b.WriteByte(text[i])
		case i == 0 || !hide[i-1]:
			b.WriteString(hiddenContent)
		}
	}
	return b.String()
}
