package registry

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	"github.com/keelson-io/keelson/api/v1alpha1"
	"github.com/keelson-io/keelson/registry/gitrepo"
	"github.com/keelson-io/keelson/registry/yamlfile"
)

// Fleet is the content of git at one revision. It is immutable. A later revision is another Fleet,
// which shares the unchanged parts. A [Cluster], [Delivery], [Version] or [Values] with the same
// pointer has the same content. An unchanged part usually has the same pointer in the next Fleet of
// a [Repo].
type Fleet struct {
	// Revision is the full commit hash.
	Revision string
	// Spec is fleet.yaml.
	Spec v1alpha1.Fleet
	// Clusters are in name order, including clusters with broken files.
	Clusters []*Cluster
	// Pipelines, Freezes and Probes are in name order, including broken ones.
	Pipelines []*Pipeline
	Freezes   []*Freeze
	Probes    []*Probe
	// Notifications are in name order, including broken ones.
	Notifications []*Notification
	// Projects are in name order.
	Projects []*Project
	// Problems are all mistakes of the repository at this revision, in file order. They include the
	// problems that are listed at the blocked cluster or delivery.
	Problems yamlfile.Problems
	// Signer signed the commit. It is nil without trusted keys, for a work tree, and with
	// [gitrepo.Options.Proposals].
	Signer *gitrepo.Signer

	ways pipelineIndex
	// places holds promoted versions, and the versions that they follow.
	places map[placeKey]Place
	// published holds the versions by component, in order.
	published map[string][]string
	// probesUnread: the set of Probes can't be known.
	probesUnread bool
	// stageApprovals are approvals of changes in a pipeline.
	stageApprovals []v1alpha1.Approval
}

// Cluster is one folder under clusters/.
type Cluster struct {
	Name string
	// Spec is cluster.yaml.
	Spec v1alpha1.Cluster
	// Deliveries are the components for this cluster, in name order.
	Deliveries []*Delivery
	// Problems block the whole cluster: nothing on it may change.
	Problems yamlfile.Problems
	// Unconnected is the one of Problems that says that the cluster has no connection; nil: it has
	// one.
	Unconnected *yamlfile.Problem
	// Unread: cluster.yaml can't be read, and neither can it in the recent history of the branch. The
	// labels are unknown, and there are Problems.
	Unread bool
}

// Delivery is one component on one cluster.
type Delivery struct {
	Cluster   string
	Component string
	// VersionName is the version as written, and VersionAt its position.
	VersionName string
	VersionAt   yamlfile.Position
	// Version is nil if the version can't be read; Problems say why.
	Version *Version
	// Absent: git wants the component removed from the cluster. AbsentAt is the position of absent.
	Absent   bool
	AbsentAt yamlfile.Position
	// Values are the layers and the cluster's own file, merged. The chart's own values.yaml is not
	// included, because Helm merges it below.
	Values *Values
	// Paused: the cluster or the meta-config file sets paused.
	Paused bool
	// Approvals are for held changes of this delivery.
	Approvals []Approval
	// Problems block only this delivery: nothing in it may change.
	Problems yamlfile.Problems

	mirrors map[string]string // of the cluster, for Explain
}

// Version is one published version of a component: a folder at a git tag. It
// is immutable and shared by all clusters that run it.
type Version struct {
	Component string
	// Name is the tag without the component ("v1.12.0"), or "HEAD".
	Name string
	// Commit is the commit of the tag; empty at HEAD, which is the fleet's own revision. Tree is
	// the git hash of the component's folder there. Two versions with the same Tree have the same
	// content.
	Commit string
	Tree   string
	Spec   v1alpha1.Component
	// Images are by name; nil without images.yaml.
	Images map[string]v1alpha1.Image
	// Chart holds the chart's files in path order, with paths relative to its folder: the files
	// below template/, or the files packed in Archive.
	Chart []File
	// Archive is the name of the packed chart (.tgz) under template/; "" if template/ is the
	// chart's folder.
	Archive string
	// Source is the origin of a third-party chart; nil without chart.yaml.
	Source *v1alpha1.ChartSource

	// Positions for problems and explanations. They are zero in a Version that was not read from a
	// repository.
	folder, imagesFile, revision string
	dependsAt                    []yamlfile.Position            // of Spec.DependsOn's items
	keysAt                       map[string]yamlfile.Position   // of the keys of component.yaml, by name
	healthAt                     []map[string]yamlfile.Position // of the conditions of Spec.Health, by rule and field
	imagesAt                     *places                        // of the images by name
	into                         bool                           // an image sets values of the chart's own
	// Data shared with other versions, kept in memory while the Version is.
	files  []*fileData
	packed *packedChart
}

// File is one file of a component.
type File struct {
	// Name is relative to the chart's folder and uses slashes.
	Name string
	Data []byte
}

// specAt returns the position of a key of component.yaml, or the file if the key is not set.
func (v *Version) specAt(key string) yamlfile.Position {
	if at, ok := v.keysAt[key]; ok {
		return at
	}
	return yamlfile.Position{File: join(v.folder, "component.yaml"), Revision: v.revision}
}

// HealthAt returns the position of a condition of a health rule in component.yaml. rule is the
// index of the rule, and field the name of the condition; "" is the rule itself.
func (v *Version) HealthAt(rule int, field string) yamlfile.Position {
	if rule < len(v.healthAt) {
		if at, ok := v.healthAt[rule][field]; ok {
			return at
		}
	}
	return yamlfile.Position{File: join(v.folder, "component.yaml"), Revision: v.revision}
}

// ChartFile returns the path of a file of the chart from the repository's root. A file in an
// archive has a path below the archive: components/NAME/template/CHART.tgz/values.yaml.
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

// Blocked returns why nothing of a cluster may change, or nil.
func (c *Cluster) Blocked() error {
	return blocked("cluster "+c.Name, c.Problems)
}

// BlockedOffline returns why a command that does not ask the cluster can't show it, or nil. Such a
// command needs no connection.
func (c *Cluster) BlockedOffline() error {
	return blocked("cluster "+c.Name, slices.DeleteFunc(slices.Clone(c.Problems), func(p yamlfile.Problem) bool {
		return c.Unconnected != nil && p == *c.Unconnected
	}))
}

// Blocked returns why nothing of a delivery may change, or nil.
func (d *Delivery) Blocked() error {
	if len(d.Problems) == 0 && d.Version == nil {
		return errors.New("component " + d.Component + " has no version")
	}
	return blocked("component "+d.Component+" on cluster "+d.Cluster, d.Problems)
}

func blocked(what string, problems yamlfile.Problems) error {
	mistakes := "mistakes"
	switch len(problems) {
	case 0:
		return nil
	case 1:
		mistakes = "mistake"
	}
	return fmt.Errorf("%s is blocked by %d %s in the repository:\n%w", what, len(problems), mistakes, problems)
}
