package report

import (
	"bytes"
	"encoding/json"
	"errors"

	"github.com/ringfence/router/ring"
)

// The lists in the answers of other members, which are read only up to their bounds.
type (
	keyList       []ListedKey // at most [KeysLimitMax]
	stepList      []Step      // at most [HistoryStepsMax]
	partitionList []Partition // at most [ring.Partitions]
	skipList      []Skip      // at most [SkipsMax]
	scheduleList  []Schedule  // at most [SchedulesMax]

	list[T any] []T // at most listMax
)

// listMax bounds all other lists: those of workers are the longest, and app.workers_max is at most as much.
const listMax = 10_000

// UnmarshalJSON implements json.Unmarshaler.
func (l *list[T]) UnmarshalJSON(text []byte) error {
	return unmarshalList((*[]T)(l), text, listMax)
}

// UnmarshalJSON implements json.Unmarshaler.
func (l *scheduleList) UnmarshalJSON(text []byte) error {
	return unmarshalList((*[]Schedule)(l), text, SchedulesMax)
}

// UnmarshalJSON implements json.Unmarshaler.
func (l *keyList) UnmarshalJSON(text []byte) error {
	return unmarshalList((*[]ListedKey)(l), text, KeysLimitMax)
}

// UnmarshalJSON implements json.Unmarshaler.
func (l *stepList) UnmarshalJSON(text []byte) error {
	return unmarshalList((*[]Step)(l), text, HistoryStepsMax)
}

// UnmarshalJSON implements json.Unmarshaler.
func (l *partitionList) UnmarshalJSON(text []byte) error {
	return unmarshalList((*[]Partition)(l), text, ring.Partitions)
}

// UnmarshalJSON implements json.Unmarshaler.
func (l *skipList) UnmarshalJSON(text []byte) error {
	return unmarshalList((*[]Skip)(l), text, SkipsMax)
}

// unmarshalList reads a list of at most so many items, and stops at the first one beyond: an empty item of three bytes takes hundreds in memory.
func unmarshalList[T any](list *[]T, text []byte, most int) error {
	*list = nil
	items := json.NewDecoder(bytes.NewReader(text))
	if first, err := items.Token(); err != nil || first == nil { // nil: null
		return err
	} else if first != json.Delim('[') {
		return errors.New("report: a list is wanted")
	}
	all := []T{}
	for items.More() {
		if len(all) == most {
			return errTooLong
		}
		var one T
		if err := items.Decode(&one); err != nil {
			return err
		}
		all = append(all, one)
	}
	*list = all
	return nil
}
