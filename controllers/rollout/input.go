package rollout

import (
	"cmp"
	"time"

	"github.com/keelson-io/keelson/api/v1alpha1"
	"github.com/keelson-io/keelson/registry"
	"github.com/keelson-io/keelson/renderer"
)

// InputsOf returns a hash of everything in git on which the target of a delivery depends. What a
// cluster rendered from other inputs says nothing about the target that git wants now.
func InputsOf(c *registry.Cluster, d *registry.Delivery) (string, error) {
	if d.Absent {
		return v1alpha1.HashAbsent, nil
	}
	return renderer.InputsOf(renderer.Request{Version: d.Version, Values: d.Values, ImageMirrors: c.Spec.ImageMirrors})
}

// input holds the current facts about a rollout, without its history.
type input struct {
	component, pipeline, revision string
	stages                        []Stage
	clusters                      map[string]known
	frozen                        map[string]string
	// asks are the specs of the stages, by name. checks are the current answers of their checks;
	// the Change in a key is the evidence of the stage.
	asks   map[string]*v1alpha1.Stage
	jobs   map[string]string // templates of their Jobs, by path
	checks map[Check]answer
}

// answer is the answer of a check to one question.
type answer struct {
	yes bool
	why string // why the answer is no
	// final means that asking again makes no sense.
	final bool
	// since is the begin of an unbroken yes. A time without questions breaks it, and so does a
	// restart of the process.
	since time.Time
}

// known holds the facts about the component on one cluster.
type known struct {
	// want is the hash of the target in git. It is empty until the cluster reports what the files
	// in git render to; why is then the reason.
	want, why string
	fact      Fact
	// has is the applied version, gets the version in git.
	has, gets string
}

// at reports whether the cluster has the target in git, healthy or not.
func (k known) at() bool { return k.want != "" && k.fact.Hash == k.want }

// knownOf returns the facts about a component on a cluster. They follow from git, the hash of
// [InputsOf], and the Delivery (nil: there is none).
func knownOf(c *registry.Cluster, d *registry.Delivery, inputs string, s *observation) known {
	k := known{gets: d.VersionName}
	if c.Spec.Paused || d.Paused {
		k.fact.Exempt = "paused in git"
	}
	if s == nil {
		k.why = "its state is unknown: it has no Delivery yet"
		return k
	}
	k.has = s.applied
	k.fact.Hash = s.hash
	current := s.wanted != nil && s.wanted.Inputs == inputs
	if current && s.pinned != "" { // a change in git ends a pin
		k.fact.Exempt = s.pinned
	}
	switch {
	case len(c.Problems)+len(d.Problems) > 0:
		k.why = "its files in git have problems: run keelson validate"
	case s.sync == v1alpha1.SyncUnreachable:
		k.why = cmp.Or(s.message, "it does not answer")
	case !current && (s.sync == v1alpha1.SyncBlocked || s.sync == v1alpha1.SyncFailed):
		k.why = s.message
	case !current:
		k.why = "the controller has not computed its target for the current revision yet"
	default:
		k.want = s.wanted.TargetHash
	}
	healthy := s.health == v1alpha1.HealthHealthy || s.sync == v1alpha1.SyncAbsent
	switch s.sync {
	case v1alpha1.SyncSynced, v1alpha1.SyncAbsent:
		k.fact.Healthy = healthy
	case v1alpha1.SyncWaiting, v1alpha1.SyncPaused: // it waits with its previous target
		k.fact.Healthy = healthy && s.hash != "" && s.hash != k.want || s.nothing()
	case v1alpha1.SyncDenied, v1alpha1.SyncBlocked:
		k.fact.Failed = s.message
	case v1alpha1.SyncProgressing, v1alpha1.SyncHeld, v1alpha1.SyncFailed, v1alpha1.SyncUnreachable, v1alpha1.SyncOrphaned:
	}
	if s.health == v1alpha1.HealthDegraded {
		k.fact.Failed = cmp.Or(s.message, "it is degraded")
	}
	return k
}
