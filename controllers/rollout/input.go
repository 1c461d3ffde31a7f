package rollout

import (
	"cmp"
	"time"

	"github.com/keelson-io/keelson/api/v1alpha1"
	"github.com/keelson-io/keelson/registry"
	"github.com/keelson-io/keelson/renderer"
)

// InputsOf is a hash of what git says of a delivery, as far as its target depends on
// it. What a cluster rendered from others says nothing about what git wants now.
func InputsOf(c *registry.Cluster, d *registry.Delivery) (string, error) {
	if d.Absent {
		return v1alpha1.HashAbsent, nil
	}
	return renderer.InputsOf(renderer.Request{Version: d.Version, Values: d.Values, ImageMirrors: c.Spec.ImageMirrors})
}

// input is all that is known of a component on its way, but the past.
type input struct {
	component, pipeline, revision string
	stages                        []Stage
	clusters                      map[string]known
	frozen                        map[string]string
	// asks are the checks of the stages, by stage, and checks what they answer now, with
	// the evidence of their stage as change.
	asks   map[string]*v1alpha1.Stage
	jobs   map[string]string // the files of their Jobs, by path
	checks map[Check]answer
}

// answer of a check to a question that was asked once.
type answer struct {
	yes bool
	why string // not
	// final: to ask again makes no sense.
	final bool
	// since is from when on it was seen to be yes without a break. What was not looked at
	// for a while, or by a process that has ended, was not seen.
	since time.Time
}

// known is what is known of the component on one cluster.
type known struct {
	// want is the hash of what git wants there; empty while the cluster has not said
	// what that renders to, and why not.
	want, why string
	fact      Fact
	// has and gets are the versions before and after.
	has, gets string
}

// at reports whether the cluster has what git wants, healthy or not.
func (k known) at() bool { return k.want != "" && k.fact.Hash == k.want }

// knownOf is what is known of a component on a cluster: by git, by the hash of what
// git puts into its render, and by its Delivery (nil: there is none).
func knownOf(c *registry.Cluster, d *registry.Delivery, inputs string, s *sight) known {
	k := known{gets: d.VersionName}
	if c.Spec.Paused || d.Paused {
		k.fact.Exempt = "paused in git"
	}
	if s == nil {
		k.why = "nothing is known of it: it has no Delivery yet"
		return k
	}
	k.has = s.applied
	k.fact.Hash = s.hash
	current := s.wanted != nil && s.wanted.Inputs == inputs
	if current && s.pinned != "" { // git's next move ends a pin
		k.fact.Exempt = s.pinned
	}
	switch {
	case len(c.Problems)+len(d.Problems) > 0:
		k.why = "what git says of it is broken: keelson validate"
	case s.sync == v1alpha1.SyncUnreachable:
		k.why = cmp.Or(s.message, "it does not answer")
	case !current && (s.sync == v1alpha1.SyncBlocked || s.sync == v1alpha1.SyncFailed):
		k.why = s.message
	case !current:
		k.why = "it has not told yet what git's revision means for it"
	default:
		k.want = s.wanted.TargetHash
	}
	healthy := s.health == v1alpha1.HealthHealthy || s.sync == v1alpha1.SyncAbsent
	switch s.sync {
	case v1alpha1.SyncSynced, v1alpha1.SyncAbsent:
		k.fact.Healthy = healthy
	case v1alpha1.SyncWaiting, v1alpha1.SyncPaused: // for its turn, with what it had
		k.fact.Healthy = healthy && s.hash != k.want || s.hash == ""
	case v1alpha1.SyncDenied, v1alpha1.SyncBlocked:
		k.fact.Failed = s.message
	case v1alpha1.SyncProgressing, v1alpha1.SyncHeld, v1alpha1.SyncFailed, v1alpha1.SyncUnreachable, v1alpha1.SyncOrphaned:
	}
	if s.health == v1alpha1.HealthDegraded {
		k.fact.Failed = cmp.Or(s.message, "it is degraded")
	}
	return k
}
