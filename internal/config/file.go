package config

import (
	"errors"
	"fmt"

	"go.yaml.in/yaml/v3"

	"github.com/ringfence/router/internal/netx/reload"
)

// The bounds of a file with settings. There are three levels in all settings.
const (
	fileBytesMax = 256 << 10
	fileDepthMax = 32 // mappings and lists within each other
)

// settingsFile is the path of a file with settings: a file, or a pipe as in --config <(make-settings).
type settingsFile string

// ReadBytes implements koanf.Provider.
func (f settingsFile) ReadBytes() ([]byte, error) {
	content, err := reload.Bounded(string(f), fileBytesMax)
	if err != nil {
		return nil, err
	}
	return content, checkDepth(content)
}

// Read implements koanf.Provider.
func (settingsFile) Read() (map[string]any, error) {
	return nil, errors.New("a file with settings is read by its bytes")
}

var errDeep = fmt.Errorf("mappings and lists are nested more than %d deep", fileDepthMax)

// checkDepth refuses deep YAML: to flatten it into keys takes the square of its depth.
func checkDepth(content []byte) error {
	var document yaml.Node
	if yaml.Unmarshal(content, &document) != nil {
		return nil //nolint:nilerr // the parser of the settings says it better
	}
	if height(&document, map[*yaml.Node]int{}) > fileDepthMax+1 { // the document is a level of its own
		return errDeep
	}
	return nil
}

// height returns how many levels a node has. Anchors count wherever they are used; known holds the heights of nodes that
// were looked at, and one that is too large for those that are being looked at, which contain themselves.
func height(n *yaml.Node, known map[*yaml.Node]int) int {
	if h, ok := known[n]; ok {
		return h
	}
	known[n] = fileDepthMax + 2
	h := 0
	if n.Kind == yaml.AliasNode {
		h = height(n.Alias, known)
	}
	for _, child := range n.Content {
		h = max(h, height(child, known)+1)
	}
	known[n] = h
	return h
}
