// Package hostiletest has the test of a controller one of whose clusters is run by an
// attacker. It is a package of its own because it measures memory: nothing else may run in
// its process, and so the attacker has another.
package hostiletest_test

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"math"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"runtime/metrics"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/keelson-io/keelson/api/v1alpha1"
	"github.com/keelson-io/keelson/applier"
	"github.com/keelson-io/keelson/applier/apiservertest"
	"github.com/keelson-io/keelson/applier/records"
	"github.com/keelson-io/keelson/controllers/connect"
	"github.com/keelson-io/keelson/controllers/delivery"
	"github.com/keelson-io/keelson/registry"
	"github.com/keelson-io/keelson/registry/gitrepo"
	"github.com/keelson-io/keelson/renderer"
	"github.com/keelson-io/keelson/renderer/redact"
)

const (
	patience = 3 * time.Minute
	// most is how much more memory a controller may take because of a hostile cluster.
	most = 64 << 20
)

// server is the hub and the first honest cluster, and other is the second; nil in -short
// runs.
var server, other *rest.Config

// attackEnv names the attack in the process that is the attacker, and hubEnv is the URL of
// the hub there.
const attackEnv, hubEnv = "HOSTILE_ATTACK", "HOSTILE_HUB"

func TestMain(m *testing.M) {
	if name := os.Getenv(attackEnv); name != "" {
		serve(name)
		return
	}
	os.Exit(apiservertest.Main(m, func(config *rest.Config) { server = config }))
}

// attack is what a hostile API server answers instead of what an honest one does; it reports
// whether it has answered.
type attack func(w http.ResponseWriter, r *http.Request) bool

// TestHostileCluster: of three clusters one is run by an attacker. Whatever its API server
// answers, changes reach the other two, and the controller takes at most 64 MiB more.
func TestHostileCluster(t *testing.T) { //nolint:paralleltest // it measures memory
	apiservertest.Need(t, server)
	second, err := apiservertest.Start(os.Getenv(apiservertest.EnvAssets))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := second.Stop(); err != nil {
			t.Error(err)
		}
	})
	other = second.Config
	f := newFleet(t)
	honest := f.run("Honest")
	t.Logf("with an honest cluster: %d MiB", honest>>20)
	for _, a := range attacks("") {
		t.Run(a.name, func(t *testing.T) { //nolint:paralleltest // as above
			g := *f
			g.t = t
			took := g.run(a.name)
			t.Logf("%d MiB more", (took-honest)>>20)
			if took > honest+most {
				t.Errorf("%s\nthe controller took %d MiB, and %d MiB with an honest cluster", a.why, took>>20, honest>>20)
			}
		})
	}
}

type namedAttack struct {
	name, why string
	attack    attack
}

// attacks are all of them. The hub is the server that a redirect leads to.
func attacks(hub string) []namedAttack {
	at := func(part string, do func(http.ResponseWriter, *http.Request)) attack {
		return func(w http.ResponseWriter, r *http.Request) bool {
			if !strings.Contains(r.URL.RequestURI(), part) {
				return false
			}
			do(w, r)
			return true
		}
	}
	var bomb bytes.Buffer
	z := gzip.NewWriter(&bomb)
	repeat(z, nil, `{"a":`, 16<<20)
	_ = z.Close() // into memory
	schemas := func(text string, n int) func(http.ResponseWriter, *http.Request) {
		return func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/openapi/v3" {
				_, _ = io.WriteString(w, `{"paths":{"api/v1":{"serverRelativeURL":"/openapi/v3/api/v1?hash=00"}}}`)
				return
			}
			_, _ = io.WriteString(w, `{"components":{"schemas":{"a":{"allOf":[`)
			repeat(w, nil, text, n)
			_, _ = io.WriteString(w, `{}]}}}}`)
		}
	}
	endless := func(begin, text string) func(http.ResponseWriter, *http.Request) {
		return func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.WriteString(w, begin)
			repeat(w, r, text, 1<<40)
		}
	}
	object := func(i int, size int) string {
		return fmt.Sprintf(`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"a%d","namespace":"hostile","uid":"%d","resourceVersion":"%d","labels":{%q:"evil"}},"data":{"a":%q}}`,
			i, i, i+1, v1alpha1.LabelComponent, strings.Repeat("x", size))
	}
	return []namedAttack{
		{"EndlessVersion", "It is asked for before all else.", at("/version", endless("", " "))},
		{"EndlessDiscovery", "It may never end.", at("/apis", endless(`{"items":[`, `{"metadata":{"name":"a"}},`))},
		{"EndlessObject", "An object may never end.", at("/configmaps/", endless(`{"apiVersion":"v1","kind":"ConfigMap","data":{"a":"`, "x"))},
		{"ObjectOfValues", "Bytes are not all that memory is.", at("/configmaps/", endless(`{"apiVersion":"v1","kind":"ConfigMap","data":[`, "{},"))},
		{"EndlessSecrets", "Records are read by a client with types.", at("/secrets", endless(`{"kind":"SecretList","apiVersion":"v1","items":[`, "{},"))},
		{"EndlessText", "Whatever it is.", at("/", endless("", "x"))},
		{"GzipBomb", "What is counted is what comes out.", at("/", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Encoding", "gzip")
			_, _ = w.Write(bomb.Bytes())
		})},
		{"Protobuf", "Its values can't be counted.", at("/secrets", func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", "application/vnd.kubernetes.protobuf")
			repeat(w, r, "\x12\x00", 64<<20)
		})},
		{"Headers", "They are read as a whole.", at("/", func(w http.ResponseWriter, _ *http.Request) {
			for i := range 8000 {
				w.Header().Set(fmt.Sprint("X-", i), strings.Repeat("x", 1000))
			}
		})},
		{"Redirects", "A cluster does not choose what the hub asks.", at("/", func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, hub+r.URL.RequestURI(), http.StatusTemporaryRedirect)
		})},
		{"SlowDrip", "An answer that comes byte by byte holds up no other cluster.", at("/", func(w http.ResponseWriter, r *http.Request) {
			for tick := time.NewTicker(10 * time.Millisecond); ; {
				_, _ = io.WriteString(w, " ")
				_ = http.NewResponseController(w).Flush()
				select {
				case <-r.Context().Done():
					return
				case <-tick.C:
				}
			}
		})},
		{"WrongSchemas", "A document takes a hundred times its text while it is parsed.", at("/openapi/", schemas(`{},`, 1<<20))},
		{"LargestSchemas", "One that is as large as may be.", at("/openapi/", schemas(`{},`, 3*39_000))},
		{"ForgedRecords", "A Secret of 31 KiB became 737 MiB.", at("labelSelector="+strings.ReplaceAll(records.Label, "/", "%2F"), func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Query().Get("watch") != "" {
				<-r.Context().Done()
				return
			}
			recordPage(w, r)
		})},
		{"ManyObjects", "A cluster may claim any number of objects.", at("/configmaps?", func(w http.ResponseWriter, r *http.Request) {
			list := r.URL.Query().Get("watch") == ""
			if list {
				_, _ = io.WriteString(w, `{"kind":"ConfigMapList","apiVersion":"v1","metadata":{"resourceVersion":"1"},"items":[`)
			}
			for i := 0; i < 100_000 && r.Context().Err() == nil; i++ {
				if list {
					_, _ = io.WriteString(w, object(i, 1000)+",")
				} else {
					_, _ = io.WriteString(w, `{"type":"ADDED","object":`+object(i, 1000)+"}\n")
				}
			}
			_, _ = io.WriteString(w, `{}]}`)
		})},
		{"LargeObjects", "They may be few, and large.", at("/configmaps?", func(w http.ResponseWriter, r *http.Request) {
			for i := 0; i < 100 && r.Context().Err() == nil; i++ {
				_, _ = io.WriteString(w, `{"type":"ADDED","object":`+object(i, 1<<20)+"}\n")
			}
		})},
		{"EndlessPages", "There may always be a next one.", func(w http.ResponseWriter, r *http.Request) bool {
			q := r.URL.Query()
			if !q.Has("limit") && !q.Has("labelSelector") || q.Get("watch") != "" && !q.Has("sendInitialEvents") {
				return false
			}
			if q.Get("watch") != "" { // the client lists then
				failure(w, http.StatusUnprocessableEntity, metav1.StatusReasonInvalid)
				return true
			}
			_, _ = fmt.Fprintf(w, `{"kind":"List","apiVersion":"v1","metadata":{"resourceVersion":"1","continue":"%d"},"items":[]}`, time.Now().UnixNano())
			return true
		}},
	}
}

// repeat writes a text until n bytes were written, or the reader stops.
func repeat(w io.Writer, r *http.Request, text string, n int) {
	chunk := strings.Repeat(text, 1+(32<<10)/len(text))
	for written := 0; written < n && (r == nil || r.Context().Err() == nil); {
		some, err := io.WriteString(w, chunk[:min(len(chunk), (n-written+len(text)-1)/len(text)*len(text))])
		if written += some; err != nil {
			return
		}
	}
}

// recordPage answers with a page of records, each of which unpacks to 32 MiB, and names the
// next page.
func recordPage(w http.ResponseWriter, r *http.Request) {
	var packed bytes.Buffer
	z := gzip.NewWriter(&packed)
	_, _ = io.WriteString(z, `{"format":2,"component":"x","objects":[{"kind":"ConfigMap","name":"a","namespace":"b","apiVersion":"v1","content":{"apiVersion":"v1","kind":"ConfigMap","data":[`)
	repeat(z, nil, "{},", 32<<20)
	_, _ = io.WriteString(z, `{}]}}]}`)
	_ = z.Close()
	list := corev1.SecretList{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "SecretList"}}
	list.ResourceVersion = "1"
	if r.URL.Query().Get("continue") == "" {
		list.Continue = "next"
	}
	for i := range 10 {
		name := fmt.Sprintf("c%s%d", list.Continue, i)
		list.Items = append(list.Items, corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Name: "record-" + name, Namespace: v1alpha1.Namespace, ResourceVersion: "1", Labels: map[string]string{records.Label: name}},
			Data:       map[string][]byte{"record": packed.Bytes()},
		})
	}
	_ = json.NewEncoder(w).Encode(list)
}

func failure(w http.ResponseWriter, code int32, reason metav1.StatusReason) {
	w.WriteHeader(int(code))
	_ = json.NewEncoder(w).Encode(metav1.Status{
		TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: metav1.StatusFailure, Reason: reason, Code: code, Details: &metav1.StatusDetails{},
	})
}

// serve is the process of the attacker. It says where it is, and where its counts are, and
// ends with its input.
func serve(name string) {
	e := &evil{objects: map[string][]byte{}}
	for _, a := range attacks(os.Getenv(hubEnv)) {
		if a.name == name {
			e.attack = a.attack
		}
	}
	api := httptest.NewServer(e)
	counts := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_ = json.NewEncoder(w).Encode(counts{e.asked.Load(), e.attacked.Load()})
	}))
	_, _ = fmt.Println(api.URL, counts.URL)
	_, _ = io.Copy(io.Discard, os.Stdin)
}

// counts are of the requests to an attacker, and of the answers that were attacks and have
// ended.
type counts struct{ Asked, Attacked int64 }

// attacker starts its process.
func (f *fleet) attacker(name string) (at string, count func() counts) {
	f.t.Helper()
	c := exec.CommandContext(f.t.Context(), os.Args[0])
	c.Env = append(os.Environ(), attackEnv+"="+name, hubEnv+"="+server.Host)
	c.Stderr = os.Stderr
	in, err := c.StdinPipe()
	if err != nil {
		f.t.Fatal(err)
	}
	out, err := c.StdoutPipe()
	if err != nil {
		f.t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(func() {
		_ = in.Close()
		_ = c.Wait() // it may have been killed with the test's context
	})
	var ask string
	if _, err := fmt.Fscanln(out, &at, &ask); err != nil {
		f.t.Fatalf("the attacker says where it is: %v", err)
	}
	return at, func() (n counts) {
		f.t.Helper()
		r, err := http.NewRequestWithContext(f.t.Context(), http.MethodGet, ask, nil)
		if err != nil {
			f.t.Fatal(err)
		}
		answer, err := http.DefaultClient.Do(r)
		if err != nil {
			f.t.Fatal(err)
		}
		defer func() { _ = answer.Body.Close() }()
		if err := json.NewDecoder(answer.Body).Decode(&n); err != nil {
			f.t.Fatal(err)
		}
		return n
	}
}

// evil is an API server that takes everything and shows nothing in its lists, but for its
// attack. It counts the answers of that which have ended.
type evil struct {
	attack   attack
	attacked atomic.Int64
	asked    atomic.Int64

	mu      sync.Mutex
	objects map[string][]byte // by path
}

// write stores an object and answers with it.
func (e *evil) write(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	o, _, err := scheme.Codecs.UniversalDeserializer().Decode(body, nil, nil)
	if err != nil {
		failure(w, http.StatusBadRequest, metav1.StatusReasonBadRequest)
		return
	}
	m, err := meta.Accessor(o)
	if err != nil {
		failure(w, http.StatusBadRequest, metav1.StatusReasonBadRequest)
		return
	}
	path := r.URL.Path
	if r.Method == http.MethodPost {
		path += "/" + m.GetName()
		w.WriteHeader(http.StatusCreated)
	}
	m.SetUID(types.UID(path))
	m.SetResourceVersion(fmt.Sprint(e.asked.Load()))
	text, _ := json.Marshal(o)
	if !r.URL.Query().Has("dryRun") {
		e.mu.Lock()
		e.objects[path] = text
		e.mu.Unlock()
	}
	_, _ = w.Write(text)
}

func (e *evil) read(w http.ResponseWriter, r *http.Request) {
	e.mu.Lock()
	text, found := e.objects[r.URL.Path]
	e.mu.Unlock()
	if !found {
		failure(w, http.StatusNotFound, metav1.StatusReasonNotFound)
		return
	}
	_, _ = w.Write(text)
}

// ServeHTTP implements [http.Handler].
func (e *evil) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	e.asked.Add(1)
	if e.attack != nil && e.attack(w, r) {
		e.attacked.Add(1)
		return
	}
	const groups = `{"kind":"APIGroupDiscoveryList","apiVersion":"apidiscovery.k8s.io/v2","items":[%s]}`
	resource := func(name, kind, scope string) string {
		return fmt.Sprintf(`{"resource":%q,"responseKind":{"group":"","version":"v1","kind":%q},"scope":%q,"verbs":["get","list","watch","create","patch","delete"]}`, name, kind, scope)
	}
	switch q := r.URL.Query(); {
	case r.URL.Path == "/version":
		_, _ = io.WriteString(w, `{"gitVersion":"v1.36.0"}`)
	case r.URL.Path == "/api":
		w.Header().Set("Content-Type", "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList")
		_, _ = fmt.Fprintf(w, groups, `{"metadata":{"name":""},"versions":[{"version":"v1","resources":[`+
			resource("configmaps", "ConfigMap", "Namespaced")+","+resource("secrets", "Secret", "Namespaced")+","+resource("namespaces", "Namespace", "Cluster")+`]}]}`)
	case r.URL.Path == "/apis":
		w.Header().Set("Content-Type", "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList")
		_, _ = fmt.Fprintf(w, groups, "")
	case r.URL.Path == "/openapi/v3":
		_, _ = io.WriteString(w, `{"paths":{}}`)
	case q.Get("watch") != "":
		if q.Get("sendInitialEvents") != "" {
			_, _ = io.WriteString(w, `{"type":"BOOKMARK","object":{"apiVersion":"v1","kind":"ConfigMap","metadata":{"resourceVersion":"1","annotations":{"`+metav1.InitialEventsAnnotationKey+`":"true"}}}}`+"\n")
		}
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
	case r.Method == http.MethodGet && strings.HasSuffix(r.URL.Path, "s") && !strings.HasSuffix(r.URL.Path, "/keelson-intents"): // of a kind, or of a resource below one
		_, _ = io.WriteString(w, `{"kind":"List","apiVersion":"v1","metadata":{"resourceVersion":"1"},"items":[]}`)
	case r.Method == http.MethodGet:
		e.read(w, r)
	case r.Method == http.MethodDelete:
		failure(w, http.StatusForbidden, metav1.StatusReasonForbidden)
	default:
		e.write(w, r)
	}
}

// fleet has three clusters, each with a component of its own.
type fleet struct {
	t      *testing.T
	folder string
	hub    client.Client
	second client.Client
	round  *int
}

func newFleet(t *testing.T) *fleet {
	t.Helper()
	f := &fleet{t: t, folder: t.TempDir(), round: new(int)}
	for _, c := range []struct {
		into *client.Client
		of   *rest.Config
	}{{&f.hub, server}, {&f.second, other}} {
		var err error
		if *c.into, err = client.New(c.of, client.Options{}); err != nil {
			t.Fatal(err)
		}
	}
	const head = "apiVersion: keelson.io/v1alpha1\nkind: "
	f.write("fleet.yaml", head+"Fleet\nname: hostile\n")
	for _, name := range []string{"first", "second", "evil"} {
		f.write("clusters/"+name+"/cluster.yaml", head+"Cluster\nconnection: {context: "+name+"}\n")
		f.write("components/"+name+"/component.yaml", head+"Component\nnamespace: hostile\n")
		f.write("components/"+name+"/template/Chart.yaml", "apiVersion: v2\nname: "+name+"\nversion: 1.0.0\n")
		f.write("components/"+name+"/template/templates/a.yaml", "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\ndata: {text: {{ .Values.text }}}\n")
	}
	f.git("init", "-q", "-b", "main")
	f.want("begin")
	for _, name := range []string{"first", "second", "evil"} {
		f.git("tag", name+"/v1.0.0")
	}
	return f
}

func (f *fleet) write(name, content string) {
	f.t.Helper()
	path := filepath.Join(f.folder, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		f.t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		f.t.Fatal(err)
	}
}

func (f *fleet) git(args ...string) {
	f.t.Helper()
	c := exec.CommandContext(f.t.Context(), "git", append([]string{"-c", "user.name=t", "-c", "user.email=t@example.com"}, args...)...)
	c.Dir = f.folder
	if out, err := c.CombinedOutput(); err != nil {
		f.t.Fatalf("git %v: %v\n%s", args, err, out)
	}
}

// want has git want a text in all clusters.
func (f *fleet) want(text string) {
	f.t.Helper()
	for _, name := range []string{"first", "second", "evil"} {
		f.write("clusters/"+name+"/"+name+".yaml", "apiVersion: keelson.io/v1alpha1\nkind: MetaConfig\nversion: v1.0.0\nvalues: {text: "+text+"}\n")
	}
	f.git("add", "-A")
	f.git("commit", "-q", "-m", text)
}

// run has a controller deliver while one cluster attacks it, until changes have reached the
// other clusters and the attack was repeated. It returns the most memory that was in use.
func (f *fleet) run(name string) (peak int64) {
	t := f.t
	at, count := f.attacker(name)
	bad := connect.Source{Secrets: func(context.Context, string, string) (map[string][]byte, error) {
		return map[string][]byte{"kubeconfig": []byte(`{apiVersion: v1, kind: Config, current-context: a, contexts: [{name: a, context: {cluster: a, user: a}}],
			clusters: [{name: a, cluster: {server: "` + at + `"}}], users: [{name: a, user: {token: secret}}]}`)}, nil
	}}
	repo, err := registry.Open(t.Context(), gitrepo.Options{URL: f.folder, CacheDir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	hidden := redact.New()
	c, err := delivery.New(delivery.Options{
		Schemas: applier.NewShared(), Redactor: hidden, Repo: repo, Interval: 200 * time.Millisecond, Hub: server,
		Connect: func(ctx context.Context, of v1alpha1.Connection) (*rest.Config, error) {
			switch of.Context {
			case "first":
				return rest.CopyConfig(server), nil
			case "second":
				return rest.CopyConfig(other), nil
			default:
				return bad.Config(ctx, v1alpha1.Connection{Secret: &v1alpha1.SecretKey{Name: "evil"}})
			}
		},
		Renderer: renderer.NewCache(renderer.New(), 1<<20), Log: slog.New(slog.NewTextHandler(hidden.Writer(t.Output()), nil)),
		Now: time.Now, Registry: prometheus.NewRegistry(), Identity: "test",
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 2)
	go func() { done <- c.Run(ctx) }()
	go func() {
		for tick := time.NewTicker(20 * time.Millisecond); ctx.Err() == nil; <-tick.C {
			peak = max(peak, live())
		}
		done <- nil
	}()
	const atLeast, atMost, often = 2, 500, 2
	enough := func() bool {
		switch n := count(); name {
		case "Honest", "SlowDrip": // the answers of the one don't end, and the other has no attack
			return n.Asked > 0
		default:
			return n.Attacked >= often
		}
	}
	began := *f.round
	for *f.round-began < atLeast || !enough() {
		if *f.round-began == atMost {
			t.Fatalf("%s: after %d changes the cluster has attacked %d times", name, atMost, count().Attacked)
		}
		*f.round++
		text := fmt.Sprint("round", *f.round)
		f.want(text)
		f.eventually(name+": "+text+" reaches the other clusters", func() bool { return f.text(f.hub) == text && f.text(f.second) == text })
	}
	t.Logf("%s: %d changes, %d attacks", name, *f.round-began, count().Attacked)
	cancel()
	for range 2 {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	return peak
}

// live is what collections of garbage leave. What is allocated while one goes on counts as
// live for it, so it is the least of three.
func live() int64 {
	least := int64(math.MaxInt64)
	for range 3 {
		runtime.GC()
		sample := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
		metrics.Read(sample)
		least = min(least, int64(sample[0].Value.Uint64())) //nolint:gosec // it is not that large
	}
	return least
}

func (f *fleet) text(c client.Client) string {
	var m corev1.ConfigMap
	if err := c.Get(f.t.Context(), client.ObjectKey{Namespace: "hostile", Name: "a"}, &m); err != nil {
		return err.Error()
	}
	return m.Data["text"]
}

func (f *fleet) eventually(what string, condition func() bool) {
	f.t.Helper()
	err := wait.PollUntilContextTimeout(f.t.Context(), 50*time.Millisecond, patience, true,
		func(context.Context) (bool, error) { return condition(), nil })
	if err != nil {
		f.t.Fatalf("%s: not within %s", what, patience)
	}
}
