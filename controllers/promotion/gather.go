package promotion

import (
	"fmt"
	"strings"
	"time"

	"github.com/keelson-io/keelson/api/v1alpha1"
	"github.com/keelson-io/keelson/controllers/rollout"
	"github.com/keelson-io/keelson/registry"
	"github.com/keelson-io/keelson/registry/yamlfile"
)

// Gather combines what git says of a component with its progress.
func Gather(f *registry.Fleet, component string, stand rollout.Progress, now time.Time) (Facts, error) {
	out := Facts{Component: component, Published: f.Published(component), Halt: stand.Halt}
	stages, err := rollout.Stages(f, component)
	if err != nil {
		return out, err
	}
	for i, s := range f.PipelineOf(component).Stages {
		place := f.PlaceOf(component, s)
		facts := StageFacts{
			Name: s.Spec.Name, Stuck: stuck(f, component, place, stages[i].Clusters, now),
			Passed: stand.Passed[s.Spec.Name], NotPassed: stand.NotPassed[s.Spec.Name],
		}
		if place.Wrong == nil {
			facts.Version = place.Version
		}
		if s.Promotes(component) {
			facts.Takes = func(version string) bool { return s.Takes(component, version) }
		}
		out.Stages = append(out.Stages, facts)
	}
	return out, nil
}

// stuck returns why the version of a stage can't be changed now; empty: it can.
func stuck(f *registry.Fleet, component string, place registry.Place, clusters []string, now time.Time) string {
	switch {
	case place.At == yamlfile.Position{}:
		return "no cluster of the stage has it"
	case place.Wrong != nil:
		return place.Wrong.Error()
	case place.Version == v1alpha1.VersionHead:
		return fmt.Sprintf("%s: it follows the branch, and HEAD is no version", place.At)
	}
	for _, c := range f.Clusters {
		if c.Unread {
			return fmt.Sprintf("cluster %s can't be read, and may be of any stage: keelson validate", c.Name)
		}
	}
	for _, name := range clusters {
		c := f.Cluster(name)
		d := c.Delivery(component)
		if c.Blocked() != nil || d == nil || d.Blocked() != nil {
			return fmt.Sprintf("its files for cluster %s in git have problems: run keelson validate", name)
		}
		if reason, _ := f.Frozen(c, component, now); reason != "" {
			return "frozen on " + name + ": " + strings.TrimSpace(reason)
		}
	}
	return ""
}
