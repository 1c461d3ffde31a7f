package rollout

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/keelson-io/keelson/api/v1alpha1"
	"github.com/keelson-io/keelson/registry"
)

// Progress is the progress of a component towards its targets in git. It is the evidence for a next
// step.
type Progress struct {
	// Halt is why nothing more may begin; empty: no cluster with known facts is on its way.
	Halt string
	// Passed is when each stage passed with its current targets in git, by name.
	Passed map[string]time.Time
	// NotPassed is the reason for each of the other stages, by name.
	NotPassed map[string]string
}

// ProgressOf returns the progress of a component with a pipeline, from its Rollout (nil: there is
// none) and its Deliveries in the hub. It fails if the pipeline is broken.
//
// Reports about another revision or another hash are no evidence. A stage that passed without its
// bake is no evidence either: a person promoted it, it took a change back, or it had nothing to do.
func ProgressOf(f *registry.Fleet, component string, r *v1alpha1.Rollout, deliveries []v1alpha1.Delivery) (Progress, error) {
	seen := map[string]*observation{}
	for i := range deliveries {
		if d := &deliveries[i]; d.Labels[v1alpha1.LabelComponent] == component {
			seen[d.Labels[v1alpha1.LabelCluster]] = observationOf(d)
		}
	}
	if r != nil && !isOf(r, f) {
		r = nil
	}
	return progressOf(f, component, r, seen)
}

// Progress is [ProgressOf] with the state that the loop has cached. The error is [ErrUnknown] until the
// hub was read.
func (l *Loop) Progress(f *registry.Fleet, component string) (Progress, error) {
	r, err := l.rollouts.Of(f, component)
	if err != nil {
		return Progress{}, err
	}
	seen, known := l.observations.at(component)
	if !known {
		return Progress{}, ErrUnknown
	}
	return progressOf(f, component, r, seen)
}

func progressOf(f *registry.Fleet, component string, r *v1alpha1.Rollout, seen map[string]*observation) (Progress, error) {
	stages, err := Stages(f, component)
	if err != nil {
		return Progress{}, err
	}
	clusters := map[string]known{}
	for _, stage := range stages {
		for _, name := range stage.Clusters {
			cluster := f.Cluster(name)
			d := cluster.Delivery(component)
			if d == nil || d.Version == nil {
				clusters[name] = known{why: "its files in git have problems: run keelson validate"}
				continue
			}
			inputs, err := InputsOf(cluster, d)
			if err != nil {
				return Progress{}, err
			}
			clusters[name] = knownOf(cluster, d, inputs, seen[name])
		}
	}
	var status v1alpha1.RolloutStatus
	if r != nil {
		status = r.Status
	}
	return progress(stages, f.PipelineOf(component).Name, status, clusters), nil
}

// progress computes the progress. A zero status means that there is no Rollout.
func progress(stages []Stage, pipeline string, s v1alpha1.RolloutStatus, clusters map[string]known) Progress {
	out := Progress{Halt: halt(stages, s, clusters), Passed: map[string]time.Time{}, NotPassed: map[string]string{}}
	entries := map[string]v1alpha1.RolloutCluster{}
	for _, c := range s.Clusters {
		entries[c.Name] = c
	}
	before := ""
	for _, stage := range stages {
		i := slices.IndexFunc(s.Stages, func(is v1alpha1.RolloutStage) bool { return is.Name == stage.Name })
		why := ""
		switch {
		case s.Change == "":
			why = "no change of it has gone through the pipeline yet"
		case s.Pipeline != pipeline || i < 0:
			why = "its rollout went by another pipeline"
		case before != "":
			why = "stage " + before + " has not passed"
		default:
			why = unproved(stage, s.Back, s.Stages[i], entries, clusters)
		}
		if why != "" {
			before = cmp.Or(before, stage.Name)
			out.NotPassed[stage.Name] = why
			continue
		}
		out.Passed[stage.Name] = s.Stages[i].Passed.Time
	}
	return out
}

// halt returns why nothing more may begin; empty: something may.
func halt(stages []Stage, s v1alpha1.RolloutStatus, clusters map[string]known) string {
	switch {
	case s.Paused != "":
		return "it is " + s.Paused
	case s.Phase == v1alpha1.RolloutPaused, s.Phase == v1alpha1.RolloutRollingBack, s.Phase == v1alpha1.RolloutRolledBack:
		return fmt.Sprintf("its rollout is %s: %s", s.Phase, s.Because)
	case s.Change != "" && s.Phase != v1alpha1.RolloutComplete:
		return fmt.Sprintf("%s is rolling out, in stage %s", s.To, s.Stage)
	}
	for _, stage := range stages {
		for _, name := range stage.Clusters {
			if k := clusters[name]; k.want != "" && k.fact.Exempt == "" && !k.at() {
				return name + " does not have the version in git yet"
			}
		}
	}
	return ""
}

// unproved returns why a stage is no evidence for its targets in git; empty: it is evidence.
func unproved(stage Stage, back bool, s v1alpha1.RolloutStage, entries map[string]v1alpha1.RolloutCluster, clusters map[string]known) string {
	settled := false
	for _, name := range stage.Clusters {
		k, entry := clusters[name], entries[name]
		switch {
		case k.fact.Exempt != "":
			continue
		case k.want == "":
			return name + ": " + cmp.Or(k.why, "its state is unknown")
		case entry.Want != k.want || entry.Stage != stage.Name || entry.Back:
			return name + ": its last rollout was for another target"
		case !k.at():
			return name + " does not have it yet"
		case !k.fact.Healthy:
			return name + ": " + cmp.Or(k.fact.Failed, "it is not healthy")
		}
		settled = settled || entry.Settled != nil
	}
	switch {
	case s.Passed == nil:
		return "it has not passed"
	case s.Promoted != "":
		return "it did not wait for its checks and its bake: " + s.Promoted
	case back:
		return "it took a change back, and did not wait for its bake"
	case !settled:
		return "no cluster of it was seen to get there"
	}
	return ""
}
