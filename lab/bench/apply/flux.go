package apply

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/keelson-io/keelson/lab/harness"

	"github.com/keelson-io/keelson/lab/harness/must"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"

	"github.com/keelson-io/keelson/lab/bench/addons"
	"github.com/keelson-io/keelson/lab/gitserver"
	"github.com/keelson-io/keelson/lab/process"
)

// fluxNamespace is the namespace of Flux's own objects.
const fluxNamespace = "flux-system"

// fluxOptions configure how Flux is built and run.
type fluxOptions struct {
	building   time.Duration // time limit
	groups     int           // number of Kustomizations; 0: one per component
	concurrent int
	interval   time.Duration // of the Kustomizations
}

// peer is Flux as measured here: source-controller and kustomize-controller as processes. The
// repository contains plain objects as rendered by Keelson, so Flux renders nothing.
type peer struct {
	*measurement
	programs fluxPrograms
	objects  map[string][]unstructured.Unstructured // by component
	url      string
	groups   int
	client   dynamic.Interface // as admin
}

// asFlux returns Flux as a contestant. It is notified of pushes as Flux's webhook receiver does it:
// by an annotation of the GitRepository.
func (m *measurement) asFlux(ctx context.Context, server *gitserver.Server, objects []unstructured.Unstructured) contestant {
	p := &peer{measurement: m, objects: byComponent(objects), url: server.URL("flux.git"), groups: m.flux.groups}
	if p.groups == 0 || p.groups > m.components {
		p.groups = m.components
	}
	p.programs = buildFlux(ctx, m.flux.building, m.out)
	repo := m.publish(ctx, "flux", p.files(), nil)
	repo.clone(ctx, p.url)
	return contestant{
		name: "flux", repo: repo, repeats: true,
		settings: []string{
			fmt.Sprintf("%v with %v", fluxControllers(), p.flags()),
			fmt.Sprintf("%d Kustomizations (prune, interval %s, no wait) of plain objects, from one GitRepository (interval %s); one more that applies these", p.groups, m.flux.interval, gitInterval),
			"told by reconcile.fluxcd.io/requestedAt on the GitRepository, as its webhook receiver does; artifacts and temporary files in memory, where there is /dev/shm",
		},
		levels: p.levels,
		nothing: func() addons.Files {
			return addons.Files{"README.md": []byte("Made up, to measure with. Nothing reads this.\n")}
		},
		install: p.install, start: p.start, tell: p.requestFetch,
	}
}

// byComponent groups objects by component. Each object has the name of its component.
func byComponent(objects []unstructured.Unstructured) map[string][]unstructured.Unstructured {
	out := map[string][]unstructured.Unstructured{}
	for _, o := range objects {
		out[o.GetName()] = append(out[o.GetName()], o)
	}
	return out
}

func (p *peer) group(i int) string { return fmt.Sprintf("group-%04d", i*p.groups/p.components) }

func (p *peer) path(i int) string { return "addons/" + p.group(i) + "/" + p.names[i] + ".yaml" }

// files returns the whole repository: one file of objects per component, and one file with all
// Kustomizations. The files are few, because every Kustomization unpacks the whole repository.
func (p *peer) files() addons.Files {
	files := addons.Files{"README.md": []byte("Made up, to measure with.\n")}
	var kustomizations []*unstructured.Unstructured
	for i := range p.components {
		files[p.path(i)] = p.component(i, "1")
		if i == 0 || p.group(i) != p.group(i-1) {
			kustomizations = append(kustomizations, p.kustomization(p.group(i), "./addons/"+p.group(i)))
		}
	}
	files["clusters/bench/addons.yaml"] = stream(kustomizations)
	return files
}

// component returns the file of a component.
func (p *peer) component(i int, level string) []byte {
	var objects []*unstructured.Unstructured
	for _, o := range p.objects[p.names[i]] {
		if o.GetKind() == "Deployment" {
			o = *o.DeepCopy()
			edit(&o, func(env map[string]any) { env["value"] = level })
		}
		objects = append(objects, &o)
	}
	return stream(objects)
}

// stream returns objects as a YAML stream.
func stream(objects []*unstructured.Unstructured) []byte {
	var out []byte
	for _, o := range objects {
		out = append(append(out, "---\n"...), must.Get(yaml.Marshal(o.Object))...)
	}
	return out
}

func (p *peer) levels(of []int, level func(i int) string) addons.Files {
	files := addons.Files{}
	for _, i := range of {
		files[p.path(i)] = p.component(i, level(i))
	}
	return files
}

// own returns an object in Flux's namespace.
func own(apiVersion, kind, name string, spec map[string]any) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": apiVersion, "kind": kind, "metadata": map[string]any{"name": name, "namespace": fluxNamespace}, "spec": spec,
	}}
}

func (p *peer) kustomization(name, path string) *unstructured.Unstructured {
	return own("kustomize.toolkit.fluxcd.io/v1", "Kustomization", name, map[string]any{
		"interval": p.flux.interval.String(), "path": path, "prune": true, "sourceRef": map[string]any{"kind": "GitRepository", "name": "fleet"},
	})
}

// repositories are Flux's GitRepositories.
var repositories = harness.Resource("source.toolkit.fluxcd.io/v1/gitrepositories") //nolint:gochecknoglobals // never changed

// install creates the objects that `flux bootstrap` creates in a cluster.
func (p *peer) install(ctx context.Context, admin *rest.Config) {
	p.client = must.Get(dynamic.NewForConfig(admin))
	namespace := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "v1", "kind": "Namespace", "metadata": map[string]any{"name": fluxNamespace}}}
	must.Get(p.client.Resource(harness.Resource("v1/namespaces")).Create(ctx, namespace, metav1.CreateOptions{}))
	for _, c := range fluxControllers() {
		must.Do(harness.InstallCRDs(ctx, p.client, p.programs.crds(c)))
	}
	repository := own("source.toolkit.fluxcd.io/v1", "GitRepository", "fleet", map[string]any{
		"interval": gitInterval.String(), "url": p.url, "ref": map[string]any{"branch": "main"},
	})
	p.createServed(ctx, repositories, repository)
	p.createServed(ctx, harness.Resource("kustomize.toolkit.fluxcd.io/v1/kustomizations"), p.kustomization("fleet", "./clusters/bench"))
}

// createServed creates an object. It retries for a minute: an API server may serve a new kind some
// moments after it has said so.
func (p *peer) createServed(ctx context.Context, of schema.GroupVersionResource, o *unstructured.Unstructured) {
	must.Limits{Patience: time.Minute, Every: looks}.Until(ctx, func(ctx context.Context) {
		must.Get(p.client.Resource(of).Namespace(fluxNamespace).Create(ctx, o, metav1.CreateOptions{}))
	})
}

// flags are the settings that Flux's documentation advises for many objects.
func (p *peer) flags() []string {
	return []string{"--concurrent=" + strconv.Itoa(p.flux.concurrent), "--kube-api-qps=500", "--kube-api-burst=1000", "--requeue-dependency=5s"}
}

// start starts both controllers.
func (p *peer) start(ctx context.Context, kubeconfig string) ([]*process.Child, error) {
	storage, folder := freeAddress(ctx), p.inMemory()
	run := func(c fluxController, more ...string) (*process.Child, error) {
		return process.StartChild(process.Spec{
			Path: p.programs.path(c), Log: filepath.Join(p.dir, c.name+".log"),
			Args: append(append(p.flags(), "--metrics-addr=127.0.0.1:0", "--health-addr=127.0.0.1:0", "--log-level=error"), more...),
			Env:  append(os.Environ(), "KUBECONFIG="+kubeconfig, "RUNTIME_NAMESPACE="+fluxNamespace, "TMPDIR="+folder),
		}, nil)
	}
	controllers := fluxControllers()
	source, err := run(controllers[0], "--storage-path="+folder, "--storage-addr="+storage, "--storage-adv-addr="+storage)
	if err != nil {
		return nil, err
	}
	kustomize, err := run(controllers[1])
	if err != nil {
		return []*process.Child{source}, err
	}
	return []*process.Child{source, kustomize}, nil
}

// inMemory makes a folder in /dev/shm, or in the folder of the run if /dev/shm does not exist.
func (p *peer) inMemory() string {
	parent := "/dev/shm"
	if _, err := os.Stat(parent); err != nil {
		parent = p.dir
	}
	folder := must.Get(os.MkdirTemp(parent, "keelson-apply-"))
	p.scratch = append(p.scratch, folder)
	return folder
}

// freeAddress returns an unused loopback address. The advertised address of artifacts must be known
// before source-controller starts.
func freeAddress(ctx context.Context) string {
	l := must.Get((&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0"))
	address := l.Addr().String()
	must.Do(l.Close())
	return address
}

// requestFetch requests a fetch of git.
func (p *peer) requestFetch(ctx context.Context) {
	patch := fmt.Appendf(nil, `{"metadata": {"annotations": {"reconcile.fluxcd.io/requestedAt": %q}}}`, time.Now().Format(time.RFC3339Nano))
	must.Get(p.client.Resource(repositories).Namespace(fluxNamespace).Patch(ctx, "fleet", types.MergePatchType, patch, metav1.PatchOptions{}))
}
