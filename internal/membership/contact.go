package membership

import (
	"context"
	"net"
	"slices"
	"strings"

	"github.com/ringfence/router/internal/base/backoff"
)

// seedsAre is the result of contacting the seeds.
type seedsAre uint8

const (
	seedsFine       seedsAre = iota
	seedsOnlySelf            // they resolve only to this node's advertised address
	seedsNobody              // they answer, and name no node but this one: they are this node by another address, or just starting
	seedsUnresolved          // no name of them can be looked up
	seedsSilent              // no node answers at their addresses
	seedsRefused             // they answer, and this node refuses to know them
)

// seek contacts the seeds while no other member is known.
func (g *Gossip) seek(ctx context.Context) {
	if len(g.cfg.Seeds) == 0 {
		return
	}
	defer g.metrics.onlySelf.Set(0) // the next incarnation begins without a report
	waits, are := backoff.Backoff{Min: g.cfg.JoinBackoffMin, Max: g.cfg.JoinBackoffMax}, seedsFine
	for {
		now := seedsFine
		if g.roster.len() > 1 {
			waits.Reset()
		} else {
			now = g.trySeeds(ctx)
			if !waits.IsMaxBackoffReached() && (now == seedsUnresolved || now == seedsSilent || now == seedsNobody) {
				now = are // all members of the group may just be starting
			}
		}
		if ctx.Err() != nil {
			return
		}
		g.noteSeeds(are, now)
		are = now
		if backoff.Sleep(ctx, waits.Next()) != nil {
			return
		}
	}
}

// trySeeds contacts all seeds.
func (g *Gossip) trySeeds(ctx context.Context) seedsAre {
	addrs := g.resolve(ctx, "seed", g.cfg.Seeds)
	others, refusals := g.notSelf(addrs), g.refusals.Load()
	reached := g.contact(ctx, "seed", others)
	switch {
	case len(addrs) == 0:
		return seedsUnresolved
	case reached && g.roster.len() == 1 && g.refusals.Load() > refusals:
		return seedsRefused
	case len(others) == 0:
		return seedsOnlySelf
	case reached && g.roster.len() == 1:
		return seedsNobody
	case !reached:
		return seedsSilent
	}
	return seedsFine
}

// noteSeeds reports a new result of contacting the seeds, once. If the seeds lead only to
// this node, it may believe that it has joined, while the rest of its group runs elsewhere.
func (g *Gossip) noteSeeds(before, now seedsAre) {
	if now == before {
		return
	}
	g.metrics.onlySelf.Set(0)
	switch now {
	case seedsOnlySelf, seedsNobody:
		g.log.Warn("seeds name only this node", "address", g.self.GossipAddr, "seeds", g.cfg.Seeds)
		g.metrics.onlySelf.Set(1)
	case seedsRefused:
		g.log.Warn("seeds answer, but this node refuses their members: see the log line gossip refused and its metric", "seeds", g.cfg.Seeds)
		g.metrics.onlySelf.Set(1) // it is just as alone
	case seedsUnresolved:
		g.log.Warn("no seed can be resolved", "seeds", g.cfg.Seeds)
	case seedsSilent:
		g.log.Warn("no seed answers", "seeds", g.cfg.Seeds)
	}
}

// rejoin contacts the known members that gossip misses, some in each round.
func (g *Gossip) rejoin(ctx context.Context) {
	next := 0
	for backoff.Sleep(ctx, g.cfg.RejoinInterval) == nil {
		missing := g.missing()
		if len(missing) == 0 {
			continue
		}
		// Begin where the last round ended: a row of dead addresses must not hide a live one.
		next %= len(missing)
		round := slices.Concat(missing[next:], missing[:next])
		round = round[:min(len(round), g.cfg.RejoinsMax)]
		next += len(round)
		g.contact(ctx, "rejoin", g.notSelf(g.resolve(ctx, "rejoin", round)))
	}
}

// contact exchanges states with each address, and reports whether one answered.
func (g *Gossip) contact(ctx context.Context, why string, addrs []string) bool {
	reached := false
	for _, addr := range addrs {
		if ctx.Err() != nil {
			break
		}
		result := "ok"
		if _, err := g.list.Join([]string{addr}); err != nil {
			result = "failed"
			g.log.Debug("member not reached", "reason", why, "address", addr, "error", err)
		} else {
			reached = true
		}
		g.metrics.joins.WithLabelValues(why, result).Inc()
	}
	return reached
}

// resolve turns host:port and dns+host:port into ip:port. A name that cannot be
// looked up is left out: it is tried again.
func (g *Gossip) resolve(ctx context.Context, why string, hosts []string) []string {
	var out []string
	for _, hostport := range hosts {
		host, port, err := net.SplitHostPort(strings.TrimPrefix(hostport, "dns+"))
		if err != nil {
			g.log.Warn("address ignored", "address", hostport, "error", err)
			continue
		}
		ips, err := net.DefaultResolver.LookupHost(ctx, host)
		if err != nil {
			g.log.Debug("name not resolved", "reason", why, "address", hostport, "error", err)
			g.metrics.joins.WithLabelValues(why, "unresolved").Inc()
			continue
		}
		for _, ip := range ips {
			out = append(out, net.JoinHostPort(ip, port))
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// notSelf leaves this node's own address out.
func (g *Gossip) notSelf(addrs []string) []string {
	return slices.DeleteFunc(slices.Clone(addrs), func(a string) bool { return a == g.self.GossipAddr })
}
