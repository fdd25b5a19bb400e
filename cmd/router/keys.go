package main

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/ringfence/router/internal/report"
)

func keysCommand() *cobra.Command {
	which := map[string]*bool{}
	limit := report.KeysLimit
	cmd := watched(&cobra.Command{
		Use:   "keys",
		Short: "Show the keys of the group that have events, the worst first, and why they wait",
		Long: `Show the keys of the group that have events, the worst first, and why they wait.

The worst key is the one whose events have waited longest in total: a key that is stuck,
that fails again and again, or that gets more events than its handler can handle. WAITS FOR
is as in router locate; further words are places of events that a member has received and
that no mailbox has yet.

Keys are named to callers with the admin token, or with log.keys: reveal; all others get
their hashes. Each member lists at most --limit keys; the rest is counted.`,
		Args: noArgs,
	}, func(cmd *cobra.Command, _ []string, a *asker, o *outputForm) error {
		question, err := keysQuestion(which, limit)
		if err != nil {
			return err
		}
		var k report.Keys
		if err := a.get(cmd.Context(), "/v1/keys?"+question.Encode(), &k); err != nil {
			if strings.HasPrefix(err.Error(), formerKeys) {
				return errors.New("the router cannot list keys: it is an older version of the router")
			}
			return err
		}
		table := keysTable
		switch {
		case *which[report.KeysHot]:
			table = hotTable
		case *which[report.KeysInverted]:
			table = invertedTable
		}
		return o.show(cmd.OutOrStdout(), k, func(p *page) {
			table(p, k)
			keysNotes(p, k)
		})
	})
	for name, usage := range map[string]string{
		report.KeysWaiting:  "only keys whose first event waits",
		report.KeysRunning:  "only keys of which an event runs",
		report.KeysFailing:  "only keys whose first event has failed, or crashed a worker",
		report.KeysHot:      "the keys with the most events and the busiest handlers of the last ten seconds",
		report.KeysInverted: "the keys whose events began after later ones most often, since the start of each member, by cause",
	} {
		which[name] = cmd.Flags().Bool(name, false, usage)
	}
	cmd.Flags().IntVar(&limit, "limit", limit, fmt.Sprintf("list at most so many keys, 1 to %d", report.KeysLimitMax))
	return cmd
}

// formerKeys is how a router of the former release answers, which tells of single keys only.
const formerKeys = "say which key: /v1/keys?key=KEY"

// keysQuestion is the query of a question about keys.
func keysQuestion(which map[string]*bool, limit int) (url.Values, error) {
	q := report.KeysQuestion{Limit: limit}
	for _, name := range slices.Sorted(maps.Keys(which)) {
		if *which[name] && q.Which != "" {
			return nil, usageError{fmt.Errorf("--%s and --%s exclude each other: one selection at a time", q.Which, name)}
		} else if *which[name] {
			q.Which = name
		}
	}
	if err := q.Check(); err != nil {
		return nil, usageError{fmt.Errorf("--%w", err)}
	}
	return url.Values{"which": {q.Which}, "limit": {strconv.Itoa(limit)}}, nil
}

func keysTable(p *page, k report.Keys) {
	var rows [][]string
	for i := range k.Keys {
		rows = append(rows, keyRow(&k.Keys[i]))
	}
	p.table([]string{keyHeading(k), "PARTITION", "OWNER", "WAITS FOR", "FOR", "AGE", "FAILED", "BEHIND"}, rows)
	p.line("\n%s: %d wait, %d run, %d fail; events of %d more are in no mailbox", report.Plural(k.Counts.Keys, "key"),
		k.Counts.Waiting, k.Counts.Running, k.Counts.Failing, k.Counts.Unsent)
}

func hotTable(p *page, k report.Keys) {
	var rows [][]string
	for i := range k.Keys {
		one := &k.Keys[i]
		rows = append(rows, []string{
			shownKey(one), strconv.Itoa(int(one.Partition)), one.Owner, fmt.Sprintf("%.1f", one.Rate),
			fmt.Sprintf("%.0f %%", one.Busy*100), outgrowsWords(one), strconv.Itoa(one.Behind),
		})
	}
	p.table([]string{keyHeading(k), "PARTITION", "OWNER", "EVENTS/S", "BUSY", "OUTGROWS ITS TURN", "BEHIND"}, rows)
	p.line("\nof the last ten seconds; a key that is busy for all of its time gets more events than can be handled one at a time")
}

func invertedTable(p *page, k report.Keys) {
	var rows [][]string
	for i := range k.Keys {
		one := &k.Keys[i]
		if one.Order == nil {
			continue // a member whose version has none
		}
		owner := one.Owner
		if one.At != one.Owner {
			owner += ", counted at " + one.At
		}
		rows = append(rows, []string{
			shownKey(one), strconv.Itoa(int(one.Partition)), owner, strconv.FormatUint(one.Order.Inversions, 10), causesWords(one.Order.Causes), report.Seconds(one.Order.Ago) + " ago",
		})
	}
	p.table([]string{keyHeading(k), "PARTITION", "OWNER", "INVERSIONS", "CAUSES", "LAST"}, rows)
	p.line("\nevents that began after a later one of their key and topic partition, since the start of each member: at least so many")
}

// causesWords lists counts by cause, the greatest first.
func causesWords(causes map[string]uint64) string {
	names := slices.SortedFunc(maps.Keys(causes), func(a, b string) int { return cmp.Or(cmp.Compare(causes[b], causes[a]), cmp.Compare(a, b)) })
	for i, name := range names {
		names[i] = fmt.Sprintf("%s %d", name, causes[name])
	}
	return strings.Join(names, ", ")
}

func outgrowsWords(k *report.ListedKey) string {
	switch {
	case k.OutgrowsIn == nil:
		return "-"
	case *k.OutgrowsIn == 0:
		return "now"
	}
	return "in " + report.Seconds(*k.OutgrowsIn)
}

func keyHeading(k report.Keys) string {
	if k.Named {
		return "KEY"
	}
	return "HASH"
}

// keysNotes says what a list leaves out, and who made it.
func keysNotes(p *page, k report.Keys) {
	if k.Cut > 0 {
		p.line("%d are not listed: --limit lists up to %d", k.Cut, report.KeysLimitMax)
	}
	if !k.Named {
		p.line("keys are shown as hashes: with the admin token (--token-file), or with log.keys: reveal at the routers, they have names")
	}
	p.line("%s", toldBy(k.View))
	if len(k.WithoutApplication) > 0 {
		p.alarm("no application is connected to %s: without one a member takes no events from the broker", strings.Join(k.WithoutApplication, ", "))
	}
	for _, silent := range k.Silent {
		p.alarm("no list of %s", silent)
	}
}

func keyRow(k *report.ListedKey) []string {
	owner := k.Owner
	if k.At != k.Owner {
		owner += ", events at " + k.At
	}
	return []string{
		shownKey(k), strconv.Itoa(int(k.Partition)), owner, k.Reason(), report.Seconds(k.Seconds), report.Seconds(k.Age), failedWords(k), strconv.Itoa(k.Behind),
	}
}

// shownKey returns the name of a key, or its hash.
func shownKey(k *report.ListedKey) string {
	if k.KeyBase64 != "" {
		return "base64:" + k.KeyBase64
	}
	return cmp.Or(k.Key, k.Hash)
}

func failedWords(k *report.ListedKey) string {
	text := strconv.Itoa(int(k.Failures))
	if k.Crashes > 0 {
		text += fmt.Sprintf(" (and %d crashes)", k.Crashes)
	}
	return text
}
