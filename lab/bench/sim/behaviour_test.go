package sim

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/util/retry"
	"sigs.k8s.io/yaml"

	"github.com/keelson-io/keelson/applier/apiservertest"
	"github.com/keelson-io/keelson/lab/harness/must"
)

// actual is the API server that the simulated servers are compared with. It may be nil.
var actual *rest.Config

func TestMain(m *testing.M) {
	os.Exit(apiservertest.Main(m, func(config *rest.Config) { actual = config }))
}

// simulated starts API servers that stop when the test ends.
func simulated(t *testing.T, names ...string) *Fleet {
	t.Helper()
	f, err := Start(t.Context(), Options{Clusters: names, Seed: 1, Now: time.Now, Failed: func(err error) { t.Errorf("the simulation: %v", err) }})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := f.Stop(); err != nil {
			t.Error(err)
		}
	})
	return f
}

func configOf(t *testing.T, f *Fleet, name string) *rest.Config {
	t.Helper()
	c, err := clientcmd.RESTConfigFromKubeConfig(f.kubeconfigs[name])
	if err != nil {
		t.Fatal(err)
	}
	c.QPS = -1
	return c
}

// world is one API server and a namespace for one test.
type world struct {
	*testing.T
	config    *rest.Config
	dynamic   dynamic.Interface
	kube      *kubernetes.Clientset
	namespace string
}

func newWorld(t *testing.T, config *rest.Config) *world {
	t.Helper()
	w := &world{T: t, config: config}
	var err error
	if w.dynamic, err = dynamic.NewForConfig(config); err != nil {
		t.Fatal(err)
	}
	binary := rest.CopyConfig(config)
	binary.ContentType, binary.AcceptContentTypes = runtime.ContentTypeProtobuf, runtime.ContentTypeProtobuf+","+runtime.ContentTypeJSON
	if w.kube, err = kubernetes.NewForConfig(binary); err != nil {
		t.Fatal(err)
	}
	var ns *corev1.Namespace
	err = retry.OnError(wait.Backoff{Steps: 10, Duration: 100 * time.Millisecond, Factor: 2}, utilnet.IsProbableEOF, func() (err error) {
		// Go's HTTP/2 server closes a connection if it does not receive the client's settings
		// within two seconds (firstSettingsTimeout). On a busy machine this can happen.
		ns, err = w.kube.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "behaviour-"}}, metav1.CreateOptions{})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	w.namespace = ns.Name
	return w
}

func (w *world) of(resource string) dynamic.ResourceInterface {
	group, version := "", "v1"
	if parts := strings.Split(resource, "."); len(parts) > 1 {
		resource, group = parts[0], strings.Join(parts[1:], ".")
	}
	r := w.dynamic.Resource(schema.GroupVersionResource{Group: group, Version: version, Resource: resource})
	if resource == "customresourcedefinitions" || resource == "namespaces" {
		return r
	}
	return r.Namespace(w.namespace)
}

func parsed(text string) *unstructured.Unstructured {
	u := &unstructured.Unstructured{}
	if err := yaml.Unmarshal([]byte(text), &u.Object); err != nil {
		panic(err) // only in tests
	}
	data, err := u.MarshalJSON()
	if err == nil {
		err = u.UnmarshalJSON(data) // integers as int64, as in clients
	}
	if err != nil {
		panic(err)
	}
	return u
}

func configMap(name, data string) *unstructured.Unstructured {
	return parsed("{apiVersion: v1, kind: ConfigMap, metadata: {name: " + name + "}, data: {" + data + "}}")
}

// apply applies an object as the given manager. words are options: force, dry.
func (w *world) apply(resource string, u *unstructured.Unstructured, manager string, words ...string) (*unstructured.Unstructured, error) {
	o := metav1.ApplyOptions{FieldManager: manager, Force: slices.Contains(words, "force")}
	if slices.Contains(words, "dry") {
		o.DryRun = []string{metav1.DryRunAll}
	}
	var sub []string
	if slices.Contains(words, "status") {
		sub = []string{"status"}
	}
	return w.of(resource).Apply(w.Context(), u.GetName(), u, o, sub...)
}

// step runs a step of package must, and ends the test with its failure.
func step(t *testing.T, run func()) {
	t.Helper()
	if err := must.Try(run); err != nil {
		t.Fatal(err)
	}
}

// refused expects an error that satisfies is and contains the words.
func (w *world) refused(err error, is func(error) bool, words ...string) {
	w.Helper()
	if err == nil || !is(err) {
		w.Errorf("the answer is %v", err)
		return
	}
	for _, word := range words {
		if !strings.Contains(err.Error(), word) {
			w.Errorf("the answer is %q, without %q", err, word)
		}
	}
}

// owners returns the field owners as text, without times.
func owners(u *unstructured.Unstructured) string {
	var out []string
	for _, f := range u.GetManagedFields() {
		if f.Manager == "kube-controller-manager" {
			continue // the simulation imitates the controller manager
		}
		out = append(out, fmt.Sprintf("%s %s %s %s", f.Manager, f.Operation, f.Subresource, f.FieldsV1.GetRawString()))
	}
	slices.Sort(out)
	return strings.Join(out, "\n")
}

// anonymousOf returns the object without metadata that differs between servers.
func anonymousOf(u *unstructured.Unstructured) map[string]any {
	u = u.DeepCopy()
	for _, f := range []string{"uid", "resourceVersion", "creationTimestamp", "namespace", "managedFields"} {
		unstructured.RemoveNestedField(u.Object, "metadata", f)
	}
	return u.Object
}

// behaviours are the properties of API servers that clients can observe and Keelson relies on. Each
// function returns a value that must be equal on both servers.
func behaviours() map[string]func(*world) any {
	all := map[string]func(*world) any{}
	for _, some := range []map[string]func(*world) any{applying(), writing(), reading(), watching(), defining(), completing()} {
		maps.Copy(all, some)
	}
	return all
}

// observed returns what a behaviour shows of an API server, as text.
func observed(t *testing.T, config *rest.Config, behaviour func(*world) any) string {
	t.Helper()
	w := newWorld(t, config)
	var data []byte
	step(t, func() { data = must.Get(yaml.Marshal(behaviour(w))) })
	return string(data)
}

// TestBehaviour: a simulated API server behaves like a real one. Without a real one, go test -short
// tries the behaviours on a simulated one alone.
func TestBehaviour(t *testing.T) {
	t.Parallel()
	if actual == nil && !testing.Short() {
		t.Fatal("KUBEBUILDER_ASSETS is not set: run make test, or go test -short")
	}
	played := configOf(t, simulated(t, "one"), "one")
	for name, behaviour := range behaviours() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			seen := map[string]string{}
			for name, config := range map[string]*rest.Config{"real": actual, "simulated": played} {
				if config != nil {
					t.Run(name, func(t *testing.T) { seen[name] = observed(t, config, behaviour) })
				}
			}
			if actual != nil && seen["real"] != seen["simulated"] {
				t.Errorf("real:\n%s\nsimulated:\n%s", seen["real"], seen["simulated"])
			}
		})
	}
}
