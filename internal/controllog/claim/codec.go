package claim

import (
	"errors"
	"fmt"
	"strings"

	"google.golang.org/protobuf/proto"

	"github.com/ringfence/router/internal/base/identity"
	"github.com/ringfence/router/internal/wire/hotframe"
	controllogv1 "github.com/ringfence/router/proto/ringfence/controllog/v1"
)

// Bounds of a record that comes from elsewhere.
const (
	recordMax       = 1 << 20 // bytes
	resourcesMax    = 8192    // resources of one record
	resourceMax     = 2048    // bytes of the name of a resource
	writerBytes     = 16
	generationMax   = 127
	formatVersion   = 1
	allResourcesMax = 1 << 16 // resources that a Fold knows
)

// errVersion says that a record is of a later format.
var errVersion = errors.New("claim: another version")

// Record is one record of a claims topic.
type Record struct {
	Resources []string
	Writer    Writer
	Identity  identity.Identity
	Gen       uint32
	Began     bool // fencing tokens of generation Gen were given out
	Release   bool // the claim ends
	Force     bool // an operator ends the claim of any holder
}

// Writer is a random number by which the writer of a record finds it in the log.
type Writer [writerBytes]byte

// Encode returns the bytes of a record. It fails if a reader would not accept them.
func Encode(r Record) ([]byte, error) {
	if err := r.validate(); err != nil {
		return nil, err
	}
	var settings []*controllogv1.Setting
	for _, s := range r.Identity {
		settings = append(settings, &controllogv1.Setting{Name: s.Name, Value: s.Value})
	}
	data, err := proto.Marshal(&controllogv1.Claim{
		Version: formatVersion, Resources: r.Resources, Writer: r.Writer[:], Identity: settings,
		Gen: r.Gen, Began: r.Began, Release: r.Release, Force: r.Force,
	})
	if err == nil && len(data) > recordMax {
		err = fmt.Errorf("claim: record of %d bytes, want at most %d", len(data), recordMax)
	}
	return data, err
}

// fieldsMax bounds the fields of a record, counted before memory is allocated for them: an empty setting of two bytes takes about a hundred.
const fieldsMax = resourcesMax + identity.SettingsMax + 64

// countFields counts the fields of a record up to the first malformed one, and no more than the first one beyond fieldsMax.
func countFields(data []byte) (fields int) {
	for range hotframe.Fields(data) {
		if fields++; fields > fieldsMax {
			break
		}
	}
	return fields
}

// Decode reads a record.
func Decode(data []byte) (Record, error) {
	if len(data) > recordMax {
		return Record{}, fmt.Errorf("claim: record of %d bytes, want at most %d", len(data), recordMax)
	}
	if fields := countFields(data); fields > fieldsMax {
		return Record{}, fmt.Errorf("claim: record of more than %d fields", fieldsMax)
	}
	var in controllogv1.Claim
	if err := proto.Unmarshal(data, &in); err != nil {
		return Record{}, fmt.Errorf("claim: %w", err)
	}
	if in.GetVersion() != formatVersion {
		return Record{}, fmt.Errorf("%w: %d, want %d", errVersion, in.GetVersion(), formatVersion)
	}
	r := Record{
		Resources: in.GetResources(), Gen: in.GetGen(), Began: in.GetBegan(), Release: in.GetRelease(), Force: in.GetForce(),
	}
	if len(in.GetWriter()) != writerBytes {
		return Record{}, fmt.Errorf("claim: writer of %d bytes, want %d", len(in.GetWriter()), writerBytes)
	}
	copy(r.Writer[:], in.GetWriter())
	for _, s := range in.GetIdentity() {
		r.Identity = append(r.Identity, identity.Setting{Name: s.GetName(), Value: s.GetValue()})
	}
	return r, r.validate()
}

func (r Record) validate() error {
	if n := len(r.Resources); n == 0 || n > resourcesMax {
		return fmt.Errorf("claim: %d resources, want 1 to %d", n, resourcesMax)
	}
	seen := make(map[string]bool, len(r.Resources))
	for _, name := range r.Resources {
		kind, rest, _ := strings.Cut(name, " ")
		if len(name) > resourceMax || rest == "" || kind != "subscription" && kind != "control" || seen[name] {
			return errors.New("claim: a resource is of another kind, too long or there twice")
		}
		seen[name] = true
	}
	if r.Gen > generationMax {
		return fmt.Errorf("claim: generation %d, want at most %d", r.Gen, generationMax)
	}
	if len(r.Identity) == 0 && !(r.Release && r.Force) {
		return errors.New("claim: no identity")
	}
	return r.Identity.Validate()
}
