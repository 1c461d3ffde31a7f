package sim

import (
	"errors"
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"k8s.io/apimachinery/pkg/util/version"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"

	"github.com/keelson-io/keelson/lab/harness/must"

	// Kubernetes' own defaults of the built-in kinds.
	_ "k8s.io/kubernetes/pkg/apis/admissionregistration/install"
	_ "k8s.io/kubernetes/pkg/apis/apps/install"
	_ "k8s.io/kubernetes/pkg/apis/authorization/install"
	_ "k8s.io/kubernetes/pkg/apis/autoscaling/install"
	_ "k8s.io/kubernetes/pkg/apis/batch/install"
	_ "k8s.io/kubernetes/pkg/apis/coordination/install"
	_ "k8s.io/kubernetes/pkg/apis/core/install"
	_ "k8s.io/kubernetes/pkg/apis/discovery/install"
	_ "k8s.io/kubernetes/pkg/apis/networking/install"
	_ "k8s.io/kubernetes/pkg/apis/policy/install"
	_ "k8s.io/kubernetes/pkg/apis/rbac/install"
	_ "k8s.io/kubernetes/pkg/apis/scheduling/install"
	_ "k8s.io/kubernetes/pkg/apis/storage/install"

	apiextensionsinstall "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/install"
)

// typed is the scheme with the Go types of built-in kinds.
var typed = func() *runtime.Scheme { //nolint:gochecknoglobals // Kubernetes keeps the one that it is made from as a global, too
	// The surface was recorded from the lab's Kubernetes version, so the defaults must match it.
	if err := utilfeature.DefaultMutableFeatureGate.SetEmulationVersion(version.MajorMinor(1, 36)); err != nil {
		panic(err) // the pinned library does not know its own version
	}
	apiextensionsinstall.Install(legacyscheme.Scheme)
	return legacyscheme.Scheme
}()

// completeBuiltIn returns a function that sets defaults with Kubernetes' own code. A kind without
// Go types here stays unchanged.
func completeBuiltIn(gvk schema.GroupVersionKind) func(runtime.Object) {
	if !typed.Recognizes(gvk) {
		return func(runtime.Object) {}
	}
	must.Get(typed.New(gvk))
	return func(o runtime.Object) {
		u, ok := o.(*unstructured.Unstructured)
		if !ok {
			return
		}
		t, err := typed.New(gvk)
		if err != nil {
			return
		}
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, t); err != nil {
			return // wellFormed reports this error to the client
		}
		typed.Default(t)
		if set, ok := t.(*appsv1.StatefulSet); ok { // Kubernetes' conversion sets this
			for i := range set.Spec.VolumeClaimTemplates {
				set.Spec.VolumeClaimTemplates[i].TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "PersistentVolumeClaim"}
			}
		}
		t.GetObjectKind().SetGroupVersionKind(gvk)
		if content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(t); err == nil {
			u.Object = content
		}
	}
}

// wellFormed returns an error if the object does not fit its Go type.
func wellFormed(gvk schema.GroupVersionKind, content map[string]any) error {
	if !typed.Recognizes(gvk) {
		return nil
	}
	t, err := typed.New(gvk)
	if err != nil {
		return fmt.Errorf("kind %s: %w", gvk, err)
	}
	return runtime.DefaultUnstructuredConverter.FromUnstructured(content, t) //nolint:wrapcheck // shown as the API server shows it
}

// manageFields creates the field managers of the kind. They merge objects and track field owners.
func (k *kind) manageFields(types managedfields.TypeConverter) {
	version := fieldpath.APIVersion(k.GroupVersion().String())
	reset := func(paths ...fieldpath.Path) map[fieldpath.APIVersion]fieldpath.Filter {
		return map[fieldpath.APIVersion]fieldpath.Filter{version: fieldpath.NewExcludeSetFilter(fieldpath.NewSet(paths...))}
	}
	var ofStatus map[fieldpath.APIVersion]fieldpath.Filter
	if k.status {
		ofStatus = reset(fieldpath.MakePathOrDie("status"))
	}
	manager := managedfields.NewDefaultFieldManager
	if !typed.Recognizes(k.GroupVersionKind) {
		manager = managedfields.NewDefaultCRDFieldManager
	}
	k.fields = must.Get(manager(types, oneVersion{}, completer(k.complete), blank{}, k.GroupVersionKind, k.GroupVersion(), "", ofStatus))
	k.statusFields = must.Get(manager(types, oneVersion{}, completer(k.complete), blank{}, k.GroupVersionKind, k.GroupVersion(), "status",
		reset(fieldpath.MakePathOrDie("spec"), fieldpath.MakePathOrDie("metadata", "labels"), fieldpath.MakePathOrDie("metadata", "annotations"))))
}

// completer is a [runtime.ObjectDefaulter].
type completer func(runtime.Object)

func (c completer) Default(o runtime.Object) { c(o) }

var errOneVersion = errors.New("kinds have one version here")

// oneVersion is a converter for kinds with a single version.
type oneVersion struct{}

func (oneVersion) Convert(any, any, any) error { return errOneVersion }

func (oneVersion) ConvertToVersion(in runtime.Object, _ runtime.GroupVersioner) (runtime.Object, error) {
	return in, nil
}

func (oneVersion) ConvertFieldLabel(_ schema.GroupVersionKind, label, value string) (string, string, error) {
	return label, value, nil
}

// blank creates empty objects.
type blank struct{}

func (blank) New(gvk schema.GroupVersionKind) (runtime.Object, error) {
	u := &unstructured.Unstructured{Object: map[string]any{}}
	u.SetGroupVersionKind(gvk)
	return u, nil
}
