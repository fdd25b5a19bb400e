package source_test

import (
	"slices"

	"github.com/ringfence/router/internal/base/event"
)

func sorted(handles []event.Handle) []event.Handle { slices.Sort(handles); return handles }
