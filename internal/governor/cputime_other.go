//go:build !unix

package governor

import (
	"errors"
	"time"
)

func cpuTime() (time.Duration, error) { return 0, errors.ErrUnsupported }
