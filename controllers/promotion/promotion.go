// Package promotion moves the versions of components on in the files of the fleet
// repository, by commits: the first stage of a pipeline follows the newest tags, each
// later one what has passed the stage before it.
//
// Git stays the only word about what runs. What is promoted next is decided by a function
// of values ([Decide]): the fleet, its tags, and how far it has come. A [Promoter] makes
// commits of that, on the branch or in pull requests of its own; a [Loop] does it again
// and again, in one process of a fleet.
package promotion

import (
	"fmt"
	"slices"
	"time"

	"github.com/keelson-io/keelson/api/v1alpha1"
	"github.com/keelson-io/keelson/registry"
)

// Facts are what is known of one component.
type Facts struct {
	Component string
	// Published versions in order, the latest last.
	Published []string
	// Refused says of published versions why they are not promoted anywhere. Only
	// versions that could be next for a stage are looked at ([Facts.Candidates]).
	Refused map[string]string
	// Halt is why nothing of it is promoted; empty: it may be.
	Halt string
	// Stages of its pipeline, in their order.
	Stages []StageFacts
}

// StageFacts are what is known of one component in one stage.
type StageFacts struct {
	Name string
	// Takes says which versions are in the range of the stage; nil: people promote.
	Takes func(version string) bool
	// Version that stands in git; empty: no cluster of the stage has the component, or it
	// has no place of its own.
	Version string
	// Stuck is why that can't be changed now; empty: it can.
	Stuck string
	// Passed is when the stage passed with that version, NotPassed why it has not.
	Passed    time.Time
	NotPassed string
}

// Step is what becomes of one component in one stage.
type Step struct {
	Component string `json:"component"`
	Stage     string `json:"stage"`
	// From is the version that stands there, and To the one that it is promoted to;
	// empty: it stays.
	From string `json:"from,omitempty"`
	To   string `json:"to,omitempty"`
	// Because says why To may follow, or why nothing later does: empty where there is
	// nothing later.
	Because string `json:"because,omitempty"`

	// By is how the commit gets to the branch, and At where the version stands.
	By v1alpha1.PromotionBy `json:"by,omitempty"`
	At *registry.Position   `json:"at,omitempty"`
	// Before and After are the line that changes.
	Before string `json:"before,omitempty"`
	After  string `json:"after,omitempty"`
	// Commit that was made, a full hash.
	Commit string `json:"commit,omitempty"`
	// PullRequest that it waits in, its URL, and Action what is done to that, or would be.
	PullRequest string `json:"pullRequest,omitempty"`
	Action      Action `json:"action,omitempty"`
}

// Decide says what happens next in each stage that promotes the component, in the order
// of the stages. The same facts give the same steps.
//
// A version is only ever replaced by a later one. The first stage takes the newest tag in
// its range that is not refused, each other one what stands in the stage before it, when
// that has passed with it: several stages may take a step at once, and none takes two.
func Decide(f Facts) []Step {
	var out []Step
	for i, stage := range f.Stages {
		if stage.Takes == nil {
			continue
		}
		step := Step{Component: f.Component, Stage: stage.Name, From: stage.Version}
		to, because, waits := f.next(i)
		switch {
		case stage.Stuck != "":
			step.Because = stage.Stuck
		case to == "":
			step.Because = waits
		case !registry.Later(to, stage.Version):
		case waits != "":
			step.Because = waits
		case f.Halt != "":
			step.Because = fmt.Sprintf("%s waits: %s", to, f.Halt)
		default:
			step.To, step.Because = to, because
		}
		out = append(out, step)
	}
	return out
}

// next is the version that a stage would have next, and why; or why none can be told, or
// may not be yet.
func (f *Facts) next(i int) (to, because, waits string) {
	stage := f.Stages[i]
	if i == 0 {
		return f.newest(f.Candidates(0))
	}
	before := f.Stages[i-1]
	switch {
	case before.Version == "":
		return "", "", fmt.Sprintf("nothing can pass stage %s: no version stands there", before.Name)
	case before.Version == v1alpha1.VersionHead:
		return "", "", fmt.Sprintf("stage %s follows the branch, and HEAD is no version", before.Name)
	case !stage.Takes(before.Version):
		return before.Version, "", fmt.Sprintf("%s is not in the range", before.Version)
	case f.Refused[before.Version] != "":
		return before.Version, "", fmt.Sprintf("%s %s", before.Version, f.Refused[before.Version])
	case before.NotPassed != "" || before.Passed.IsZero():
		return before.Version, "", fmt.Sprintf("%s has not passed stage %s: %s", before.Version, before.Name, before.NotPassed)
	}
	return before.Version, fmt.Sprintf("it passed stage %s at %s", before.Name, before.Passed.UTC().Format(time.RFC3339)), ""
}

// newest is the first version that is not refused, and why that one; or why there is none.
func (f *Facts) newest(candidates []string) (to, because, waits string) {
	latest := ""
	for _, version := range candidates {
		why := f.Refused[version]
		switch {
		case why == "" && latest == "":
			return version, "it is the newest tag in the range", ""
		case why == "":
			return version, fmt.Sprintf("it is the newest tag in the range that may be promoted; %s", latest), ""
		case latest == "":
			latest = version + " " + why
		}
	}
	return "", "", latest
}

// Candidates are the versions that a stage could have next, as far as tags and ranges say,
// the latest first.
func (f *Facts) Candidates(stage int) []string {
	s := f.Stages[stage]
	if s.Takes == nil {
		return nil
	}
	later := func(version string) bool { return s.Takes(version) && registry.Later(version, s.Version) }
	if stage > 0 {
		if before := f.Stages[stage-1].Version; later(before) {
			return []string{before}
		}
		return nil
	}
	var out []string
	for _, version := range slices.Backward(f.Published) {
		if later(version) {
			out = append(out, version)
		}
	}
	return out
}

// Outdated says why a version that was proposed for a stage once is not to be promoted
// there any more; empty: it may be, if not now. What is not known outdates nothing.
func (f *Facts) Outdated(stage, version string) string {
	i := slices.IndexFunc(f.Stages, func(s StageFacts) bool { return s.Name == stage })
	if i < 0 || f.Stages[i].Takes == nil {
		return "" // who asks knows that it is promoted, and how
	}
	s := f.Stages[i]
	switch {
	case s.Version != "" && !registry.Later(version, s.Version):
		return fmt.Sprintf("the stage has %s", s.Version)
	case !s.Takes(version):
		return fmt.Sprintf("%s is not in the range any more", version)
	case !slices.Contains(f.Published, version):
		return fmt.Sprintf("%s has no tag any more", version)
	case i > 0 && registry.Later(version, f.Stages[i-1].Version):
		return fmt.Sprintf("stage %s went back to %s", f.Stages[i-1].Name, f.Stages[i-1].Version)
	}
	return ""
}
