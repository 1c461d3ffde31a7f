package registry

import (
	"context"
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/labels"

	"github.com/keelson-io/keelson/api/v1alpha1"
)

// approval is one approval and where its cluster is named.
type approval struct {
	*approvalEntry
	file string
}

// readApprovals reads approvals/. What is wrong there approves nothing, and
// blocks nothing either: a change that is held stays held.
func (l *loader) readApprovals(ctx context.Context) error {
	files, unread, err := topFolder[approvalsFile]{name: "approvals", kind: v1alpha1.KindApprovals, decode: decodeApprovals}.read(ctx, l)
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
			l.approvals = append(l.approvals, approval{&f.content.approvals[i], f.path})
		}
	}
	return nil
}

// approvalsFor are those on a cluster.
func (l *loader) approvalsFor(c *Cluster) []*approvalEntry {
	var out []*approvalEntry
	for i := range l.approvals {
		a := l.approvals[i].approvalEntry
		here := a.spec.Cluster == c.Name
		if a.selector != nil {
			here = a.selector.Matches(labels.Set(c.Spec.Labels))
		}
		if here {
			out = append(out, a)
		}
	}
	return out
}

// StageApproval is the line that lets a change of a component, by its hash, through
// the approval checks of a stage; nil: there is none.
func (f *Fleet) StageApproval(component, stage, hash string) *v1alpha1.Approval {
	for i := range f.stageApprovals {
		if a := &f.stageApprovals[i]; a.Component == component && a.Stage == stage && a.Hash == hash {
			return a
		}
	}
	return nil
}

// checkApprovals reports approvals for clusters and stages that don't exist.
func (l *loader) checkApprovals() {
	names := make([]string, 0, len(l.fleet.Clusters)) // in order
	for _, c := range l.fleet.Clusters {
		names = append(names, c.Name)
	}
	for i := range l.approvals {
		a := &l.approvals[i]
		if a.spec.Stage != "" {
			l.fleet.stageApprovals = append(l.fleet.stageApprovals, a.spec)
			l.checkStageApproval(a)
			continue
		}
		if _, there := slices.BinarySearch(names, a.spec.Cluster); a.selector == nil && !there {
			l.report(Problem{
				At:      a.at.in(a.file, ""),
				Message: fmt.Sprintf("there is no cluster %q, so this approves nothing", a.spec.Cluster),
				Hint:    Suggest(a.spec.Cluster, names),
			})
		}
	}
}

func (l *loader) checkStageApproval(a *approval) {
	p := l.fleet.PipelineOf(a.spec.Component)
	if p != nil && len(p.Problems) > 0 {
		return
	}
	problem := Problem{At: a.at.in(a.file, ""), Message: a.spec.Component + " goes through no pipeline, so this approves nothing"}
	if p != nil {
		var names []string
		for _, s := range p.Stages {
			names = append(names, s.Spec.Name)
		}
		if slices.Contains(names, a.spec.Stage) {
			return
		}
		problem.Message = fmt.Sprintf("pipeline %s, by which %s goes, has no stage %q, so this approves nothing", p.Name, a.spec.Component, a.spec.Stage)
		problem.Hint = Suggest(a.spec.Stage, names)
	}
	l.report(problem)
}

// StageApprovals are the approvals of changes on their way, in the order of their files.
func (f *Fleet) StageApprovals() []v1alpha1.Approval { return f.stageApprovals }
