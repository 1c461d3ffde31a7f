package cmd

import (
	"bufio"
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"go.yaml.in/yaml/v4"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	kjson "sigs.k8s.io/json"

	"github.com/keelson-io/keelson/api/v1alpha1"
	"github.com/keelson-io/keelson/applier/observe"
	"github.com/keelson-io/keelson/cmd/internal/cli"
	"github.com/keelson-io/keelson/differ"
	"github.com/keelson-io/keelson/registry/yamlfile"
	"github.com/keelson-io/keelson/renderer"
)

// offlineLimit bounds the bytes read from one file.
const offlineLimit = 256 << 20

// offline holds the settings of a diff of files.
type offline struct {
	recorded, target, live string
	schemas                []string
	rules, profile         string
	component              string
	adopt                  bool
	drift                  string
	maskKey                string
	approve                []string
}

func (o *offline) add(f *pflag.FlagSet) {
	f.StringVar(&o.recorded, "recorded", "", "`FILE` of the objects as last applied")
	f.StringVar(&o.target, "target", "", "`FILE` of the objects as wanted")
	f.StringVar(&o.live, "live", "", "`FILE` of the objects as they are")
	f.StringVar(&o.rules, "rules", "", "`FILE` of danger rules, such as component.yaml;\nthe built-in ones come behind them")
	f.StringVar(&o.profile, "profile", string(v1alpha1.ProfileBaseline), "`PROFILE` of the built-in danger rules: baseline,\nstrict (what they warn of is held) or off")
	f.StringSliceVar(&o.schemas, "schema", nil, "`FILE` for kinds that are not built in: CRDs, or an\nOpenAPI document, v3 or v2 (CRDs among the\ntarget or live objects need no flag)")
	f.StringVar(&o.component, "component", "", "`NAME` whose objects these are (default: not checked)")
	f.BoolVar(&o.adopt, "adopt", false, "take over objects that were never applied")
	f.StringVar(&o.drift, "drift", string(v1alpha1.DriftRestore), "`POLICY` for a person's change: restore or report")
	f.StringSliceVar(&o.approve, "approve", nil, "`HASH` of a held change to approve, as diff shows it")
	f.StringVar(&o.maskKey, "mask-key", "", "`KEY` of the hashes that stand for the data of\nSecrets (default: a new one each time)")
}

func (o *offline) isSet() bool { return o.recorded != "" || o.target != "" || o.live != "" }

// args checks the arguments of diff: with files there are none.
func (o *offline) args(cmd *cobra.Command, given []string) error {
	switch {
	case o.isSet():
		return cli.Args("", 0, 0)(cmd, given)
	case o.rules != "":
		return cli.Usagef("--rules is for files; a cluster has the danger rules of git")
	case cmd.Flags().Changed("profile"):
		return cli.Usagef("--profile is for files; a cluster has the dangerProfile of git")
	case len(o.schemas) > 0:
		return cli.Usagef("--schema is for files; a cluster publishes its own")
	case len(o.approve) > 0:
		return cli.Usagef("--approve is for files; for a cluster approvals stand in git, in approvals/")
	}
	return cli.Args("CLUSTER [COMPONENT...]", 1, -1)(cmd, given)
}

// compared is the input of a comparison of files.
type compared struct {
	states  []differ.State
	schemas differ.Schemas
	policy  differ.Policy
}

func (o *offline) read(ctx context.Context) (compared, error) {
	if err := cli.OneOf("--drift", o.drift, string(v1alpha1.DriftRestore), string(v1alpha1.DriftReport)); err != nil {
		return compared{}, err
	}
	if err := cli.OneOf("--profile", o.profile, string(v1alpha1.ProfileBaseline), string(v1alpha1.ProfileStrict), string(v1alpha1.ProfileOff)); err != nil {
		return compared{}, err
	}
	states, versions, err := readStates(*o)
	if err != nil {
		return compared{}, err
	}
	schemas, err := readSchemas(o.schemas, states, versions)
	if err != nil {
		return compared{}, err
	}
	policy, err := o.policy(states)
	if err != nil {
		return compared{}, err
	}
	if err := differ.JudgeAmong(ctx, states); err != nil {
		return compared{}, err
	}
	return compared{states: states, schemas: schemas, policy: policy}, nil
}

// diffFiles compares files, without a cluster or git.
func (out planOutput) diffFiles(ctx context.Context, o offline) error {
	c, err := o.read(ctx)
	if err != nil {
		return err
	}
	plan, err := differ.Compare(ctx, c.schemas, c.states, c.policy)
	if err != nil {
		return fmt.Errorf("compare: %w", err)
	}
	switch out.Output {
	case cli.FormatJSON, cli.FormatYAML:
		err = out.Encode(plan)
	case cli.FormatPatch:
		err = out.showPatches(plan)
	case cli.FormatMarkdown:
		var b bytes.Buffer
		if err = plan.WriteMarkdown(&b); err == nil {
			err = out.Write(b.Bytes())
		}
	default:
		err = out.showOffline(plan)
	}
	if err == nil && plan.Differs() {
		return cli.ErrFound
	}
	return err
}

func (out planOutput) showOffline(plan differ.Plan) error {
	paint := out.Painter(out.Env.Out)
	var b bytes.Buffer
	if err := plan.WriteText(&b, bool(paint)); err != nil {
		return err
	}
	b.WriteString(paint.Paint(cli.OutcomeStyle(!plan.Differs()), plan.Summary()) + "\n")
	return out.Write(b.Bytes())
}

// policy uses the autoscalers among the live objects.
func (o *offline) policy(states []differ.State) (differ.Policy, error) {
	own, err := readRules(o.rules)
	if err != nil {
		return differ.Policy{}, err
	}
	rules, err := differ.NewRules(differ.Scopes{Component: own, FleetProfile: v1alpha1.DangerProfile(o.profile)})
	if err != nil {
		return differ.Policy{}, err
	}
	p := differ.Policy{
		Component: o.component, AnyComponent: o.component == "", OwnersByRecord: true, Rules: rules, Adopt: o.adopt, Drift: v1alpha1.Drift(o.drift),
		Scaled: map[differ.ID]differ.Scaling{}, Approved: map[string][]string{}, MaskKey: []byte(o.maskKey),
	}
	if o.maskKey == "" {
		p.MaskKey = make([]byte, 32)
		if _, err := rand.Read(p.MaskKey); err != nil {
			return differ.Policy{}, fmt.Errorf("make a key: %w", err)
		}
	}
	for _, s := range states {
		p.Approved[s.ID.String()] = o.approve
		if s.Live == nil {
			continue
		}
		if id, scaling := observe.ScaleTarget(&unstructured.Unstructured{Object: s.Live}); scaling != 0 {
			p.Scaled[id] |= scaling
		}
	}
	return p, nil
}

// readRules reads danger rules: a list, or a file with the key danger, such as component.yaml and
// fleet.yaml. Without a file there are none.
func readRules(file string) ([]v1alpha1.DangerRule, error) {
	if file == "" {
		return nil, nil
	}
	data, err := readFile(file)
	if err != nil {
		return nil, err
	}
	// Not sigs.k8s.io/yaml, which reads the key on as true.
	var list any
	decoder := yaml.NewDecoder(bytes.NewReader(data))
	if err := decoder.Decode(&list); err != nil && !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	if err := decoder.Decode(new(any)); !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("%s holds more than one list of danger rules", file)
	}
	if whole, ok := list.(map[string]any); ok && whole["danger"] != nil {
		list = whole["danger"]
	}
	text, err := json.Marshal(list)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	var rules []v1alpha1.DangerRule
	strict := json.NewDecoder(bytes.NewReader(text))
	strict.DisallowUnknownFields()
	if err := strict.Decode(&rules); err != nil {
		return nil, fmt.Errorf("%s is no list of danger rules, as danger in component.yaml is one: %w", file, err)
	}
	return rules, nil
}

// readStates joins the objects of the three files by ID.
func readStates(o offline) ([]differ.State, []schema.GroupVersion, error) {
	byID := map[differ.ID]*differ.State{}
	var order []differ.ID
	var versions []schema.GroupVersion
	for _, side := range []struct {
		file string
		set  func(*differ.State, object) bool // false: the object is already set
	}{
		{o.recorded, func(s *differ.State, o object) bool {
			first := s.Recorded == nil
			s.Recorded = o.content
			return first
		}},
		{o.target, func(s *differ.State, o object) bool {
			first := s.Target == nil
			s.Target = &renderer.Object{Content: o.content, Source: o.at}
			return first
		}},
		{o.live, func(s *differ.State, o object) bool {
			first := s.Live == nil
			s.Live, s.OwnersRead = o.content, true
			return first
		}},
	} {
		objects, err := readObjects(side.file)
		if err != nil {
			return nil, nil, err
		}
		for _, one := range objects {
			u := unstructured.Unstructured{Object: one.content}
			gvk := u.GroupVersionKind()
			id := differ.ID{Group: gvk.Group, Kind: gvk.Kind, Namespace: u.GetNamespace(), Name: u.GetName()}
			if byID[id] == nil {
				byID[id] = &differ.State{ID: id}
				order = append(order, id)
			}
			if !side.set(byID[id], one) {
				return nil, nil, fmt.Errorf("%s: %s stands twice", one.at, id)
			}
			versions = append(versions, gvk.GroupVersion())
		}
	}
	states := make([]differ.State, len(order))
	for i, id := range order {
		states[i] = *byID[id]
	}
	return states, versions, nil
}

// object is one object of a file.
type object struct {
	content map[string]any
	at      yamlfile.Position
}

// readObjects reads the objects of a YAML or JSON file, and splits lists. It returns none for an
// empty file or no file.
func readObjects(file string) ([]object, error) {
	if file == "" {
		return nil, nil
	}
	data, err := readFile(file)
	if err != nil {
		return nil, err
	}
	var out []object
	err = eachDocument(file, data, func(text []byte) error {
		objects, err := readDocument(text, yamlfile.Position{File: file})
		out = append(out, objects...)
		return err
	})
	return out, err
}

// eachDocument splits a file, and passes each document that is not empty on as JSON. A single JSON
// value is not read as YAML, which takes many times as long: published schemas have megabytes.
func eachDocument(file string, data []byte, do func(text []byte) error) error {
	hand := func(number int, text []byte, err error) error {
		if text = bytes.TrimSpace(text); err == nil && len(text) > 0 && string(text) != "null" {
			err = do(text)
		}
		if err != nil {
			return fmt.Errorf("%s: document %d: %w", file, number, err)
		}
		return nil
	}
	if json.Valid(data) {
		text, err := documentJSON(data)
		return hand(1, text, err)
	}
	reader := utilyaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(data)))
	for number := 1; ; number++ {
		document, err := reader.Read()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err == nil {
			document, err = documentJSON(document)
		}
		if err := hand(number, document, err); err != nil {
			return err
		}
	}
}

func readFile(file string) ([]byte, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, fmt.Errorf("read objects: %w", err)
	}
	defer func() { _ = f.Close() }() // the file is only read
	data, err := io.ReadAll(io.LimitReader(f, offlineLimit+1))
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", file, err)
	}
	if len(data) > offlineLimit {
		return nil, fmt.Errorf("%s is larger than %d bytes", file, offlineLimit)
	}
	return data, nil
}

func readDocument(text []byte, at yamlfile.Position) ([]object, error) {
	decoded, _, err := unstructured.UnstructuredJSONScheme.Decode(text, nil, nil)
	if err != nil {
		return nil, fmt.Errorf("this is no Kubernetes object: %w", err)
	}
	list, ok := decoded.(*unstructured.UnstructuredList)
	if !ok {
		list = &unstructured.UnstructuredList{}
		if u, ok := decoded.(*unstructured.Unstructured); ok {
			list.Items = append(list.Items, *u)
		}
	}
	var out []object
	for _, u := range list.Items {
		if u.GetName() == "" || u.GetKind() == "" || u.GetAPIVersion() == "" {
			return nil, errors.New("an object has no apiVersion, kind or metadata.name")
		}
		out = append(out, object{content: u.Object, at: at})
	}
	return out, nil
}

// documentJSON returns a document as JSON. It rejects what API servers also reject: duplicate keys,
// and numbers and text that JSON does not have.
func documentJSON(document []byte) ([]byte, error) {
	if utilyaml.IsJSONBuffer(document) {
		twice, err := kjson.UnmarshalStrict(document, new(any))
		if err = errors.Join(append(twice, err)...); err != nil {
			return nil, fmt.Errorf("read JSON: %w", err)
		}
		return document, nil
	}
	content, err := renderer.DecodeYAML(document)
	if err != nil {
		return nil, fmt.Errorf("read YAML: %w", err)
	}
	text, err := json.Marshal(content)
	if err != nil {
		return nil, fmt.Errorf("read YAML: %w", err)
	}
	return text, nil
}
