package cmd

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/yaml"

	"github.com/keelson-io/keelson/api/v1alpha1"
	"github.com/keelson-io/keelson/applier/rights"
	"github.com/keelson-io/keelson/cmd/internal/cli"
	"github.com/keelson-io/keelson/cmd/internal/fleetrepo"
	"github.com/keelson-io/keelson/cmd/internal/planning"
	"github.com/keelson-io/keelson/components"
	"github.com/keelson-io/keelson/controllers/gitmemory"
	"github.com/keelson-io/keelson/controllers/probe"
	"github.com/keelson-io/keelson/registry"
	"github.com/keelson-io/keelson/renderer"
)

type rbacOptions struct {
	hub      bool
	name, to string
}

// rbacRun is one run of rbac.
type rbacRun struct {
	*cli.Invocation
	fleets   *fleetrepo.Opener
	sessions planning.Opener
}

func newRBAC(inv *cli.Invocation) *cobra.Command {
	run := &rbacRun{Invocation: inv, fleets: fleetrepo.New(inv), sessions: planning.NewOpener(inv)}
	o := rbacOptions{}
	cmd := &cobra.Command{
		Use:     "rbac CLUSTER | --hub",
		GroupID: cli.GroupCluster,
		Short:   "Print the roles that Keelson needs on a cluster",
		Long: `Rbac prints namespaces, roles and bindings that allow Keelson what it needs on a
cluster to deliver there what git wants now, and nothing else:

  list, watch    of each kind that a component has, of the autoscalers that the
                 cluster serves, and of the custom resources of its CRDs
  get            of objects, where they are, of the components' namespaces, and
                 of kube-system, whose UID tells clusters apart
  patch, create  of objects: what server-side apply takes
  delete         of what a component no longer has, and of hooks
  jobs           those of the checks of its stage, where a pipeline has any
  pods, events   list, where a component has objects: to say why one does not
                 become healthy
  probes         get, watch, create, patch and delete of what they create, in
                 their namespaces
  secrets        in ` + v1alpha1.Namespace + `: the records
  impersonate    of the service accounts that components name, by their names;
                 their objects Keelson only reads

A role that a component brings, or binds, may grant no more than Keelson has
itself, so its rules are added. No rule has a wildcard, escalate, or bind: what
could only be written with those is left out, and named with its template's
line. The print follows the fleet: run it again when components change.

The command asks the cluster for the kinds that it serves, the records of its
components, and the roles that bindings name. With --hub it prints the rights
that the controller needs in the hub, and asks no cluster.

Exit codes: 0 printed, 1 printed, and something is left out, 2 trouble.`,
		Example: `  keelson rbac prod-us-01 | kubectl --context prod-us-01-admin apply -f -
  keelson rbac prod-us-01 --to user:keelson
  keelson rbac --hub --to serviceaccount:keelson-system/keelson
  keelson rbac prod-us-01 -o json | jq '.items[].kind'`,
		Args: func(cmd *cobra.Command, got []string) error {
			if o.hub {
				return cli.Args("", 0, 0)(cmd, got)
			}
			return cli.Args("CLUSTER, or --hub", 1, 1)(cmd, got)
		},
		ValidArgsFunction: run.fleets.CompleteNames(0),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := run.CheckFormat(); err != nil {
				return err
			}
			subject, err := subjectOf(o.to)
			if err != nil {
				return err
			}
			if o.hub {
				return run.hubRights(cmd.Context(), o, subject)
			}
			return run.clusterRights(cmd.Context(), o, subject, args[0])
		},
	}
	f := cmd.Flags()
	f.BoolVar(&o.hub, "hub", false, "print what the controller needs in the hub")
	f.StringVar(&o.name, "name", "keelson", "`NAME` of the roles and bindings; with --hub keelson-hub")
	f.StringVar(&o.to, "to", "serviceaccount:"+v1alpha1.Namespace+"/keelson", "`SUBJECT` to bind them to: user:NAME, group:NAME or\nserviceaccount:NAMESPACE/NAME")
	run.sessions.Renders.AddFlags(cmd)
	return cmd
}

// subjectOf parses --to.
func subjectOf(to string) (rbacv1.Subject, error) {
	kind, name, _ := strings.Cut(to, ":")
	namespace, account, isAccount := strings.Cut(name, "/")
	switch {
	case name == "":
	case kind == "user":
		return rbacv1.Subject{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: name}, nil
	case kind == "group":
		return rbacv1.Subject{APIGroup: rbacv1.GroupName, Kind: rbacv1.GroupKind, Name: name}, nil
	case kind == "serviceaccount" && isAccount && namespace != "" && account != "":
		return rbacv1.Subject{Kind: rbacv1.ServiceAccountKind, Namespace: namespace, Name: account}, nil
	}
	return rbacv1.Subject{}, cli.Usagef("--to takes user:NAME, group:NAME or serviceaccount:NAMESPACE/NAME, and not %q", to)
}

func (run *rbacRun) hubRights(ctx context.Context, o rbacOptions, to rbacv1.Subject) error {
	f, err := run.fleets.LoadFleet(ctx, false)
	if err != nil {
		return err
	}
	var connections []v1alpha1.Connection
	for _, c := range f.Clusters {
		if err := c.Blocked(); err != nil {
			return err
		}
		connections = append(connections, c.Spec.Connection)
	}
	manifests, err := components.CRDs()
	if err != nil {
		return err
	}
	var crds []string
	for _, manifest := range manifests {
		var crd struct {
			Metadata struct{ Name string }
		}
		if err := yaml.Unmarshal(manifest, &crd); err != nil {
			return fmt.Errorf("decode a shipped CRD: %w", err)
		}
		crds = append(crds, crd.Metadata.Name)
	}
	name := o.name
	if name == "keelson" {
		name = "keelson-hub" // a cluster may also be the hub
	}
	granted := rights.ForHub(connections, crds)
	granted.AddMemory(gitmemory.Names())
	granted.AddNotifications(notificationNeeds(f))
	return run.showRights(granted, name, to)
}

func (run *rbacRun) clusterRights(ctx context.Context, o rbacOptions, to rbacv1.Subject, cluster string) error {
	s, err := run.sessions.Open(ctx, cluster, nil)
	if err != nil {
		return err
	}
	var list []rights.Component
	for _, d := range s.Cluster.Deliveries {
		c, err := rightsOf(ctx, s, d)
		if err != nil {
			return err
		}
		list = append(list, c)
	}
	served := rights.Served{
		Mapping: func(gvk schema.GroupVersionKind) (*meta.RESTMapping, error) { return s.Live.Mapping(ctx, gvk) },
		Role: func(namespace, name string) ([]rbacv1.PolicyRule, error) {
			return s.Live.RoleRules(ctx, namespace, name)
		},
	}
	granted, leftOut, err := rights.ForCluster(list, served)
	if err != nil {
		return err
	}
	if err := allowProbes(granted, s.Fleet, s.Cluster, served); err != nil {
		return err
	}
	if err := run.showRights(granted, o.name, to); err != nil {
		return err
	}
	for _, l := range leftOut {
		run.Warn("%s", l)
	}
	if len(leftOut) > 0 {
		return cli.ErrFound
	}
	return nil
}

// allowProbes adds the rights that the probes of a cluster need.
func allowProbes(r *rights.Rights, f *registry.Fleet, c *registry.Cluster, served rights.Served) error {
	probes, known := f.Probed(c)
	if !known {
		return fmt.Errorf("which probes run on %s is not known: see 'keelson validate'", c.Name)
	}
	for _, p := range probes {
		if err := p.Problems.Err(); err != nil {
			return fmt.Errorf("probe %s: %w", p.Name, err)
		}
		allowed := rights.Probe{Namespace: p.Spec.Namespace}
		for _, s := range probe.Subjects(p, f.Spec.Name, c) {
			allowed.Kinds = append(allowed.Kinds, s.GVK)
		}
		if err := r.Allow(allowed, served); err != nil {
			return err
		}
	}
	return nil
}

func rightsOf(ctx context.Context, s *planning.Session, d *registry.Delivery) (rights.Component, error) {
	target, err := s.Target(ctx, d)
	if err != nil {
		return rights.Component{}, err
	}
	if target == nil {
		target = &renderer.Target{} // absent: the recorded objects are deleted
	}
	record, err := s.Live.Record(ctx, d.Component)
	if err != nil {
		return rights.Component{}, fmt.Errorf("what component %s has there is not known: %w", d.Component, err)
	}
	spec := d.Version.Spec
	return rights.Component{
		Name: d.Component, Namespace: spec.Namespace, ServiceAccount: spec.ServiceAccount,
		Objects: slices.Concat(target.Objects, target.Hooks), Recorded: record.Objects, Jobs: runsJobs(s.Fleet, s.Cluster, d),
	}, nil
}

// runsJobs reports whether a check of the rollouts of a component runs Jobs on a cluster.
func runsJobs(f *registry.Fleet, c *registry.Cluster, d *registry.Delivery) bool {
	p := f.PipelineOf(d.Component)
	return p != nil && !d.Absent && p.RunsJobs(c.Spec.Labels)
}

func (run *rbacRun) showRights(r *rights.Rights, name string, to rbacv1.Subject) error {
	objects := r.Objects(name, to)
	if run.Output != cli.FormatText {
		return run.Encode(map[string]any{"apiVersion": "v1", "kind": "List", "items": objects})
	}
	var b bytes.Buffer
	for _, o := range objects {
		text, err := yaml.Marshal(o)
		if err != nil {
			return fmt.Errorf("encode: %w", err)
		}
		b.WriteString("---\n" + string(text))
	}
	return run.Write(b.Bytes())
}
