package main

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/ringfence/router/internal/config"
	"github.com/ringfence/router/internal/report"
	"github.com/ringfence/router/ring"
)

func ringCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "ring", Short: "Show the owners of partitions", Args: requireSubcommand, RunE: requireSubcommand}
	cmd.AddCommand(ringShowCommand(), ringDiffCommand(), ringSimulateCommand())
	return cmd
}

// partitionsOf asks for the partitions as a member sees them; "" is the one that is asked.
func partitionsOf(ctx context.Context, a *asker, member string) (report.Partitions, error) {
	var answer report.Partitions
	path := "/v1/partitions"
	if member != "" {
		path += "?member=" + url.QueryEscape(member)
	}
	if err := a.get(ctx, path, &answer); err != nil {
		return report.Partitions{}, err
	}
	if len(answer.Partitions) == 0 {
		return report.Partitions{}, fmt.Errorf("%s has no table yet: it waits for the state of the group, see `router members`", answer.Member)
	}
	return answer, nil
}

func ringShowCommand() *cobra.Command {
	var member string
	var all bool
	cmd := watched(&cobra.Command{
		Use:   "show",
		Short: "Show how many partitions each member owns; with --partitions, each of them",
		Args:  noArgs,
	}, func(cmd *cobra.Command, _ []string, a *asker, o *outputForm) error {
		seen, err := partitionsOf(cmd.Context(), a, member)
		if err != nil {
			return err
		}
		if all {
			return o.show(cmd.OutOrStdout(), seen, func(p *page) { partitionsTable(p, seen) })
		}
		shares := sharesOf(seen)
		return o.show(cmd.OutOrStdout(), shares, func(p *page) { sharesTable(p, shares) })
	})
	cmd.Flags().StringVar(&member, "member", "", "as this member sees it (default: the member at --admin)")
	cmd.Flags().BoolVar(&all, "partitions", false, "list every partition, with its owner, fencing token, and its gate at that member")
	return cmd
}

// shares holds the number of partitions of each member.
type shares struct {
	report.View
	Partitions int     `json:"partitions"`
	Shares     []share `json:"shares"`
}

type share struct {
	Owner      string  `json:"owner"`
	Partitions int     `json:"partitions"`
	Percent    float64 `json:"percent"`
	Ranges     string  `json:"ranges"`
}

func sharesOf(seen report.Partitions) shares {
	s := shares{View: seen.View, Partitions: len(seen.Partitions)}
	owned := map[string][]uint16{}
	for _, p := range seen.Partitions {
		owned[p.Owner] = append(owned[p.Owner], p.Number)
	}
	for owner, numbers := range owned {
		percent := float64(len(numbers)) / float64(len(seen.Partitions)) * 100
		s.Shares = append(s.Shares, share{owner, len(numbers), float64(int(percent*10+0.5)) / 10, ranges(numbers)})
	}
	slices.SortFunc(s.Shares, func(a, b share) int { return strings.Compare(a.Owner, b.Owner) })
	return s
}

func sharesTable(p *page, s shares) {
	var rows [][]string
	for _, one := range s.Shares {
		rows = append(rows, []string{one.Owner, strconv.Itoa(one.Partitions), fmt.Sprintf("%.1f %%", one.Percent)})
	}
	p.table([]string{"OWNER", "PARTITIONS", "SHARE"}, rows)
	p.line("\n%d partitions, table %s, %s", s.Partitions, s.Table, toldBy(s.View))
}

func partitionsTable(p *page, seen report.Partitions) {
	rows := make([][]string, 0, len(seen.Partitions))
	for _, one := range seen.Partitions {
		rows = append(rows, []string{strconv.Itoa(int(one.Number)), one.Owner, strconv.FormatInt(one.Token, 10), one.Gate, strconv.Itoa(one.Running)})
	}
	p.table([]string{"PARTITION", "OWNER", "TOKEN", "GATE AT " + strings.ToUpper(seen.Member), "RUNNING"}, rows)
	p.line("\n%s", toldBy(seen.View))
}

// ranges writes ascending numbers in short: 1-3,7.
func ranges(numbers []uint16) string {
	var parts []string
	for i := 0; i < len(numbers); {
		j := i
		for j+1 < len(numbers) && numbers[j+1] == numbers[j]+1 {
			j++
		}
		part := strconv.Itoa(int(numbers[i]))
		if j > i {
			part += "-" + strconv.Itoa(int(numbers[j]))
		}
		parts = append(parts, part)
		i = j + 1
	}
	return strings.Join(parts, ",")
}

// errDiffer says that members do not see the same ring.
var errDiffer = errors.New("the members do not see the same ring: if it lasts, `router members` shows which one lags")

func ringDiffCommand() *cobra.Command {
	return watched(&cobra.Command{
		Use:   "diff [MEMBER...]",
		Short: "Compare the rings of all members, or of the named ones",
		Long: `Compare the rings of all members, or of the named ones:
the partitions for which the members do not name the same owner and fencing token.
Each member reads the control log on its own, so for a moment after each change they differ.

The exit code is 1 if they do.`,
	}, func(cmd *cobra.Command, names []string, a *asker, o *outputForm) error {
		views, err := viewsOf(cmd.Context(), a, names)
		if err != nil {
			return err
		}
		d := differencesOf(views)
		if err := o.show(cmd.OutOrStdout(), d, func(p *page) { differencesPage(p, d) }); err != nil {
			return err
		}
		if len(d.Differences) > 0 || len(d.Silent) > 0 {
			return errDiffer
		}
		return nil
	})
}

// views holds the ring as each member sees it.
type views struct {
	seen   []report.Partitions
	silent []string // members that did not answer, with the reason
}

func viewsOf(ctx context.Context, a *asker, names []string) (views, error) {
	all := len(names) == 0
	if all {
		var m report.Members
		if err := a.get(ctx, "/v1/members", &m); err != nil {
			return views{}, err
		}
		for _, one := range m.Members {
			if one.Listed || one.Reach == report.ReachSelf {
				names = append(names, one.Name)
			}
		}
	}
	var v views
	for _, name := range slices.Compact(slices.Sorted(slices.Values(names))) {
		seen, err := partitionsOf(ctx, a, name)
		if n := len(seen.Partitions); err == nil && n != ring.Partitions { // they are compared one by one
			err = fmt.Errorf("%s reported %d partitions, want %d", name, n, ring.Partitions)
		}
		switch {
		case err != nil && !all:
			return views{}, err
		case err != nil:
			v.silent = append(v.silent, fmt.Sprintf("%s: %v", name, err))
		default:
			v.seen = append(v.seen, seen)
		}
	}
	if len(v.seen) < 2 && len(v.silent) == 0 {
		return views{}, usageError{errors.New("there is nothing to compare: name two members, or ask a group of two or more")}
	}
	return v, nil
}

// differences lists the differences between views.
type differences struct {
	Views       []report.View `json:"views"`
	Silent      []string      `json:"silent"`
	Partitions  int           `json:"partitions"` // of which not all say the same
	Differences []difference  `json:"differences"`
}

// difference is partitions of which the members say the same different things.
type difference struct {
	Partitions string   `json:"partitions"` // as 1-3,7
	Owners     []string `json:"owners"`     // as each view has it, with the fencing token
}

func differencesOf(v views) differences {
	d := differences{Views: []report.View{}, Silent: append([]string{}, v.silent...), Differences: []difference{}}
	for _, view := range v.seen {
		d.Views = append(d.Views, view.View)
	}
	numbers := map[string][]uint16{}
	said := map[string][]string{}
	var order []string
	for p := range v.first() {
		var owners []string
		for _, view := range v.seen {
			one := view.Partitions[p]
			owners = append(owners, fmt.Sprintf("%s (token %d)", one.Owner, one.Token))
		}
		if len(slices.Compact(slices.Clone(owners))) == 1 {
			continue
		}
		d.Partitions++
		id := strings.Join(owners, "\x00")
		if said[id] == nil {
			order = append(order, id)
		}
		said[id], numbers[id] = owners, append(numbers[id], uint16(p))
	}
	for _, id := range order {
		d.Differences = append(d.Differences, difference{ranges(numbers[id]), said[id]})
	}
	return d
}

// first is the partitions of the first view: all have as many.
func (v views) first() []report.Partition {
	if len(v.seen) == 0 {
		return nil
	}
	return v.seen[0].Partitions
}

func differencesPage(p *page, d differences) {
	headings := []string{"PARTITIONS"}
	var names []string
	for _, v := range d.Views {
		names = append(names, v.Member)
		headings = append(headings, strings.ToUpper(v.Member)+" AT "+v.Epoch)
	}
	if len(d.Differences) == 0 && len(names) > 0 {
		p.line("%s agree on all partitions, at epoch %s", strings.Join(names, ", "), d.Views[0].Epoch)
	}
	if len(d.Differences) > 0 {
		var rows [][]string
		for _, one := range d.Differences {
			rows = append(rows, append([]string{one.Partitions}, one.Owners...))
		}
		p.table(headings, rows)
		p.alarm("\n%d partitions differ", d.Partitions)
	}
	for _, s := range d.Silent {
		p.alarm("no word of %s", s)
	}
}

func ringSimulateCommand() *cobra.Command {
	var change, from string
	cmd := asking(&cobra.Command{
		Use:   "simulate --members +2|-1|+NAME,-NAME|NAME,NAME",
		Short: "Show which partitions would move if members came or went",
		Long: `Show which partitions would move if members came or went, as a group would move them:
  --members +2                two members more, with names that nobody has
  --members -1                one less: the last one by name
  --members +new,-router-0    these two changes
  --members a,b,c             these and nobody else

A move is unavoidable if the old owner leaves or the new owner joins, and collateral if both
remain: the cost of the bound on each member's load (ring.load). The simulation starts from
the current table of the queried group or, with --from, from the table of a new group of these
names, without a query. The ring.* settings are read as for the router.`,
		Args: noArgs,
	}, func(cmd *cobra.Command, _ []string, a *asker, o *outputForm) error {
		settings, err := config.Read(config.Sources{File: a.file, Environ: os.Environ()})
		if err != nil {
			return usageError{err}
		}
		s := simulation{}
		var present []ring.Member
		if from != "" {
			s.Before = split(from)
			if present, err = placed(settings.Ring, s.Before); err != nil {
				return usageError{fmt.Errorf("--from: %w", err)}
			}
		} else {
			seen, err := partitionsOf(cmd.Context(), a, "")
			if err != nil {
				return fmt.Errorf("%w; to simulate without a group, use --from NAME,NAME", err)
			}
			for _, p := range seen.Partitions {
				present = append(present, ring.Member(p.Owner))
			}
			for _, one := range sharesOf(seen).Shares {
				s.Before = append(s.Before, one.Owner)
			}
		}
		if s.After, err = changed(s.Before, change); err != nil {
			return usageError{err}
		}
		s.Took = took(change, s.After)
		if err := s.run(settings.Ring, present); err != nil {
			return usageError{fmt.Errorf("--members: %w", err)}
		}
		return o.show(cmd.OutOrStdout(), s, func(p *page) { simulationPage(p, s) })
	})
	cmd.Flags().StringVar(&change, "members", "", "how the membership changes")
	cmd.Flags().StringVar(&from, "from", "", "comma-separated names of members to begin with (default: those of the group at --admin)")
	return cmd
}

func split(names string) []string {
	all := strings.Split(names, ",")
	for i, name := range all {
		all[i] = strings.TrimSpace(name)
	}
	return all
}

func membersOf(names []string) []ring.Member {
	all := make([]ring.Member, len(names))
	for i, name := range names {
		all[i] = ring.Member(name)
	}
	return all
}

// placed is the owner of each partition in a new group.
func placed(cfg ring.Config, names []string) ([]ring.Member, error) {
	r, err := ring.New(membersOf(names), cfg)
	if err != nil {
		return nil, err
	}
	owners := make([]ring.Member, ring.Partitions)
	for p := range owners {
		owners[p] = r.Owner(ring.Partition(p))
	}
	return owners, nil
}

// changed applies --members to names.
func changed(names []string, change string) ([]string, error) {
	after := slices.Clone(names)
	slices.Sort(after)
	if n, err := strconv.Atoi(change); err == nil && strings.ContainsAny(change[:1], "+-") {
		if n < 0 {
			if n <= -len(after) {
				return nil, fmt.Errorf("--members = %s, but there are only %d: one has to remain", change, len(after))
			}
			return after[:len(after)+n], nil
		}
		if n > ring.MembersMax {
			return nil, fmt.Errorf("--members = %s, want at most +%d", change, ring.MembersMax)
		}
		for i := 1; n > 0; i++ {
			if name := fmt.Sprintf("new-%d", i); !slices.Contains(after, name) {
				after, n = append(after, name), n-1
			}
		}
		return after, nil
	}
	if strings.Trim(change, " ,") == "" {
		return nil, errors.New("a change is missing: --members +2, -1, +NAME,-NAME, or NAME,NAME")
	}
	parts := split(change)
	signed := func(s string) bool { return strings.HasPrefix(s, "+") || strings.HasPrefix(s, "-") }
	if !slices.ContainsFunc(parts, signed) {
		return parts, nil
	}
	for _, part := range parts {
		i := -1
		if signed(part) {
			i = slices.Index(after, part[1:])
		}
		switch {
		case !signed(part):
			return nil, fmt.Errorf("--members: %q has no sign, but others have one: write +%s or -%s", part, part, part)
		case part[0] == '+' && i >= 0:
			return nil, fmt.Errorf("--members: %s is a member already", part[1:])
		case part[0] == '+':
			after = append(after, part[1:])
		case i < 0:
			return nil, fmt.Errorf("--members: %s is not a member; the members are %s", part[1:], strings.Join(after, ", "))
		default:
			after = slices.Delete(after, i, i+1)
		}
	}
	return after, nil
}

// simulation is a change of the membership, and the moves that it causes.
type simulation struct {
	Took        string          `json:"took"` // how --members was understood
	Before      []string        `json:"before"`
	After       []string        `json:"after"`
	Partitions  int             `json:"partitions"`
	Unavoidable int             `json:"unavoidable"`
	Collateral  int             `json:"collateral"`
	Members     []simulatedLoad `json:"members"`
}

// simulatedLoad is one member before and after.
type simulatedLoad struct {
	Name   string `json:"name"`
	Before int    `json:"before"`
	After  int    `json:"after"`
	Gains  int    `json:"gains"`
	Loses  int    `json:"loses"`
}

func (s *simulation) run(cfg ring.Config, present []ring.Member) error {
	moves, err := cfg.Next(present, membersOf(s.After))
	if err != nil {
		return err
	}
	s.Partitions = len(present)
	load := map[string]*simulatedLoad{}
	for _, name := range slices.Concat(s.Before, s.After) {
		load[name] = &simulatedLoad{Name: name}
	}
	for _, owner := range present {
		load[string(owner)].Before++
		load[string(owner)].After++
	}
	for _, m := range moves {
		if m.Kind == ring.Unavoidable {
			s.Unavoidable++
		} else {
			s.Collateral++
		}
		from, to := load[string(m.From)], load[string(m.To)]
		from.Loses, from.After = from.Loses+1, from.After-1
		to.Gains, to.After = to.Gains+1, to.After+1
	}
	for _, one := range load {
		s.Members = append(s.Members, *one)
	}
	slices.SortFunc(s.Members, func(a, b simulatedLoad) int { return strings.Compare(a.Name, b.Name) })
	return nil
}

// took says how --members was understood, for readers who meant something else.
func took(change string, after []string) string {
	if _, err := strconv.Atoi(change); err != nil || strings.ContainsAny(change[:1], "+-") {
		return fmt.Sprintf("--members %s as: the members then are %s", change, strings.Join(after, ", "))
	}
	return fmt.Sprintf("--members %[1]s as the name of the only member; write +%[1]s for %[1]s more members", change)
}

func simulationPage(p *page, s simulation) {
	p.line("took %s\n", s.Took)
	var rows [][]string
	for _, m := range s.Members {
		rows = append(rows, []string{m.Name, strconv.Itoa(m.Before), strconv.Itoa(m.After), "+" + strconv.Itoa(m.Gains), "-" + strconv.Itoa(m.Loses)})
	}
	p.table([]string{"MEMBER", "BEFORE", "AFTER", "GAINS", "LOSES"}, rows)
	moved := s.Unavoidable + s.Collateral
	p.line("\n%d of %d partitions would move (%.1f %%): %d unavoidable, %d collateral", moved, s.Partitions,
		float64(moved)/float64(s.Partitions)*100, s.Unavoidable, s.Collateral)
}
