package engines_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/discovery"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/keelson-io/keelson/api/v1alpha1"
	"github.com/keelson-io/keelson/differ"
	"github.com/keelson-io/keelson/renderer"
)

// keelson compares with package differ in the same way as package applier does. The applier itself
// is not imported: it needs a newer client-go than gitops-engine can be built with.
type keelson struct {
	*apiServer
	schemas differ.Schemas
	rules   differ.Rules
}

func newKeelson(ctx context.Context, s *apiServer) (*keelson, error) {
	k := &keelson{apiServer: s, schemas: differ.Schemas{}}
	var err error
	if k.rules, err = differ.NewRules(differ.Scopes{}); err != nil {
		return nil, err
	}
	client, err := discovery.NewDiscoveryClientForConfig(s.config)
	if err != nil {
		return nil, err
	}
	// The API server publishes the schema of a CRD some moments after it starts to serve the kind.
	err = until(ctx, func(context.Context) (bool, error) {
		documents, err := client.OpenAPIV3().Paths()
		if err != nil {
			return false, err
		}
		for gvk := range s.objects.kinds() {
			document := documents[path(gvk.GroupVersion())]
			if document == nil {
				return false, nil
			}
			data, err := document.Schema("application/json")
			if err != nil {
				return false, err
			}
			if k.schemas[gvk.GroupVersion()], err = differ.ParseOpenAPI(data); err != nil {
				return false, err
			}
			if !k.schemas.Knows(gvk) {
				return false, nil
			}
		}
		return true, nil
	})
	return k, err
}

func path(gv schema.GroupVersion) string {
	if gv.Group == "" {
		return "api/" + gv.Version
	}
	return "apis/" + gv.String()
}

// settle returns a check that compares the objects.
func (k *keelson) settle(ctx context.Context, want *unstructured.Unstructured) (check, error) {
	settled, policy, err := k.apply(ctx, want)
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context, want *unstructured.Unstructured) (bool, error) {
		state := settled
		state.Target = &renderer.Object{Content: want.Object}
		return k.differs(ctx, state, policy)
	}, nil
}

// settleUnchanged returns a check that detects whether anything has changed since the last
// comparison. It uses the versions of the record and of the live object, and hashes of the
// remaining inputs. Like the applier, it hashes policy and target once for all objects of a
// component. That step is not measured.
func (k *keelson) settleUnchanged(ctx context.Context, want *unstructured.Unstructured) (check, error) {
	settled, policy, err := k.apply(ctx, want)
	if err != nil {
		return nil, err
	}
	const recorded, target = "1", "hash of the target"
	hash, gvk := policy.Hash(), want.GroupVersionKind()
	inputs := func() differ.Inputs {
		live := unstructured.Unstructured{Object: settled.Live}
		return differ.Inputs{
			Recorded: recorded, Target: target, Live: string(live.GetUID()) + "/" + live.GetResourceVersion(),
			Policy: hash, Schema: k.schemas.Hash(gvk), Scaled: policy.Scaled[settled.ID],
		}
	}
	settled.Settled = inputs()
	return func(ctx context.Context, _ *unstructured.Unstructured) (bool, error) {
		state := settled
		state.Inputs = inputs()
		return k.differs(ctx, state, policy)
	}, nil
}

// apply applies an object as the applier does, and keeps the data that the applier records. The
// live object has no managedFields, as in the controller's cache.
func (k *keelson) apply(ctx context.Context, want *unstructured.Unstructured) (differ.State, differ.Policy, error) {
	policy := differ.Policy{Component: want.GetLabels()[v1alpha1.LabelComponent], Rules: k.rules, MaskKey: []byte("key")}
	state := differ.State{
		ID: differ.ID{
			Group: want.GroupVersionKind().Group, Kind: want.GetKind(), Namespace: want.GetNamespace(), Name: want.GetName(),
		},
		Target: &renderer.Object{Content: want.Object},
	}
	plan, err := differ.Compare(ctx, k.schemas, []differ.State{state}, policy)
	if err != nil {
		return state, policy, err
	}
	if plan.Count(differ.OpCreate) != 1 {
		return state, policy, fmt.Errorf("a new object is not to be created: %s", plan.Summary())
	}
	change := plan.Changes[0]
	patch, err := json.Marshal(change.Patch)
	if err != nil {
		return state, policy, err
	}
	live := want.DeepCopy()
	if err := k.client.Patch(ctx, live, client.RawPatch(types.ApplyPatchType, patch), client.FieldOwner(v1alpha1.FieldManager)); err != nil {
		return state, policy, err
	}
	state.Recorded, state.RecordedUID = change.Record, string(live.GetUID())
	state.Normal = differ.Residue(k.schemas, change, live.Object, policy)
	live.SetManagedFields(nil)
	state.Live = live.Object
	return state, policy, nil
}

func (k *keelson) differs(ctx context.Context, state differ.State, policy differ.Policy) (bool, error) {
	plan, err := differ.Compare(ctx, k.schemas, []differ.State{state}, policy)
	if err != nil {
		return false, err
	}
	if plan.Changes[0].Unread.Owners {
		return false, errors.New("the applier would have to read the object's managedFields, which is not measured")
	}
	return !plan.Settled(), nil
}
