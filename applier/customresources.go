package applier

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/keelson-io/keelson/differ"
)

// instanceLimits bound how many custom resources of a CRD are read.
type instanceLimits struct {
	page int64 // objects of one request
	all  int   // objects of one version
}

func defaultInstanceLimits() instanceLimits { return instanceLimits{page: 250, all: 10_000} }

// judgedCRD holds the findings about a CRD's custom resources.
type judgedCRD struct {
	of        string // the CRD's state and the component's target
	instances *differ.CustomResources
}

// readCustomResources compares the CRDs again that can't be decided without their custom resources.
//
// Findings are reused while the CRD waits: a held component is planned again with every event, and
// may have many custom resources. But a change that is to be sent is decided by a fresh read.
func (c *Cluster) readCustomResources(ctx context.Context, p *Prepared) error {
	remembered := map[differ.ID]bool{}
	read := func(i int) error {
		s := &p.states[i]
		var err error
		s.CustomResources, remembered[s.ID], err = c.instances(ctx, p, i, !remembered[s.ID])
		if err != nil {
			return fmt.Errorf("%s: custom resources: %w", s.ID, err)
		}
		return nil
	}
	for {
		asked := false
		for i := range p.Plan.Changes {
			ch := &p.Plan.Changes[i]
			if ch.CustomResourcesUnread || remembered[ch.ID] && ch.Op != differ.OpNone {
				asked = true
				if err := read(i); err != nil {
					return err
				}
			}
		}
		if !asked {
			return nil
		}
		var err error
		if p.Plan, err = differ.Compare(ctx, p.schemas, p.states, p.policy); err != nil {
			return fmt.Errorf("compare: %w", err)
		}
	}
}

// instances returns the findings about a CRD's custom resources, and whether they were remembered.
func (c *Cluster) instances(ctx context.Context, p *Prepared, i int, recall bool) (*differ.CustomResources, bool, error) {
	s := &p.states[i]
	judge, err := differ.JudgeOf(s, p.states)
	if err != nil {
		return nil, false, err
	}
	live := unstructured.Unstructured{Object: s.Live}
	of := fmt.Sprint(live.GetUID(), " ", live.GetGeneration(), " ", p.want.Target.Hash)
	c.mu.Lock()
	last := c.judgedCustomResources[s.ID]
	c.mu.Unlock()
	if recall && last.instances != nil && last.of == of {
		if still, err := c.stillRefused(ctx, judge, last.instances); still || err != nil {
			return last.instances, true, err
		}
		if judge, err = differ.JudgeOf(s, p.states); err != nil { // the old judge has seen an object
			return nil, false, err
		}
	}
	for _, version := range judge.Versions() {
		if err := c.judgeCustomResources(ctx, judge, version); err != nil {
			return nil, false, err
		}
	}
	found := judge.Instances()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.judgedCustomResources[s.ID] = judgedCRD{of: of, instances: found}
	return found, false, nil
}

// stillRefused reads one refused object again: if it was repaired, others may be, too. A finding
// that none was refused stays valid.
func (c *Cluster) stillRefused(ctx context.Context, judge *differ.CRDJudge, last *differ.CustomResources) (bool, error) {
	if last.Refused == 0 {
		return true, nil
	}
	r := last.First[0]
	gvr := judge.Resource(r.Version)
	m := &meta.RESTMapping{Resource: gvr, Scope: meta.RESTScopeRoot}
	if r.Namespace != "" {
		m.Scope = meta.RESTScopeNamespace
	}
	o, err := Get(ctx, c.dynamic, m, differ.ID{Group: gvr.Group, Kind: gvr.Resource, Namespace: r.Namespace, Name: r.Name})
	if o == nil || err != nil {
		return false, err
	}
	err = judge.Look(ctx, r.Version, o)
	return judge.Instances().Refused > 0, err
}

// judgeCustomResources passes all objects, in a version, to the judge, page by page.
func (c *Cluster) judgeCustomResources(ctx context.Context, judge *differ.CRDJudge, version string) error {
	gvr, seen := judge.Resource(version), 0
	for next := ""; ; {
		page, err := c.dynamic.Resource(gvr).List(ctx, metav1.ListOptions{Limit: c.limits.page, Continue: next})
		if err != nil {
			return fmt.Errorf("list %s: %w", gvr, err)
		}
		for i := range page.Items {
			if err := judge.Look(ctx, version, page.Items[i].Object); err != nil {
				return err
			}
		}
		seen += max(1, len(page.Items)) // an endless sequence of empty pages ends, too
		switch next = page.GetContinue(); {
		case next == "":
			return nil
		case seen >= c.limits.all:
			judge.More()
			return nil
		}
	}
}
