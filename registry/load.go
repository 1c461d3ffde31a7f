package registry

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/keelson-io/keelson/api/v1alpha1"
	"github.com/keelson-io/keelson/registry/gitrepo"
	"github.com/keelson-io/keelson/registry/naming"
	"github.com/keelson-io/keelson/registry/yamlfile"
)

// newLoader returns a loader for the files of one commit.
func (r *Repo) newLoader(at *gitrepo.Admission, tree gitrepo.Tree) *loader {
	l := &loader{
		workTree: r.git.WorkTree(),
		files:    &revisionFiles{tree: tree, cache: r.cache},
		sharing:  &r.sharing,
		limits:   &loadLimits{},
		fleet:    &Fleet{Revision: at.Commit.String(), Signer: at.Signer},
		layers:   layerSet{combined: map[string]*layering{}},
		checked:  map[overrideKey]yamlfile.Problems{},
		absent:   map[yamlfile.Problem][]string{},
		before:   r.previousMemo(),
		made:     &loadMemo{clusters: map[string]*madeCluster{}},
		past:     at.Snapshot.NewPast(at.Commit, maxRecalled, maxRecalledEntries),
	}
	l.versions = &versionIndex{
		files: l.files, snapshot: at.Snapshot, trust: at.Trust, sharing: l.sharing, limits: l.limits,
		results:   map[versionKey]*versionResult{},
		lookups:   map[versionKey]*versionLookup{},
		current:   map[*versionLookup]bool{},
		published: map[string][]string{},
	}
	return l
}

// loader loads one Fleet.
type loader struct {
	workTree bool // the files are those of a work tree
	files    *revisionFiles
	versions *versionIndex
	sharing  *sharing
	limits   *loadLimits
	fleet    *Fleet

	layers    layerSet
	approvals approvalList
	inventory inventory
	// everywhere are the problems that block every cluster.
	everywhere yamlfile.Problems
	pipelineAt yamlfile.Position // of the fleet's pipeline

	before   *loadMemo // of the previous Load
	governed bool      // an input of all clusters changed since the previous Load
	made     *loadMemo
	scratch  []Delivery // of the cluster that is being loaded
	past     *gitrepo.Past
	checked  map[overrideKey]yamlfile.Problems
	// absent collects the clusters by missing dependency or stage, so that the fleet lists each in
	// one Problem.
	absent map[yamlfile.Problem][]string
}

type overrideKey struct {
	source  *source
	version *Version
}

func (l *loader) load(ctx context.Context) error {
	if err := l.readFleet(ctx); err != nil {
		return err
	}
	for _, step := range []func(context.Context) error{
		l.readProbes, l.readPipelines, l.readComponents, l.readProjects, l.readFreezes, l.readNotifications, l.readLayers, l.readApprovals, l.readInventory, l.readClusters,
	} {
		if err := step(ctx); err != nil {
			return err
		}
	}
	l.finish()
	return nil
}

// report adds problems to the fleet.
func (l *loader) report(problems ...yamlfile.Problem) {
	l.fleet.Problems = append(l.fleet.Problems, problems...)
}

// block adds problems that block every cluster.
func (l *loader) block(problems ...yamlfile.Problem) {
	l.report(problems...)
	l.everywhere = append(l.everywhere, problems...)
}

func (l *loader) readFleet(ctx context.Context) error {
	const name = "fleet.yaml"
	top, err := l.files.tree.List(ctx, "")
	if err != nil {
		return err
	}
	i := slices.IndexFunc(top, func(e gitrepo.Entry) bool { return e.Name == name })
	if i < 0 {
		if slices.ContainsFunc(top, func(e gitrepo.Entry) bool { return e.Name == "fleet.yml" }) {
			return errors.New("fleet.yaml is missing: rename fleet.yml")
		}
		return errors.New("fleet.yaml is missing: this is not a fleet repository")
	}
	f, problem, err := readEntry(ctx, l.files, top[i], v1alpha1.KindFleet, decodeFleet)
	if err != nil {
		return err
	}
	if f == nil {
		return problem
	}
	problems := f.In(name)
	if f.broken {
		return problems.Err()
	}
	l.versions.verify = f.spec.Verify
	l.fleet.Spec, l.pipelineAt = f.spec, f.pipelineAt.In(name, "")
	if f.spec.Verify != "" && l.versions.trust == nil && !l.workTree {
		return errors.Join(errors.New("fleet.yaml requires signatures (verify), but no trusted keys were given "+
			"to check it with: give --trusted-keys FILE"), problems.Err())
	}
	l.block(problems...)
	return nil
}

// readComponents checks the components of this revision, including components that no cluster runs
// at HEAD. A mistake should be found before its version is tagged.
func (l *loader) readComponents(ctx context.Context) error {
	entries, err := l.files.tree.List(ctx, "components")
	if err != nil {
		return err
	}
	for _, e := range entries {
		if isNote(e) {
			continue
		}
		if e.Kind != gitrepo.EntryFolder {
			l.report(yamlfile.Problem{
				At:      yamlfile.Position{File: e.Path},
				Message: fmt.Sprintf("this is %s; components/ holds a folder for each component", e.Kind),
			})
			continue
		}
		if wrong := naming.CheckComponent(e.Name); wrong != "" {
			l.report(yamlfile.Problem{At: yamlfile.Position{File: e.Path}, Message: wrong})
			continue
		}
		l.versions.components = append(l.versions.components, e.Name)
		result, err := l.versions.read(ctx, e.Name, v1alpha1.VersionHead)
		if err != nil {
			return err
		}
		l.report(result.problems...)
		if err := l.readPipelineOf(ctx, e.Name); err != nil {
			return err
		}
	}
	return nil
}

// finish sorts the fleet's problems and removes duplicates.
func (l *loader) finish() {
	stages, problems := l.approvals.check(l.fleet)
	l.fleet.stageApprovals = stages
	l.report(problems...)
	l.report(findPlaces(l.fleet, l.versions)...)
	for problem, clusters := range l.absent {
		slices.Sort(clusters)
		problem.Message += onClusters(clusters)
		l.report(problem)
	}
	slices.SortFunc(l.fleet.Problems, yamlfile.Problem.Compare)
	l.fleet.Problems = slices.Compact(l.fleet.Problems)
}

// onClusters returns the names of the clusters, or the first few names of a long list.
func onClusters(clusters []string) string {
	const few = 5
	switch {
	case len(clusters) == 1:
		return " cluster " + clusters[0]
	case len(clusters) <= few:
		return " clusters " + strings.Join(clusters, ", ")
	default:
		return fmt.Sprintf(" clusters %s and %d more", strings.Join(clusters[:few], ", "), len(clusters)-few)
	}
}
