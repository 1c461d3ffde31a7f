package registry

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	"github.com/keelson-io/keelson/api/v1alpha1"
)

// Fleet is what git says at one revision. It is immutable: a later revision
// is another Fleet, which shares what did not change. So a [Cluster], [Delivery],
// [Version] or [Values] with the same pointer says the same; one that says the
// same has the same pointer in the next Fleet of a [Repo], as a rule.
type Fleet struct {
	// Revision is the full commit hash.
	Revision string
	// Spec is fleet.yaml.
	Spec v1alpha1.Fleet
	// Clusters in name order, also those whose files are broken.
	Clusters []*Cluster
	// Pipelines, Freezes and Probes in name order, also broken ones.
	Pipelines []*Pipeline
	Freezes   []*Freeze
	Probes    []*Probe
	// Notifications in name order, also broken ones.
	Notifications []*Notification
	// Projects in name order.
	Projects []*Project
	// Problems are all mistakes of the repository at this revision, in file
	// order, also those listed again at the cluster or delivery they block.
	Problems Problems
	// Signer of the commit; nil when no trusted keys were given, and of a work
	// tree.
	Signer *Signer

	ways ways
	// places of versions that are promoted, and of those that they follow.
	places map[placeKey]Place
	// published versions by component, in order.
	published map[string][]string
	// probesUnread: which Probes there are can't be known.
	probesUnread bool
	// stageApprovals of changes on their way.
	stageApprovals []v1alpha1.Approval
}

// Cluster is one folder under clusters/.
type Cluster struct {
	Name string
	// Spec is cluster.yaml.
	Spec v1alpha1.Cluster
	// Deliveries in component-name order: what should run here.
	Deliveries []*Delivery
	// Problems block the whole cluster: it is left exactly as it is.
	Problems Problems
	// Unread: cluster.yaml can't be read. Its labels are not known, and there are
	// Problems.
	Unread bool
}

// Delivery is one component on one cluster.
type Delivery struct {
	Cluster   string
	Component string
	// VersionName as written, and where.
	VersionName string
	VersionAt   Position
	// Version is nil when Problems say why it can't be had.
	Version *Version
	// Absent: git wants the component removed from the cluster. AbsentAt is where
	// it says so.
	Absent   bool
	AbsentAt Position
	// Values are the layers and the cluster's own file, merged; the chart's
	// own values.yaml is not in them (Helm merges it below).
	Values *Values
	// Paused by the cluster or by the meta-config file.
	Paused bool
	// Approvals of changes of this delivery that are held.
	Approvals []Approval
	// Problems block this delivery and no other: nothing of it may change.
	Problems Problems

	mirrors map[string]string // of the cluster, for Explain
}

// Version is one published version of a component: a folder at a git tag. It
// is immutable and shared by all clusters that run it.
type Version struct {
	Component string
	// Name is the tag without the component ("v1.12.0"), or "HEAD".
	Name string
	// Commit that the tag points to; empty at HEAD, which is the fleet's own
	// revision. Tree is the git hash of the component's folder there: two
	// versions with one Tree are the same.
	Commit string
	Tree   string
	Spec   v1alpha1.Component
	// Images by name; nil without images.yaml.
	Images map[string]v1alpha1.Image
	// Chart holds the chart's files, paths relative to its folder, in path order:
	// those below template/, or those packed in Archive.
	Chart []File
	// Archive is the name under template/ of the .tgz that holds the chart; ""
	// where template/ is the chart's folder.
	Archive string
	// Source says where a chart of somebody else's is from; nil without chart.yaml.
	Source *v1alpha1.ChartSource

	// Where things stand, for problems and explanations; zero in a Version that
	// was not read from a repository.
	folder, imagesFile, revision string
	dependsAt                    []Position            // of Spec.DependsOn's items
	keysAt                       map[string]Position   // of the keys of component.yaml, by name
	healthAt                     []map[string]Position // of the conditions of Spec.Health, by rule and field
	imagesAt                     *places               // of the images by name
	into                         bool                  // an image goes into values of the chart's own
	// What it shares with other versions, held as long as it is.
	files  []*fileData
	packed *packedChart
}

// File is one file of a component.
type File struct {
	// Name is relative to the chart's folder and uses slashes.
	Name string
	Data []byte
}

// specAt is where a key of component.yaml stands; the file, where the key is left out.
func (v *Version) specAt(key string) Position {
	if at, ok := v.keysAt[key]; ok {
		return at
	}
	return Position{File: join(v.folder, "component.yaml"), Revision: v.revision}
}

// HealthAt is where a condition of a health rule stands in component.yaml, by the
// number of the rule and the name of the field; of the rule itself with "".
func (v *Version) HealthAt(rule int, field string) Position {
	if rule < len(v.healthAt) {
		if at, ok := v.healthAt[rule][field]; ok {
			return at
		}
	}
	return Position{File: join(v.folder, "component.yaml"), Revision: v.revision}
}

// ChartFile is the path of one of the chart's files from the repository's root.
// A file in an archive lies below it: components/NAME/template/CHART.tgz/values.yaml.
func (v *Version) ChartFile(name string) string {
	folder := v.folder
	if folder == "" {
		folder = "components/" + v.Component
	}
	return join(join(folder, "template"), join(v.Archive, name))
}

// Cluster returns the cluster with the given name, or nil.
func (f *Fleet) Cluster(name string) *Cluster {
	i, ok := slices.BinarySearchFunc(f.Clusters, name, func(c *Cluster, name string) int { return cmp.Compare(c.Name, name) })
	if !ok {
		return nil
	}
	return f.Clusters[i]
}

// Delivery returns the delivery of the given component, or nil.
func (c *Cluster) Delivery(component string) *Delivery {
	i, ok := slices.BinarySearchFunc(c.Deliveries, component, func(d *Delivery, name string) int { return cmp.Compare(d.Component, name) })
	if !ok {
		return nil
	}
	return c.Deliveries[i]
}

// Blocked says why nothing of a cluster may change; nil: it may.
func (c *Cluster) Blocked() error {
	return blocked("cluster "+c.Name, c.Problems)
}

// Blocked says why nothing of a delivery may change; nil: it may.
func (d *Delivery) Blocked() error {
	if len(d.Problems) == 0 && d.Version == nil {
		return errors.New("component " + d.Component + " has no version")
	}
	return blocked("component "+d.Component+" on cluster "+d.Cluster, d.Problems)
}

func blocked(what string, problems Problems) error {
	mistakes := "mistakes"
	switch len(problems) {
	case 0:
		return nil
	case 1:
		mistakes = "mistake"
	}
	return fmt.Errorf("%s is blocked by %d %s in the repository:\n%w", what, len(problems), mistakes, problems)
}
