package source

import (
	"github.com/ringfence/router/internal/base/clock"
	"github.com/ringfence/router/internal/base/event"
	"github.com/ringfence/router/internal/netx/reload"
)

// CheckCopyKeys reports the fault of the file that CopyKeysFile names.
func (c Config) CheckCopyKeys() error {
	_, err := c.openCopyKeys(func(error) {})
	return err
}

// openCopyKeys returns the function that reads the keys of copies. The first one signs new copies. There are none if none are configured.
func (c Config) openCopyKeys(changed func(error)) (keys func() [][]byte, err error) {
	if c.CopyKeysFile == "" {
		return func() [][]byte { return nil }, nil
	}
	file, err := reload.Open([]string{c.CopyKeysFile}, func(contents [][]byte) ([][]byte, error) { return parseCopyKeys(contents[0]) }, changed)
	if err != nil {
		return nil, err
	}
	return file.Get, nil
}

// CopiesSigned reports whether copies must be signed by a key of the group to count as
// copies.
func (c Config) CopiesSigned() bool { return c.CopyKeysFile != "" && !c.CopyUnsigned }

// openKeys opens the keys that sign copies.
func (s *Source) openKeys() (err error) {
	s.copyKeys, err = s.cfg.openCopyKeys(func(err error) {
		if err != nil {
			s.log.Error("the copy keys file cannot be used", "error", err)
		}
	})
	return err
}

// restoreCopies turns valid copies from the retry and timer topics back into their originals. The
// reader's goroutine calls it.
func (s *Source) restoreCopies(receipts []Receipt) {
	for i := range receipts {
		r := &receipts[i]
		if !r.Copy || r.Unreadable != "" {
			continue
		}
		r.Entry.MakeObjects()
		for i := range r.Has.All() {
			m := r.Entry.Message(i)
			published := m.Event.PublishTime
			s.restoreCopy(m)
			if r.Entry.Len() == 1 { // no router writes others, so their events are handled at once
				r.early = s.early(m.Event, published, wall())
			}
		}
	}
}

func (s *Source) restoreCopy(m event.Message) {
	why := refusalReason(&m, s.copyKeys(), s.cfg.CopyUnsigned)
	if why == "" && !isTimely(m.Event, wall()) {
		why = copyUntimely
	}
	if why == "" {
		restore(m.Event)
		return
	}
	stripCopy(m.Event)
	s.metrics.copiesRefused.WithLabelValues(why).Inc()
	if messages, due := s.refused.Add(clock.Now(), 1, tallyEvery); due {
		s.log.Warn("messages in the retry or timer topic are not valid copies; they are handled as separate events",
			"messages", messages, "reason", why, "message_id", m.Event.ID.String())
	}
}
