package node

import (
	"context"

	"github.com/ringfence/router/forward"
	"github.com/ringfence/router/internal/audit"
	"github.com/ringfence/router/internal/base/clock"
	"github.com/ringfence/router/internal/base/event"
	"github.com/ringfence/router/internal/history/hotkeys"
	"github.com/ringfence/router/internal/mailbox"
	"github.com/ringfence/router/internal/report"
	"github.com/ringfence/router/ring"
)

// which is the selection of a question about keys.
func which(q report.KeysQuestion) mailbox.Which {
	switch q.Which {
	case report.KeysWaiting:
		return mailbox.WaitingKeys
	case report.KeysRunning:
		return mailbox.RunningKeys
	case report.KeysFailing:
		return mailbox.FailingKeys
	}
	return mailbox.EveryKey
}

// Keys implements report.Local.
func (s *reporter) Keys(ctx context.Context, q report.KeysQuestion) report.KeysAt {
	ctx, cancel := context.WithTimeout(ctx, report.AskTimeout)
	defer cancel()
	if s.lists.Wait(ctx) != nil {
		s.node.metrics.questionsRefused.Inc()
		return report.KeysAt{View: s.reporter(), Error: tooMany}
	}
	switch q.Which {
	case report.KeysHot:
		return s.hotKeys(q)
	case report.KeysInverted:
		return s.invertedKeys(q)
	}
	worst, now := s.node.boxes.Keys(which(q), q.Limit), clock.Now()
	all := report.KeysAt{View: s.reporter(), NoApplication: s.node.appIsGone(), Counts: report.KeyCounts{
		Keys: worst.Counts.Keys, Waiting: worst.Counts.Waiting, Running: worst.Counts.Running, Failing: worst.Counts.Failing,
		Selected: worst.Counts.Chosen,
	}}
	for i := range worst.Keys {
		k := &worst.Keys[i]
		one := s.keyed(k.Hash)
		s.describe(&one, now, k.KeyState)
		name(&one, k.Key, q.Named)
		all.Keys = append(all.Keys, one)
	}
	unsent := s.node.pool.Unsent()
	all.Counts.Unsent = len(unsent)
	if q.Which == "" || q.Which == report.KeysWaiting {
		all.Counts.Selected += len(unsent)
		for i := range unsent {
			all.Keys = append(all.Keys, s.listedUnsent(now, &unsent[i], q.Named))
		}
	}
	all.Bound(q)
	return all
}

// hotKeys lists the keys that were hot in the last window, with what they do now.
func (s *reporter) hotKeys(q report.KeysQuestion) report.KeysAt {
	all, now := report.KeysAt{View: s.reporter()}, clock.Now()
	for _, k := range s.node.boxes.HotKeys() {
		one := s.inspected(now, k.Hash, k.Name, q.Named)
		one.Rate, one.Busy = k.Rate, k.Busy
		if k.Outgrows != hotkeys.NotForeseen {
			in := k.Outgrows.Seconds()
			one.OutgrowsIn = &in
		}
		all.Keys = append(all.Keys, one)
	}
	all.Counts.Selected = len(all.Keys)
	all.Bound(q)
	return all
}

// invertedKeys lists the keys whose events began out of order here, with what they do now.
func (s *reporter) invertedKeys(q report.KeysQuestion) report.KeysAt {
	all, now := report.KeysAt{View: s.reporter()}, clock.Now()
	if s.node.meter == nil {
		all.Error = "it does not watch the order: audit.enabled is false"
		return all
	}
	for _, k := range s.node.meter.Keys() {
		one := s.inspected(now, k.Hash, k.Name, q.Named)
		one.Order = &report.KeyOrder{Inversions: k.Sum(), Causes: make(map[string]uint64), Ago: age(now, k.Last)}
		for _, cause := range audit.Causes() {
			if n := k.Causes[cause]; n > 0 {
				one.Order.Causes[cause.String()] = n
			}
		}
		all.Keys = append(all.Keys, one)
	}
	all.Counts.Selected = len(all.Keys)
	all.Bound(q)
	return all
}

// inspected describes a key with what it does now, if its name is known; "": it is not.
func (s *reporter) inspected(now clock.Instant, hash ring.KeyHash, key event.Key, named bool) report.ListedKey {
	one := s.keyed(hash)
	if key != "" {
		s.describe(&one, now, s.node.boxes.Inspect(key))
		name(&one, key, named)
	}
	return one
}

// describe tells the state of a key in its mailbox.
func (s *reporter) describe(one *report.ListedKey, now clock.Instant, k mailbox.KeyState) {
	one.Wait = k.Wait.String()
	if k.Wait == mailbox.WaitNothing {
		return
	}
	one.Seconds, one.Age = age(now, k.Since), age(now, k.Accepted)
	one.Failures, one.Crashes, one.Behind = k.Attempts, k.Crashes, k.Behind()
	one.Event, one.Worker, one.EventSeconds = k.Event.String(), uint64(k.Worker), k.Weight(now)
	if one.Call, one.Method, one.Calls = k.Call, k.Method, k.Calls; one.Call {
		one.Event = "" // the id is that of no message
	}
	if k.HeldUntil != 0 {
		one.RetryIn = left(now, k.HeldUntil)
	}
}

// name sets the name of a key, for callers that may see it.
func name(one *report.ListedKey, key event.Key, named bool) {
	if named {
		one.SetKey(string(key))
	}
}

func (s *reporter) listedUnsent(now clock.Instant, k *forward.HeldKey, named bool) report.ListedKey {
	one := s.keyed(ring.HashOf(string(k.Key)))
	name(&one, k.Key, named)
	one.Wait, one.Behind, one.Age = k.Place.String(), k.Events-1, age(now, k.Oldest)
	one.Seconds, one.EventSeconds, one.With = one.Age, one.Age*float64(k.Events), s.with(k.KeyPlace)
	return one
}

// keyed names a key by its hash, its partition and the owner.
func (s *reporter) keyed(hash ring.KeyHash) report.ListedKey {
	one := report.ListedKey{Hash: hash.String(), Partition: uint16(hash.Partition()), At: s.node.cfg.Name}
	if owner, _ := s.Owner(ring.Partition(one.Partition)); owner != nil {
		one.Owner = owner.Name
	}
	return one
}
