package procgroup

import (
	"errors"

	"github.com/ringfence/router/internal/base/clock"
)

var errNoPause = errors.New("this system cannot pause a process")

// Pause is not possible here.
func (p *Process) Pause() (clock.Instant, error) { return 0, errNoPause }

// Resume is not possible here.
func (p *Process) Resume() (clock.Instant, error) { return 0, errNoPause }
