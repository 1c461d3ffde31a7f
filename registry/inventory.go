package registry

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	"github.com/keelson-io/keelson/api/v1alpha1"
	"github.com/keelson-io/keelson/registry/naming"
	"github.com/keelson-io/keelson/registry/yamlfile"
)

// inventoryFile is inventory/NAME.yaml.
type inventoryFile struct {
	spec v1alpha1.Inventory
	at   map[string]yamlfile.Point // of the clusters, by name
	yamlfile.Mistakes
}

func decodeInventory(data []byte) *inventoryFile {
	f := &inventoryFile{at: map[string]yamlfile.Point{}}
	doc := decodeFile(data, v1alpha1.KindInventory, &f.spec)
	if !doc.Broken {
		c := checker{doc}
		for _, name := range slices.Sorted(maps.Keys(f.spec.Clusters)) {
			path := []string{"clusters", name}
			if wrong := naming.Check(name); wrong != "" {
				c.key(path, wrong, "")
			}
			c.connection(yamlfile.Below(path, "connection"), f.spec.Clusters[name].Connection)
			c.labels(yamlfile.Below(path, "labels"), f.spec.Clusters[name].Labels)
			f.at[name] = doc.KeyPoint(path...)
		}
	}
	f.Mistakes = doc.Mistakes
	return f
}

// inventory is the content of the files under inventory/. A fleet without such files has no
// inventory.
type inventory struct {
	there    bool
	clusters map[string]listed
	labels   map[string]yamlfile.Position // the labels of all clusters, with the first position of each
}

// listed is the entry of one cluster.
type listed struct {
	v1alpha1.InventoryEntry
	at yamlfile.Position
}

// readInventory reads inventory/. A broken file blocks every cluster, because its clusters can't be
// known.
func (l *loader) readInventory(ctx context.Context) error {
	files, unread, err := topFolder[inventoryFile]{name: "inventory", kind: v1alpha1.KindInventory, decode: decodeInventory, strict: true}.read(ctx, l.files)
	if err != nil {
		return err
	}
	l.block(unread...)
	out := inventory{there: len(files) > 0 || len(unread) > 0, clusters: map[string]listed{}, labels: map[string]yamlfile.Position{}}
	for _, f := range files {
		l.block(f.problems...)
		if f.content == nil {
			continue
		}
		for _, name := range slices.Sorted(maps.Keys(f.content.spec.Clusters)) {
			entry := listed{f.content.spec.Clusters[name], f.content.at[name].In(f.Path, "")}
			if other, twice := out.clusters[name]; twice {
				l.block(yamlfile.Problem{At: entry.at, Message: fmt.Sprintf("cluster %s is listed at %s already", name, other.at), Hint: "leave it out of one of them"})
				continue
			}
			out.clusters[name] = entry
			for _, label := range slices.Sorted(maps.Keys(entry.Labels)) {
				if _, known := out.labels[label]; !known {
					out.labels[label] = entry.at
				}
			}
		}
	}
	l.inventory = out
	return nil
}

// identify completes cluster.yaml with the inventory. With an inventory, only the inventory sets
// the connection, and every label that it sets for any cluster.
func (r *clusterReader) identify(f *clusterFile, file string) (problems yamlfile.Problems) {
	if !r.inventory.there {
		if !f.connected {
			problems = append(problems, yamlfile.Problem{At: f.connectionAt.In(file, ""), Message: "connection is missing"})
			r.cluster.Unconnected = &problems[0]
		}
		return problems
	}
	entry, is := r.inventory.clusters[r.cluster.Name]
	if !is {
		return append(problems, yamlfile.Problem{
			At: yamlfile.Position{File: file}, Message: fmt.Sprintf("cluster %s is in no inventory, and this fleet has one", r.cluster.Name),
			Hint: "add it to a file in inventory/",
		})
	}
	if f.connected {
		problems = append(problems, yamlfile.Problem{
			At: f.connectionAt.In(file, ""), Message: fmt.Sprintf("the inventory says how cluster %s is reached (%s)", r.cluster.Name, entry.at), Hint: "leave connection out here",
		})
	}
	labels := maps.Clone(f.spec.Labels)
	for _, label := range slices.Sorted(maps.Keys(f.spec.Labels)) {
		if at, guarded := r.inventory.labels[label]; guarded {
			problems = append(problems, yamlfile.Problem{
				At: f.labelsAt[label].In(file, ""), Message: fmt.Sprintf("label %s is the inventory's, which sets it at %s", label, at), Hint: "leave it out here",
			})
			delete(labels, label)
		}
	}
	if labels == nil {
		labels = map[string]string{}
	}
	maps.Copy(labels, entry.Labels)
	r.cluster.Spec.Connection, r.cluster.Spec.Labels = entry.Connection, labels
	return problems
}

// recalled reports whether the connection of a cluster is that of an older commit. Such a cluster
// is blocked, and blocks no other: its folder may have been renamed, and a file left behind.
func (l *loader) recalled(c *Cluster) bool {
	made := l.made.clusters[c.Name]
	return made != nil && made.recalled != nil
}

// checkConnections blocks clusters with the same connection. Otherwise one cluster would get the
// changes for the other, past its stage, freezes and approvals.
func (l *loader) checkConnections() {
	by := map[string][]string{}
	for _, c := range l.fleet.Clusters {
		if key := connectionKey(c.Spec.Connection); key != "" && !l.recalled(c) {
			by[key] = append(by[key], c.Name)
		}
	}
	for i, c := range l.fleet.Clusters {
		names := by[connectionKey(c.Spec.Connection)]
		if len(names) < 2 || l.recalled(c) {
			continue
		}
		problem := yamlfile.Problem{
			At: l.connectionAt(c), Message: fmt.Sprintf("%d clusters have this connection: %s", len(names), someOf(names)),
			Hint: "a cluster has one name: give each a connection of its own",
		}
		l.report(problem)
		blocked := *c // a copy, because later Fleets may share c
		blocked.Problems = append(slices.Clone(c.Problems), problem)
		l.fleet.Clusters[i] = &blocked
	}
}

// someOf returns the first names of a list.
func someOf(names []string) string {
	const most = 5
	if len(names) > most {
		return strings.Join(names[:most], ", ") + ", …"
	}
	return strings.Join(names, ", ")
}

// connectionAt returns the position of the connection of a cluster.
func (l *loader) connectionAt(c *Cluster) yamlfile.Position {
	if entry, is := l.inventory.clusters[c.Name]; is {
		return entry.at
	}
	at := yamlfile.Position{File: join(join("clusters", c.Name), "cluster.yaml")}
	if made := l.made.clusters[c.Name]; made != nil && made.spec != nil {
		return made.spec.connectionAt.In(at.File, "")
	}
	return at
}

// connectionKey identifies a connection; empty for none.
func connectionKey(c v1alpha1.Connection) string {
	switch {
	case c.Hub:
		return "hub"
	case c.Secret != nil:
		return fmt.Sprintf("secret %s/%s %s", cmp.Or(c.Secret.Namespace, v1alpha1.Namespace), c.Secret.Name, cmp.Or(c.Secret.Key, "kubeconfig"))
	case c.Context != "":
		return "context " + c.Context
	}
	return ""
}

func (v inventory) same(w inventory) bool { return reflect.DeepEqual(v, w) }
