package source_test

import (
	"maps"
	"slices"

	"github.com/ringfence/router/internal/base/event"
)

func sorted(handles []event.Handle) []event.Handle { slices.Sort(handles); return handles }

func handlesOf[V any](open map[event.Handle]V) []event.Handle { return slices.Collect(maps.Keys(open)) }
