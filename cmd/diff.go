package cmd

import (
	"bytes"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	"github.com/keelson-io/keelson/api/v1alpha1"
	"github.com/keelson-io/keelson/applier"
	"github.com/keelson-io/keelson/cmd/internal/cli"
	"github.com/keelson-io/keelson/cmd/internal/fleetrepo"
	"github.com/keelson-io/keelson/cmd/internal/planning"
	"github.com/keelson-io/keelson/differ"
)

// planOutput prints plans.
type planOutput struct{ *cli.Invocation }

func newDiff(inv *cli.Invocation) *cobra.Command {
	run, sessions := planOutput{inv}, planning.NewOpener(inv)
	var files offline
	cmd := &cobra.Command{
		Use:     "diff CLUSTER [COMPONENT...] | --recorded R --target T --live L",
		GroupID: cli.GroupCluster,
		Short:   "Show what applying would change on a cluster",
		Long: `Diff compares what Keelson last applied, what git wants, and what the cluster
has. It prints what 'keelson apply' would change, with held and denied changes
first, each with its rule and the reason. It writes nothing.

  -o json   {"objects": [...]}, a contract. Fields without an action are left
            out, and the data of Secrets is masked
  -o patch  what would be sent for each object, as YAML. The data of Secrets
            is masked
  -o markdown  a comment for a pull request. Held, denied and kept changes come
            first, and long values are cut

With --recorded, --target or --live it compares files of objects instead, and
asks neither git nor a cluster. A missing or empty file means that none of the
objects exists. The custom resources in the live file are taken as complete.

The schemas of a current Kubernetes are built in. Schemas of custom resources
come from the CRDs among the target and live objects, and from the files of
--schema. These hold CRDs, or the output of one of:
  kubectl get crds -o yaml
  kubectl get --raw /openapi/v3/apis/GROUP/VERSION
  kubectl get --raw /openapi/v2

Exit codes: 0 same, 1 differs, 2 a component can't be compared.`,
		Example: `  keelson diff prod-us-01
  keelson diff prod-us-01 coredns metrics-server
  keelson diff prod-us-01 --revision my-branch
  keelson diff prod-us-01 -o json | jq '.objects[] | select(.state == "held")'
  keelson diff prod-us-01 coredns -o patch
  keelson diff --recorded old.yaml --target new.yaml --live live.yaml -o json
  keelson diff --target new.yaml --live live.yaml --schema crds.yaml`,
		Args:              files.args,
		ValidArgsFunction: sessions.Fleets.CompleteNames(-1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := run.CheckFormat(cli.FormatPatch, cli.FormatMarkdown); err != nil {
				return err
			}
			if files.isSet() {
				return run.diffFiles(cmd.Context(), files)
			}
			ctx := cmd.Context()
			s, err := sessions.Open(ctx, args[0], nil)
			if err != nil {
				return err
			}
			deliveries, err := fleetrepo.FindDeliveries(s.Cluster, args[1:])
			if err != nil {
				return err
			}
			plans, err := s.PlanAll(ctx, deliveries)
			if err != nil {
				return err
			}
			s.PredictAll(ctx, plans)
			if len(args) == 1 {
				orphans, err := s.Orphans(ctx)
				if err != nil {
					return err
				}
				for _, name := range orphans {
					run.Warn("%s is no longer in git for %s; its objects were left in place", name, s.Cluster.Name)
				}
			}
			return run.showDiff(s.Cluster.Name, plans)
		},
	}
	f := cmd.Flags()
	f.SortFlags = false
	files.add(f)
	sessions.Renders.AddFlags(cmd)
	return cmd
}

// beforeDependencies explains the error of a component whose kinds come with another component.
func beforeDependencies(component string, err error) error {
	if unserved(err) {
		return fmt.Errorf("%s can't be compared before what it depends on is applied: %w", component, err)
	}
	return err
}

// showDiff prints the plans, and returns the outcome of diff.
func (out planOutput) showDiff(cluster string, plans []planning.Planned) error {
	var (
		all    differ.Plan
		failed []error
	)
	for i := range plans {
		if err := plans[i].Err; err != nil {
			failed = append(failed, beforeDependencies(plans[i].Component, err))
			continue
		}
		all.Changes = append(all.Changes, plans[i].Plan.Changes...)
	}
	var err error
	switch out.Output {
	case cli.FormatJSON, cli.FormatYAML:
		err = out.Encode(all)
	case cli.FormatPatch:
		err = out.showPatches(all)
	case cli.FormatMarkdown:
		err = out.showMarkdown(cluster, plans, all)
	default:
		err = out.showPlans(cluster, plans, all)
	}
	switch {
	case err != nil:
		return err
	case len(failed) > 0:
		return errors.Join(failed...)
	case all.Differs():
		return cli.ErrFound
	default:
		return nil
	}
}

func (out planOutput) showPlans(cluster string, plans []planning.Planned, all differ.Plan) error {
	paint := out.Painter(out.Env.Out)
	var b bytes.Buffer
	differing, compared := 0, 0
	for i := range plans {
		p := &plans[i]
		if p.Err != nil {
			continue
		}
		compared++
		if p.Plan.Differs() {
			differing++
		}
		var text bytes.Buffer
		if err := p.Plan.WriteText(&text, bool(paint)); err != nil {
			return err
		}
		for _, h := range p.Hooks() {
			line := "> hook " + h.Event + " " + h.ID.String()
			if h.Replaces {
				line += ", which replaces the object of this name"
			}
			text.WriteString(paint.Paint(cli.Cyan, cli.OneLine(line)) + "\n")
		}
		if text.Len() == 0 {
			continue
		}
		b.WriteString(paint.Paint(cli.Bold, p.Title()+": "+p.Plan.Summary()) + "\n\n")
		b.Write(text.Bytes())
	}
	what := cli.Plural(compared, "component", "components") + " in sync"
	if differing > 0 {
		verb := "differ"
		if differing == 1 {
			verb = "differs"
		}
		what = fmt.Sprintf("%d of %s %s: %s", differing, cli.Plural(compared, "component", "components"), verb, all.Summary())
	}
	b.WriteString(paint.Paint(cli.OutcomeStyle(differing == 0), cluster+": "+what) + "\n")
	return out.Write(b.Bytes())
}

// showMarkdown writes a section with a heading for each component that has content to show.
func (out planOutput) showMarkdown(cluster string, plans []planning.Planned, all differ.Plan) error {
	var b bytes.Buffer
	fmt.Fprintf(&b, "%s: %s\n\n", differ.MarkdownCode(cluster), all.Summary())
	for i := range plans {
		p := &plans[i]
		if p.Err != nil || !p.Plan.Shows() {
			continue
		}
		fmt.Fprintf(&b, "## %s\n\n", differ.MarkdownCode(p.Title()))
		if err := p.Plan.WriteMarkdown(&b); err != nil {
			return err
		}
		b.WriteString("\n")
	}
	return out.Write(b.Bytes())
}

func (out planOutput) showPatches(p differ.Plan) error {
	var b bytes.Buffer
	for i := range p.Changes {
		requests, err := requestsOf(&p.Changes[i])
		if err != nil {
			return err
		}
		for _, r := range requests {
			body, err := out.Masked(r.body)
			if err != nil {
				return err
			}
			text, err := yaml.Marshal(body)
			if err != nil {
				return fmt.Errorf("encode %s: %w", p.Changes[i].ID, err)
			}
			b.WriteString("---\n# " + cli.OneLine(r.what) + "\n" + string(text))
		}
	}
	return out.Write(b.Bytes())
}

// request is a request that the applier sends for a change.
type request struct {
	what string
	body any
}

// requestsOf returns the requests of a change, with the data of Secrets masked.
func requestsOf(c *differ.Change) ([]request, error) {
	live := &unstructured.Unstructured{Object: c.Live}
	base, force := live, " --force-conflicts"
	if c.Op != differ.OpUpdate {
		base, force = nil, ""
	}
	var out []request
	switch c.Op {
	case differ.OpNone, differ.OpForget:
		return nil, nil
	case differ.OpDelete, differ.OpReplace:
		out = append(out, request{what: fmt.Sprintf("delete %s, with these options", c.ID), body: applier.DeleteOptions(live)})
	case differ.OpCreate, differ.OpUpdate:
	}
	if c.Op == differ.OpDelete {
		return out, nil
	}
	migration, err := applier.Migration(c)
	if err != nil {
		return nil, err
	}
	if migration != nil {
		what := fmt.Sprintf("%s %s: patch --type=json: what %s own becomes %s's", c.Op, c.ID, strings.Join(c.Migrate, ", "), v1alpha1.FieldManager)
		out = append(out, request{what: what, body: migration})
	}
	for _, step := range applier.Applies(c) {
		out = append(out, request{
			what: fmt.Sprintf("%s %s: apply --server-side --field-manager=%s%s%s", c.Op, c.ID, step.Manager, force, step.Why),
			body: applier.Body(cli.MaskSecret(step.Patch), base).Object,
		})
	}
	return out, nil
}
