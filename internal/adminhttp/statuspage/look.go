package statuspage

import (
	"context"
	"sync"

	"github.com/ringfence/router/internal/report"
)

// How much of each list the page shows. What is cut is counted on the page.
const (
	worstMax       = 50
	failingMax     = 20
	hotMax         = 10
	problemsMax    = 12
	membersMax     = 100
	waitsMax       = 50
	protectionsMax = 10
)

// seen is the input of a snapshot.
type seen struct {
	members report.Members
	ring    report.Partitions                      // as the asked member sees it
	gates   map[string]map[uint16]report.Partition // by member: the word of each that waits for others, or others for it
	keys    keyLists
}

// keyLists are the answers to the questions about keys.
type keyLists struct{ worst, failing, hot report.Keys }

// look asks the group; about keys only if known, which is the last answer, is nil.
func look(ctx context.Context, group Group, named bool, known *keyLists) seen {
	s := seen{gates: make(map[string]map[uint16]report.Partition)}
	var asking sync.WaitGroup
	asking.Go(func() {
		s.members = group.Members(ctx)
		s.ring, _ = group.Partitions(ctx, "") // the asked member answers itself
		s.lookAtGates(ctx, group)
	})
	if known != nil {
		s.keys = *known
	} else {
		asking.Go(func() {
			s.keys.hot = group.Keys(ctx, report.KeysQuestion{Which: report.KeysHot, Limit: hotMax, Named: named})
		})
		asking.Go(func() {
			s.keys.worst = group.Keys(ctx, report.KeysQuestion{Limit: worstMax, Named: named})
			if s.keys.worst.Counts.Failing > 0 {
				s.keys.failing = group.Keys(ctx, report.KeysQuestion{Which: report.KeysFailing, Limit: failingMax, Named: named})
			}
		})
	}
	asking.Wait()
	return s
}

// lookAtGates asks members for their partitions. It skips members whose gates are all open for all keys,
// which are all members, except while partitions move.
func (s *seen) lookAtGates(ctx context.Context, group Group) {
	for _, m := range s.members.Members {
		if m.Status == nil || m.Status.Gates.Waiting+m.Status.Gates.Draining+m.Status.Gates.Withheld == 0 {
			continue
		}
		word, err := group.Partitions(ctx, m.Name)
		if err != nil {
			continue // it has gone silent meanwhile, which the next look tells
		}
		gates := make(map[uint16]report.Partition)
		for _, p := range word.Partitions {
			gates[p.Number] = p
		}
		s.gates[m.Name] = gates
	}
}
