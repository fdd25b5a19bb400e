package main

import (
	"context"
	"fmt"
	"time"
)

// attack is one row of the table in docs/security.md.
type attack struct {
	number int
	part   string // of the rows that are several attacks: a, b, …
	name   string
	try    func(ctx context.Context, l *lab) (finding, error)
}

// finding is the result of an attack.
type finding struct {
	broken bool
	seen   string
}

func held(format string, args ...any) (finding, error) {
	return finding{false, fmt.Sprintf(format, args...)}, nil
}

func broken(format string, args ...any) (finding, error) {
	return finding{true, fmt.Sprintf(format, args...)}, nil
}

// attackMax bounds the duration of an attack.
const attackMax = 90 * time.Second

// rows is the number of rows of the table.
const rows = 15

// attacks returns all of them, by row.
func attacks() []attack {
	return []attack{
		{1, "", "frames of empty results before Hello, on 30 application connections", resultsBeforeHello},
		{2, "", "64 admin connections that announce a body and send none", unsentBodies},
		{3, "", "Hello of a peer with a group name of 7 MiB", longGroupName},
		{4, "", "gossip garbage: 8,000 packets and 1,500 connections", gossipGarbage},
		{5, "", "5,000 forged gossip members, two with addresses to be dialed", forgedMembers},
		{6, "", "100 gossip packets of 18 kB that expand to 39 MB", gossipBombs},
		{7, "", "60 clients on /v1/partitions", partitionsInLoops},
		{8, "", "profiles for a stranger, for a bent name, and many at once", profiles},
		{9, "", "an operator's browser is sent to /undrain and /drain", browser},
		{10, "", "escape codes in a gossip name", escapeCodes},
		{11, "", "a wildcard certificate as a member", wildcard},
		{12, "a", "settings: an admin token of one character", shortToken},
		{12, "b", "settings: a token file that everybody may write", openTokenFile},
		{12, "c", "settings: a password in pulsar.url, and config print", passwordInURL},
		{12, "d", "settings: the variables of a Service named ringfence--x", serviceVariables},
		{12, "e", "settings: a map 9,000 deep", deepSettings},
		{12, "f", "settings: --config /dev/zero", endlessSettings},
		{13, "", "log level debug: keys and payloads in the log", debugLevel},
		{14, "", "a stranger on loopback as a worker", strangerWorker},
		{15, "a", "calls by HTTP: 1,500 connections that send slowly, or nothing", slowCalls},
		{15, "b", "calls by HTTP: 200 callers with the token and endless bodies", largeCalls},
		{15, "c", "calls by HTTP: malformed requests, and such that hide another one", malformedCalls},
		{15, "d", "calls by HTTP: 3,000 wrong tokens", wrongCallTokens},
	}
}

// with starts a router, lets try attack it, and sees that it is still there.
func with(more settings, name string, try func(ctx context.Context, r *router) (finding, error)) func(context.Context, *lab) (finding, error) {
	return func(ctx context.Context, l *lab) (finding, error) {
		r, err := l.start(ctx, name, nil, more)
		if err != nil {
			return finding{}, err
		}
		defer r.stop()
		f, err := try(ctx, r)
		if err != nil {
			return f, err
		}
		if err := r.alive(ctx); err != nil {
			f.seen += "; afterwards: " + err.Error()
			f.broken = true
		}
		return f, nil
	}
}
