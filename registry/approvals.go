package registry

import (
	"context"
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/labels"

	"github.com/keelson-io/keelson/api/v1alpha1"
	"github.com/keelson-io/keelson/registry/naming"
	"github.com/keelson-io/keelson/registry/yamlfile"
)

// Approval is a line of a file in approvals/, with the position that reports name.
type Approval struct {
	v1alpha1.Approval
	At yamlfile.Position
}

// approval is one approval, with the path of its file.
type approval struct {
	*approvalEntry
	file string
}

// approvalList are the approvals of all files that have no mistakes.
type approvalList []approval

// readApprovals reads approvals/. A line with mistakes approves nothing and blocks nothing: a held
// change stays held.
func (l *loader) readApprovals(ctx context.Context) error {
	files, unread, err := topFolder[approvalsFile]{name: "approvals", kind: v1alpha1.KindApprovals, decode: decodeApprovals}.read(ctx, l.files)
	if err != nil {
		return err
	}
	l.report(unread...)
	for _, f := range files {
		l.report(f.problems...)
		if f.content == nil {
			continue
		}
		for i := range f.content.approvals {
			l.approvals = append(l.approvals, approval{&f.content.approvals[i], f.Path})
		}
	}
	return nil
}

// on returns the approvals for a cluster.
func (as approvalList) on(c *Cluster) []approval {
	var out []approval
	for _, a := range as {
		if a.on(c) {
			out = append(out, a)
		}
	}
	return out
}

// StageApproval returns the line that approves a component's change, named by its hash, in a stage.
// It returns nil if there is none.
func (f *Fleet) StageApproval(component, stage, hash string) *v1alpha1.Approval {
	for i := range f.stageApprovals {
		if a := &f.stageApprovals[i]; a.Component == component && a.Stage == stage && a.Hash == hash {
			return a
		}
	}
	return nil
}

// check returns the approvals of stages, and reports approvals for clusters, components and stages
// that don't exist.
func (as approvalList) check(f *Fleet) (ofStages []v1alpha1.Approval, problems yamlfile.Problems) {
	names := make([]string, 0, len(f.Clusters)) // in order
	for _, c := range f.Clusters {
		names = append(names, c.Name)
	}
	for i := range as {
		a := &as[i]
		var problem *yamlfile.Problem
		_, there := slices.BinarySearch(names, a.spec.Cluster)
		switch {
		case a.spec.Stage != "":
			ofStages = append(ofStages, a.spec)
			problem = a.checkStage(f)
		case a.selector == nil && !there:
			problem = &yamlfile.Problem{
				At:      a.at.In(a.file, ""),
				Message: fmt.Sprintf("there is no cluster %q, so this approves nothing", a.spec.Cluster),
				Hint:    naming.Suggest(a.spec.Cluster, names),
			}
		default:
			problem = a.checkComponent(f)
		}
		if problem != nil {
			problems = append(problems, *problem)
		}
	}
	return ofStages, problems
}

// checkComponent reports an approval for a component that none of its clusters has.
func (a *approval) checkComponent(f *Fleet) *yamlfile.Problem {
	var names []string
	matched := false
	for _, c := range f.Clusters {
		if !a.on(c) {
			continue
		}
		matched = true
		if c.Delivery(a.spec.Component) != nil || len(c.Problems) > 0 {
			return nil
		}
		for _, d := range c.Deliveries {
			names = append(names, d.Component)
		}
	}
	where := "cluster " + a.spec.Cluster + " has"
	if a.selector != nil {
		where = "the clusters of its selector have"
	}
	message := fmt.Sprintf("%s no component %q, so this approves nothing", where, a.spec.Component)
	if !matched {
		message = "its selector matches no cluster, so this approves nothing"
	}
	slices.Sort(names)
	return &yamlfile.Problem{
		At:      a.at.In(a.file, ""),
		Message: message,
		Hint:    naming.Suggest(a.spec.Component, slices.Compact(names)),
	}
}

// on reports whether the approval is for a cluster.
func (a *approval) on(c *Cluster) bool {
	if a.selector != nil {
		return a.selector.Matches(labels.Set(c.Spec.Labels))
	}
	return a.spec.Cluster == c.Name
}

// checkStage reports an approval of a stage that the pipeline of its component does not have.
func (a *approval) checkStage(f *Fleet) *yamlfile.Problem {
	p := f.PipelineOf(a.spec.Component)
	if p != nil && len(p.Problems) > 0 {
		return nil
	}
	problem := yamlfile.Problem{At: a.at.In(a.file, ""), Message: a.spec.Component + " goes through no pipeline, so this approves nothing"}
	if p != nil {
		var names []string
		for _, s := range p.Stages {
			names = append(names, s.Spec.Name)
		}
		if slices.Contains(names, a.spec.Stage) {
			return nil
		}
		problem.Message = fmt.Sprintf("pipeline %s, by which %s goes, has no stage %q, so this approves nothing", p.Name, a.spec.Component, a.spec.Stage)
		problem.Hint = naming.Suggest(a.spec.Stage, names)
	}
	return &problem
}

// StageApprovals returns the approvals of changes in a pipeline, in the order of their files.
func (f *Fleet) StageApprovals() []v1alpha1.Approval { return f.stageApprovals }
