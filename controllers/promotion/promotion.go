// Package promotion moves versions of components forward in the files of the fleet repository, by
// commits. The first stage of a pipeline follows the newest tags. Each later stage follows the
// versions that have passed the stage before it.
//
// Git alone decides what runs. A function of values ([Decide]) chooses the next promotions from the
// fleet, its tags, and its progress. A [Promoter] turns them into commits, on the branch or in its
// own pull requests. A [Loop] repeats this in one process of a fleet.
package promotion

import (
	"fmt"
	"slices"
	"time"

	"github.com/keelson-io/keelson/api/v1alpha1"
	"github.com/keelson-io/keelson/registry"
	"github.com/keelson-io/keelson/registry/yamlfile"
)

// Facts are what is known of one component.
type Facts struct {
	Component string
	// Published versions in order, the latest last.
	Published []string
	// Refused says why a published version is promoted nowhere, by version. Only versions that
	// could be next for a stage are checked ([Facts.Candidates]).
	Refused map[string]string
	// Halt is why nothing of the component is promoted; empty: it may be.
	Halt string
	// Stages of its pipeline, in their order.
	Stages []StageFacts
}

// StageFacts are what is known of one component in one stage.
type StageFacts struct {
	Name string
	// Takes reports whether a version is in the range of the stage; nil: people promote.
	Takes func(version string) bool
	// Version in git; empty: no cluster of the stage has the component, or it has no place of its
	// own.
	Version string
	// Stuck is why the version can't be changed now; empty: it can.
	Stuck string
	// Passed is when the stage passed with Version; NotPassed is why it has not.
	Passed    time.Time
	NotPassed string
}

// Step is the decision for one component in one stage.
type Step struct {
	Component string `json:"component"`
	Stage     string `json:"stage"`
	// From is the version in git, and To the version that replaces it; empty: From stays.
	From string `json:"from,omitempty"`
	To   string `json:"to,omitempty"`
	// Because says why To is promoted, or why no later version is; empty: there is no later
	// version.
	Because string `json:"because,omitempty"`

	// By is how the commit gets to the branch. At is the place of the version in git.
	By v1alpha1.PromotionBy `json:"by,omitempty"`
	At *yamlfile.Position   `json:"at,omitempty"`
	// Before and After are the line that changes.
	Before string `json:"before,omitempty"`
	After  string `json:"after,omitempty"`
	// Commit that was made, a full hash.
	Commit string `json:"commit,omitempty"`
	// PullRequest is the URL of the pull request in which the step waits. Action is what is done to
	// it, or would be.
	PullRequest string `json:"pullRequest,omitempty"`
	Action      Action `json:"action,omitempty"`
}

// Decide returns the next step of each stage that promotes the component, in the order of the
// stages. The same facts give the same steps.
//
// A version is only replaced by a later one. The first stage takes the newest tag in its range that
// is not refused. Every later stage takes the version of the stage before it, once that stage has
// passed with it. Several stages may take a step at once; no stage takes two.
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

// next returns the version that a stage would take next, and why. waits is why there is none, or
// why it must not follow yet.
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

// newest returns the first version that is not refused, and why; or why there is none.
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

// Candidates are the versions that a stage could take next, by tags and ranges, the latest first.
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

// Outdated returns why a version that was once proposed for a stage must no longer be promoted
// there; empty: it may be, if not now. Unknown facts outdate nothing.
func (f *Facts) Outdated(stage, version string) string {
	i := slices.IndexFunc(f.Stages, func(s StageFacts) bool { return s.Name == stage })
	if i < 0 || f.Stages[i].Takes == nil {
		return "" // the caller handles stages that don't promote
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
