package membership

import (
	"context"
	"net"
	"slices"
	"strings"
	"time"
)

// seek contacts the seeds whenever nobody else is known.
func (g *Gossip) seek(ctx context.Context) {
	if len(g.cfg.Seeds) == 0 {
		return
	}
	wait, onlySelf := g.cfg.JoinBackoffMin, false
	for {
		if g.roster.len() > 1 {
			wait = g.cfg.JoinBackoffMin
			onlySelf = g.noteOnlySelf(onlySelf, false)
		} else {
			onlySelf = g.noteOnlySelf(onlySelf, g.trySeeds(ctx))
			wait = min(2*wait, g.cfg.JoinBackoffMax)
		}
		if !pause(ctx, wait) {
			return
		}
	}
}

// trySeeds contacts all seeds, and reports whether they name nobody but this node,
// by the address that it advertises or by another one.
func (g *Gossip) trySeeds(ctx context.Context) (onlySelf bool) {
	addrs := g.resolve(ctx, g.cfg.Seeds)
	others := g.notSelf(addrs)
	reached := g.contact(ctx, "seed", others)
	return len(addrs) > 0 && (len(others) == 0 || reached && g.roster.len() == 1)
}

// noteOnlySelf reports it once when the seeds come to name nobody but this node: a
// cluster of one that believes that it has joined is how a group falls apart unnoticed.
func (g *Gossip) noteOnlySelf(before, now bool) bool {
	switch {
	case now && !before:
		g.log.Warn("seeds name only this node", "address", g.self.GossipAddr, "seeds", g.cfg.Seeds)
		g.metrics.onlySelf.Set(1)
	case before && !now:
		g.metrics.onlySelf.Set(0)
	}
	return now
}

// rejoin contacts the known members that gossip misses, some in each round.
func (g *Gossip) rejoin(ctx context.Context) {
	next := 0
	for pause(ctx, g.cfg.RejoinInterval) {
		missing := g.missing()
		if len(missing) == 0 {
			continue
		}
		// Begin where the last round ended: a row of dead addresses must not hide a live one.
		next %= len(missing)
		round := slices.Concat(missing[next:], missing[:next])
		round = round[:min(len(round), g.cfg.RejoinsMax)]
		next += len(round)
		g.contact(ctx, "rejoin", g.notSelf(g.resolve(ctx, round)))
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
			g.log.Debug("member not reached", "why", why, "address", addr, "error", err)
		} else {
			reached = true
		}
		g.metrics.joins.WithLabelValues(why, result).Inc()
	}
	return reached
}

// resolve turns host:port and dns+host:port into ip:port. A name that cannot be
// looked up is left out: it is tried again.
func (g *Gossip) resolve(ctx context.Context, hosts []string) []string {
	var out []string
	for _, hostport := range hosts {
		host, port, err := net.SplitHostPort(strings.TrimPrefix(hostport, "dns+"))
		if err != nil {
			g.log.Warn("address ignored", "address", hostport, "error", err)
			continue
		}
		ips, err := net.DefaultResolver.LookupHost(ctx, host)
		if err != nil {
			g.log.Debug("name not resolved", "address", hostport, "error", err)
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

// pause waits, and reports whether ctx is still alive.
func pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}
