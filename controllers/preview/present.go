package preview

import (
	"fmt"
	"slices"
	"strings"

	"github.com/keelson-io/keelson/differ"
)

// Bounds of a Markdown report. Forges take comments of 64 KiB.
const (
	markdownSize     = 60_000 // bytes of the whole
	markdownItems    = 30     // problems, components that leave, and groups that are only named
	markdownWays     = 6_000  // bytes of the rollouts
	markdownNames    = 10_000 // bytes of all names of clusters
	markdownUrgent   = 15_000 // bytes of what is held or denied
	markdownWarnings = 10_000 // bytes of what danger rules warn of
	markdownGroup    = 400    // bytes of a group's heading
	namesWithoutRoom = 3      // clusters that are named even without room
	namesUnfolded    = 10     // clusters that are shown without folding
)

// Title names a group: "coredns v1.0.0 → v1.1.0".
func (g *Group) Title() string {
	title := g.Component + " "
	switch {
	case g.From == "" && g.To == "":
		title += "→ absent"
	case g.From == g.To:
		title += g.To
	case g.From == "":
		title += g.To + " (new)"
	case g.To == "":
		title += g.From + " → absent"
	default:
		title += g.From + " → " + g.To
	}
	if g.Paused {
		title += " (paused)"
	}
	return title
}

// Summary counts a group's changes on one cluster, and the restarts on all.
func (g *Group) Summary() string {
	if g.Unknown != "" {
		return "the changes are unknown"
	}
	parts := []string{g.Plan.Summary()}
	if !g.Plan.Differs() {
		parts[0] = "the same objects"
	}
	if text := g.Restarts.String(); text != "" {
		parts = append(parts, text)
	}
	if n := len(g.Hooks); n > 0 {
		parts = append(parts, plural(n, "hook runs", "hooks run"))
	}
	return strings.Join(parts, "; ")
}

// String is empty when nothing restarts.
func (r Restarts) String() string {
	var parts []string
	if r.Pods > 0 {
		parts = append(parts, plural(r.Pods, "pod", "pods"))
	}
	if r.DaemonSets > 0 {
		parts = append(parts, map[bool]string{true: "those of ", false: "the pods of "}[r.Pods > 0]+plural(r.DaemonSets, "DaemonSet", "DaemonSets"))
	}
	switch {
	case len(parts) == 0:
		return ""
	case r.Pods == 1 && r.DaemonSets == 0:
		return "1 pod restarts"
	}
	return strings.Join(parts, " and ") + " restart"
}

// Summary counts everything, on all clusters together.
func (p *Preview) Summary() string {
	if !p.Changes() {
		return "nothing changes"
	}
	if len(p.Groups) == 0 {
		return "no object changes, but " + plural(len(p.Policy), "policy does", "policies do")
	}
	components := map[string]bool{}
	for i := range p.Groups {
		components[p.Groups[i].Component] = true
	}
	verb := "change"
	if len(components) == 1 {
		verb = "changes"
	}
	text := fmt.Sprintf("%s %s on %s", plural(len(components), "component", "components"), verb, plural(p.Clusters, "cluster", "clusters"))
	var parts []string
	for _, c := range []struct {
		op   differ.Op
		what string
	}{{differ.OpCreate, "created"}, {differ.OpUpdate, "updated"}, {differ.OpReplace, "replaced"}, {differ.OpDelete, "deleted"}} {
		if n := p.Count(c.op); n > 0 {
			parts = append(parts, plural(n, "object", "objects")+" "+c.what)
		}
	}
	if restarts := p.Restarts().String(); restarts != "" {
		parts = append(parts, restarts)
	}
	if n := p.CountState(differ.StateDenied); n > 0 {
		parts = append(parts, plural(n, "object", "objects")+" denied")
	}
	if n := p.CountState(differ.StateHeld); n > 0 {
		parts = append(parts, plural(n, "object", "objects")+" held")
	}
	if n := p.Warnings(); n > 0 {
		parts = append(parts, plural(n, "warning", "warnings"))
	}
	if len(parts) > 0 {
		text += ": " + strings.Join(parts, ", ")
	}
	if n := len(p.Policy); n > 0 {
		text += "; " + plural(n, "policy changes", "policies change")
	}
	return text
}

// On says where a group changes something: "297 clusters: a, b, … and 294 more".
func (g *Group) On(room int) string {
	return plural(len(g.Clusters), "cluster", "clusters") + ": " + names(g.Clusters, room, func(s string) string { return s })
}

// names lists as many names as fit into room bytes, and counts the rest.
func names(list []string, room int, show func(string) string) string {
	var b strings.Builder
	for i, name := range list {
		text := show(name)
		if i >= namesWithoutRoom && b.Len()+len(text) > room {
			fmt.Fprintf(&b, " and %d more", len(list)-i)
			break
		}
		if i > 0 {
			b.WriteString(", ")
		}
		b.WriteString(text)
	}
	return b.String()
}

func plural(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}

// Markdown returns the preview as a comment for a pull request, at most 64 KiB. Problems, and held
// and denied changes come first, then each group with its clusters and diff. A cut part says how
// much is missing. Text from a repository is in code spans and fenced blocks, which it can't end.
func (p *Preview) Markdown() string {
	m := markdown{}
	m.printf("**%s**\n\n", p.Summary())
	m.printf("From %s to %s, in %s. No cluster was asked.\n",
		differ.MarkdownCode(short(p.Base)), differ.MarkdownCode(short(p.Head)), plural(len(p.Groups), "group", "groups"))
	m.problems(p)
	m.policy(p)
	m.urgent(p)
	m.warnings(p)
	m.membership(p)
	m.estimate(p.Estimate)
	m.groups(p)
	return m.b.String()
}

func short(revision string) string { return fmt.Sprintf("%.12s", revision) }

type markdown struct{ b strings.Builder }

// printf writes our own text; text from elsewhere goes through MarkdownCode.
func (m *markdown) printf(format string, args ...any) { fmt.Fprintf(&m.b, format, args...) }

func (m *markdown) problems(p *Preview) {
	var blocked, refused []Problem
	for _, one := range p.Problems {
		if one.Refused {
			refused = append(refused, one)
		} else {
			blocked = append(blocked, one)
		}
	}
	m.problemList("Blocked: nothing of this changes", blocked)
	m.problemList("Refused: an API server does not take this", refused)
}

// problemList shows new problems first.
func (m *markdown) problemList(title string, all []Problem) {
	if len(all) == 0 {
		return
	}
	m.printf("\n### %s\n\n", title)
	slices.SortStableFunc(all, func(a, b Problem) int {
		switch {
		case a.Before == b.Before:
			return 0
		case b.Before:
			return -1
		}
		return 1
	})
	for _, one := range all[:min(len(all), markdownItems)] {
		m.printf("- %s", differ.MarkdownCode(cut(one.Error())))
		if len(one.Clusters) > 0 {
			m.printf(" on %s: %s", plural(len(one.Clusters), "cluster", "clusters"), names(one.Clusters, markdownGroup, differ.MarkdownCode))
		}
		if one.Before {
			m.printf(" (as before)")
		}
		m.printf("\n")
	}
	if more := len(all) - markdownItems; more > 0 {
		m.printf("- and %d more\n", more)
	}
}

// cut shortens a text that may be of any length.
func cut(s string) string {
	const most = 500
	if len(s) <= most {
		return s
	}
	return strings.ToValidUTF8(s[:most], "") + fmt.Sprintf("… (%d bytes more)", len(s)-most)
}

// urgent lists changes that are not applied as git says.
func (m *markdown) urgent(p *Preview) {
	m.ofEach(p, "Held, denied, kept or not known", markdownUrgent, func(g *Group) string {
		if g.Unknown != "" {
			return "- " + differ.MarkdownCode(cut(g.Unknown)) + "\n"
		}
		return g.Plan.MarkdownAttention()
	})
}

// warnings lists changes that are applied, with the warnings of danger rules.
func (m *markdown) warnings(p *Preview) {
	m.ofEach(p, "Warnings: applied all the same", markdownWarnings, func(g *Group) string { return g.Plan.MarkdownWarnings() })
}

// ofEach writes a section with a part for each group that has one, in about room bytes.
func (m *markdown) ofEach(p *Preview, title string, room int, part func(*Group) string) {
	type entry struct {
		title, text string
		unknown     bool
		clusters    []string
	}
	var entries []entry // one for all groups with the same text
	for i := range p.Groups {
		g := &p.Groups[i]
		one := entry{title: g.Title(), text: part(g), unknown: g.Unknown != ""}
		if one.text == "" {
			continue
		}
		at := slices.IndexFunc(entries, func(e entry) bool { return e.title == one.title && e.text == one.text })
		if at < 0 {
			at = len(entries)
			entries = append(entries, one)
		}
		entries[at].clusters = append(entries[at].clusters, g.Clusters...)
	}
	begin, more := m.b.Len(), 0
	for i, e := range entries {
		if i == 0 {
			m.printf("\n### %s\n", title)
		}
		left := room - (m.b.Len() - begin)
		if left <= 0 && !e.unknown {
			more++
			continue
		}
		m.printf("\n%s on %s: %s\n\n%s", differ.MarkdownCode(e.title), plural(len(e.clusters), "cluster", "clusters"),
			names(e.clusters, markdownGroup, differ.MarkdownCode), cutLines(e.text, max(left, markdownGroup)))
	}
	if more > 0 {
		m.printf("\nand more in %s\n", plural(more, "group", "groups"))
	}
}

// cutLines keeps the lines of a list that fit into room bytes, and counts the rest. Lines of the
// top level come first, so that the objects of one rule hide no other rule. The first line always
// stays.
func cutLines(text string, room int) string {
	if len(text) <= room {
		return text
	}
	lines := slices.Collect(strings.Lines(text))
	keep, size := make([]bool, len(lines)), 0
	for _, nested := range []bool{false, true} {
		for i, line := range lines {
			if strings.HasPrefix(line, " ") == nested && (size == 0 || size+len(line) <= room) {
				keep[i] = true
				size += len(line)
			}
		}
	}
	var b strings.Builder
	left := 0
	for i, line := range lines {
		if keep[i] {
			b.WriteString(line)
		} else {
			left++
		}
	}
	fmt.Fprintf(&b, "- and %s more\n", plural(left, "line", "lines"))
	return b.String()
}

// policy lists the changes of rules about changes.
func (m *markdown) policy(p *Preview) {
	if len(p.Policy) == 0 {
		return
	}
	m.printf("\n### What this allows or blocks from now on\n\n")
	byArea := map[Area][]string{}
	for i := range p.Policy {
		one := &p.Policy[i]
		byArea[one.About] = append(byArea[one.About], cut(one.Text(markdownGroup)))
	}
	shown := shares(byArea, markdownItems)
	for _, area := range areas() {
		for _, text := range byArea[area][:shown[area]] {
			m.printf("- %s\n", differ.MarkdownCode(text))
		}
		if more := len(byArea[area]) - shown[area]; more > 0 {
			m.printf("- and %d more about %s\n", more, area)
		}
	}
}

// shares returns how many lines of each area are shown if a number of lines is shown in all. The
// areas take one line after another in turns, so that each has some.
func shares(lines map[Area][]string, room int) map[Area]int {
	out := map[Area]int{}
	for took := true; took; {
		took = false
		for _, area := range areas() {
			if room > 0 && out[area] < len(lines[area]) {
				out[area]++
				room--
				took = true
			}
		}
	}
	return out
}

// membership lists the components and clusters that come or go.
func (m *markdown) membership(p *Preview) {
	var lines []string
	for _, l := range p.Left {
		lines = append(lines, fmt.Sprintf("%s leaves git on %s, where its objects stay: %s", differ.MarkdownCode(l.Component),
			plural(len(l.Clusters), "cluster", "clusters"), names(l.Clusters, markdownGroup, differ.MarkdownCode)))
	}
	if len(p.Joined) > 0 {
		lines = append(lines, plural(len(p.Joined), "cluster is", "clusters are")+" new: "+names(p.Joined, markdownGroup, differ.MarkdownCode))
	}
	if len(p.Gone) > 0 {
		lines = append(lines, plural(len(p.Gone), "cluster leaves", "clusters leave")+" git, and nothing there is touched: "+
			names(p.Gone, markdownGroup, differ.MarkdownCode))
	}
	if len(lines) == 0 {
		return
	}
	m.printf("\n### Comes and goes\n\n")
	for i, line := range lines {
		if i == markdownItems {
			m.printf("- and %d more\n", len(lines)-i)
			return
		}
		m.printf("- %s\n", line)
	}
}

// estimate lists when each stage gets the changes.
func (m *markdown) estimate(e *Estimate) {
	if e == nil || len(e.Rollouts) == 0 {
		return
	}
	m.printf("\n### When clusters get the changes\n\n%s:\n\n", e.Assumed())
	begin := m.b.Len()
	for i := range e.Rollouts {
		r := &e.Rollouts[i]
		if m.b.Len()-begin > markdownWays {
			m.printf("- and %d more\n", len(e.Rollouts)-i)
			return
		}
		m.printf("- %s: %s\n", differ.MarkdownCode(r.Title()), differ.MarkdownCode(cut(r.Ending())))
		for j := range r.Stages {
			if m.b.Len()-begin > markdownWays {
				m.printf("  - and %s more\n", plural(len(r.Stages)-j, "stage", "stages"))
				break
			}
			m.printf("  - %s\n", differ.MarkdownCode(cut(r.Stages[j].String())))
		}
	}
}

// groups gives each group the same share of the remaining room.
func (m *markdown) groups(p *Preview) {
	named := 0
	for i := range p.Groups {
		g := &p.Groups[i]
		share := (markdownSize - m.b.Len()) / (len(p.Groups) - i)
		if left := markdownSize - m.b.Len(); left > markdownSize/4 && share < left/8 {
			share = left / 8 // some whole groups, rather than a line of each
		}
		if named > 0 || share < 2*markdownGroup {
			if named++; named == 1 {
				m.printf("\n### Without their diffs, for want of room\n\n")
			}
			if named <= markdownItems {
				m.printf("- %s on %s: %s\n", differ.MarkdownCode(g.Title()), plural(len(g.Clusters), "cluster", "clusters"), g.Summary())
			}
			continue
		}
		room := min(share/4, max(markdownGroup, markdownNames/len(p.Groups)))
		m.printf("\n### %s on %s\n\n%s\n\n", differ.MarkdownCode(g.Title()), plural(len(g.Clusters), "cluster", "clusters"), g.Summary())
		m.clusters(g.Clusters, room)
		m.b.WriteString(g.Plan.MarkdownObjects(share-room-markdownGroup, 4))
	}
	if more := named - markdownItems; more > 0 {
		m.printf("- and %s more\n", plural(more, "group", "groups"))
	}
}

// clusters names the clusters of a group. A long list is folded, so that the changes stay in sight.
func (m *markdown) clusters(list []string, room int) {
	text := names(list, room, differ.MarkdownCode)
	if len(list) > namesUnfolded {
		text = fmt.Sprintf("<details><summary>the %d clusters</summary>\n\n%s\n\n</details>", len(list), text)
	}
	m.printf("%s\n", text)
}
