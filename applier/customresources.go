package applier

import (
	"context"
	"fmt"
	"sync"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/dynamic"

	"github.com/keelson-io/keelson/applier/observe"
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

// customResourceReader finds out what CRDs would do to their custom resources, and remembers it.
type customResourceReader struct {
	client dynamic.Interface
	limits instanceLimits

	mu     sync.Mutex
	judged map[differ.ID]judgedCRD
}

func newCustomResourceReader(client dynamic.Interface) *customResourceReader {
	return &customResourceReader{client: client, limits: defaultInstanceLimits(), judged: map[differ.ID]judgedCRD{}}
}

// forget drops the findings about some CRDs.
func (c *customResourceReader) forget(ids ...differ.ID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, id := range ids {
		delete(c.judged, id)
	}
}

// reset drops all findings.
func (c *customResourceReader) reset() {
	c.mu.Lock()
	defer c.mu.Unlock()
	clear(c.judged)
}

// instances returns the findings about a CRD's custom resources, and whether they were remembered.
func (c *customResourceReader) instances(ctx context.Context, p *Prepared, i int, recall bool) (*differ.CustomResources, bool, error) {
	s := &p.states[i]
	judge, err := differ.JudgeOf(s, p.states)
	if err != nil {
		return nil, false, err
	}
	live := unstructured.Unstructured{Object: s.Live}
	of := fmt.Sprint(live.GetUID(), " ", live.GetGeneration(), " ", p.want.Target.Hash)
	c.mu.Lock()
	last := c.judged[s.ID]
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
		if err := c.judgeAll(ctx, judge, version); err != nil {
			return nil, false, err
		}
	}
	found := judge.Instances()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.judged[s.ID] = judgedCRD{of: of, instances: found}
	return found, false, nil
}

// stillRefused reads one refused object again: if it was repaired, others may be, too. A finding
// that none was refused stays valid.
func (c *customResourceReader) stillRefused(ctx context.Context, judge *differ.CRDJudge, last *differ.CustomResources) (bool, error) {
	if last.Refused == 0 {
		return true, nil
	}
	r := last.First[0]
	gvr := judge.Resource(r.Version)
	m := &meta.RESTMapping{Resource: gvr, Scope: meta.RESTScopeRoot}
	if r.Namespace != "" {
		m.Scope = meta.RESTScopeNamespace
	}
	o, err := observe.Get(ctx, c.client, m, differ.ID{Group: gvr.Group, Kind: gvr.Resource, Namespace: r.Namespace, Name: r.Name})
	if o == nil || err != nil {
		return false, err
	}
	err = judge.Look(ctx, r.Version, o)
	return judge.Instances().Refused > 0, err
}

// judgeAll passes all objects, in a version, to the judge, page by page.
func (c *customResourceReader) judgeAll(ctx context.Context, judge *differ.CRDJudge, version string) error {
	gvr, seen := judge.Resource(version), 0
	for next := ""; ; {
		page, err := c.client.Resource(gvr).List(ctx, metav1.ListOptions{Limit: c.limits.page, Continue: next})
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
