package audit

import "github.com/ringfence/router/internal/base/setting"

// Config configures the live auditor of a router.
type Config struct {
	Enabled  bool // compare when handlers of one key ran, and ask workers for it
	BytesMax int  `unit:"bytes" min:"64KiB" max:"4GiB"` // memory for recent handlings; when it is full the oldest are forgotten
}

// DefaultConfig returns the settings for production.
func DefaultConfig() Config {
	return Config{Enabled: true, BytesMax: 16 << 20} // the last 100,000 handlings or more
}

// Validate reports every field that is out of the range of its tag.
func (c Config) Validate() error { return setting.Check(c) }
