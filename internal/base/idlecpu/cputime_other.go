//go:build !unix

package idlecpu

import (
	"errors"
	"time"
)

func cpuTime() (time.Duration, error) { return 0, errors.ErrUnsupported }
