package config

import (
	"bytes"
	"cmp"
	"errors"
	"io"
	"io/fs"
	"regexp"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"

	"github.com/ringfence/router/internal/netx/reload"
)

// The bounds of a file with settings. Settings have at most three levels.
const (
	fileBytesMax = 256 << 10
	levelsMax    = 8
)

// readFile records the settings of a file: a regular one, or a pipe as in --config <(make-settings).
func (r *reader) readFile(path string) {
	at := origin{source: "file " + path}
	content, err := reload.Bounded(path, fileBytesMax)
	if noFile, ok := errors.AsType[*fs.PathError](err); ok {
		err = noFile.Err
	}
	if err != nil {
		r.unread = true
		r.wrong(at, "the file cannot be read: %v", err)
		return
	}
	if i := bytes.IndexFunc(content, notText); i >= 0 {
		r.unread, at.line = true, lineOf(content, i)
		r.wrong(at, "the file has a byte that is not text: want YAML in UTF-8")
		return
	}
	decoder := yaml.NewDecoder(bytes.NewReader(content))
	var document, more yaml.Node
	switch err := decoder.Decode(&document); {
	case errors.Is(err, io.EOF): // the file is empty
		return
	case err != nil:
		r.notYAML(err, content, at)
		return
	}
	switch err := decoder.Decode(&more); {
	case err == nil:
		at.line = more.Line
		r.wrong(at, "a second document begins: want only one")
	case !errors.Is(err, io.EOF):
		r.notYAML(err, content, at)
	}
	at.line = document.Content[0].Line
	switch root := document.Content[0]; {
	case root.Kind == yaml.MappingNode:
		r.section("", root, at, map[string]int{})
	case root.ShortTag() != "!!null":
		r.wrong(at, "the file has no sections: want settings as in node: {group: orders}")
	}
}

func notText(c rune) bool {
	return c == utf8.RuneError || unicode.IsControl(c) && !strings.ContainsRune("\t\r\n", c)
}

func lineOf(content []byte, i int) int { return 1 + bytes.Count(content[:i], []byte("\n")) }

// syntax matches an error of the parser.
var syntax = regexp.MustCompile(`^yaml: (?:line (\d+): )?(?:unknown anchor '(.*)' referenced)?(.*)`)

// notYAML reports the parser's error, but not the name of an anchor, which may be a secret that begins with *.
func (r *reader) notYAML(err error, content []byte, at origin) {
	r.unread = true
	parts := syntax.FindStringSubmatch(err.Error())
	switch {
	case parts == nil:
		r.wrong(at, "the file is not YAML")
	case parts[2] != "":
		at.line = lineOf(content, max(0, bytes.Index(content, []byte("*"+parts[2]))))
		r.wrong(at, "an alias has no anchor: text that begins with * needs quotes")
	default:
		at.line, _ = strconv.Atoi(cmp.Or(parts[1], "1")) // the parser leaves out the first line's number
		r.wrong(at, "the file is not YAML: %s", parts[3])
	}
}

// section records the settings of a section and its subsections. lines holds the line of each setting and section so far.
func (r *reader) section(name string, n *yaml.Node, at origin, lines map[string]int) {
	for i := 0; i+1 < len(n.Content); i += 2 {
		word, value := n.Content[i], n.Content[i+1]
		at.line = word.Line
		if word.Kind != yaml.ScalarNode {
			r.wrong(at, "a list, a section or an alias stands where the name of a setting should")
			continue
		}
		key := name + word.Value
		if before := lines[key]; before > 0 {
			r.wrong(at, "%.64s is set a second time, first in line %d: want it once", key, before)
		}
		lines[key] = at.line
		_, setting := r.known[key]
		switch {
		case value.Kind != yaml.MappingNode || len(value.Content) == 0 || setting || r.derived[key] != "":
			r.say(key, value, at)
		case strings.Count(key, ".") < levelsMax:
			r.section(key+".", value, at, lines)
		default:
			r.wrong(at, "sections are nested more than %d deep", levelsMax)
		}
	}
}
