package renderer_test

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"filippo.io/age"
	"github.com/google/go-cmp/cmp"

	"github.com/keelson-io/keelson/registry"
	"github.com/keelson-io/keelson/registry/gitrepo"
	"github.com/keelson-io/keelson/registry/sops"
	"github.com/keelson-io/keelson/renderer"
	"github.com/keelson-io/keelson/renderer/redact"
)

// keyring counts how often it is asked.
type keyring struct {
	sops.Keys
	asked atomic.Int32
}

func (k *keyring) Identities() ([]age.Identity, error) {
	k.asked.Add(1)
	return k.Keys.Identities()
}

func newKeyring(t *testing.T, file string) *keyring {
	t.Helper()
	return &keyring{Keys: sops.Keys{File: file}}
}

const testKey = "../registry/sops/testdata/keys.txt"

// sealedFleet is a fleet with testdata/sealed/FILE at each of the paths, and
// two clusters.
func sealedFleet(t *testing.T, files map[string]string) *registry.Fleet {
	t.Helper()
	dir := t.TempDir()
	write := func(name, content string) {
		path := filepath.Join(dir, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(path), 0o750); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	const head = "apiVersion: keelson.io/v1alpha1\nkind: "
	write("fleet.yaml", head+"Fleet\nname: test\n")
	write("components/app/component.yaml", head+"Component\nnamespace: app\n")
	write("components/app/template/Chart.yaml", "apiVersion: v2\nname: app\nversion: 1.0.0\n")
	write("components/app/template/values.yaml", "password: none\nuser: none\nlevel: info\n")
	write("components/app/template/templates/app.yaml", `apiVersion: v1
kind: Secret
metadata: {name: app}
stringData:
  user: {{ .Values.user | quote }}
  password: {{ .Values.password | quote }}
  level: {{ .Values.level | quote }}
`)
	for _, cluster := range []string{"a", "b"} {
		write("clusters/"+cluster+"/cluster.yaml", head+"Cluster\nlabels: {stage: testing}\nconnection: {context: "+cluster+"}\n")
		write("clusters/"+cluster+"/app.yaml", head+"MetaConfig\nversion: HEAD\n")
	}
	for path, content := range files {
		write(path, content)
	}
	for _, args := range [][]string{{"init", "-q"}, {"add", "-A"}, {"-c", "user.name=x", "-c", "user.email=x@example.com", "commit", "-qm", "x"}} {
		c := exec.CommandContext(t.Context(), "git", args...)
		c.Dir = dir
		if out, err := c.CombinedOutput(); err != nil {
			t.Fatalf("git %s: %v\n%s", args, err, out)
		}
	}
	repo, err := registry.Open(t.Context(), gitrepo.Options{URL: dir, CacheDir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	fleet, err := repo.Load(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	if len(fleet.Problems) > 0 {
		t.Fatal(fleet.Problems)
	}
	return fleet
}

func sealed(t *testing.T, name string) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("testdata", "sealed", name))
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// requestOf is what is rendered for a delivery.
func requestOf(f *registry.Fleet, cluster string) renderer.Request {
	d := f.Cluster(cluster).Delivery("app")
	return renderer.Request{Version: d.Version, Values: d.Values, Capabilities: renderer.DefaultCapabilities()}
}

// secretData is what the one Secret of a target holds.
func secretData(t *testing.T, target *renderer.Target) map[string]any {
	t.Helper()
	if len(target.Objects) != 1 {
		t.Fatalf("%d objects, want 1", len(target.Objects))
	}
	data, _ := target.Objects[0].Content["stringData"].(map[string]any)
	return data
}

// TestUnsealingMerges: files are decrypted before they are merged.
func TestUnsealingMerges(t *testing.T) {
	t.Parallel()
	f := sealedFleet(t, map[string]string{
		"layers/10-secrets.yaml": sealed(t, "layer.yaml"),
		"layers/20-clear.yaml":   "apiVersion: keelson.io/v1alpha1\nkind: Layer\nclusterSelector: {}\ncomponents: {app: {values: {level: debug}}}\n",
		"clusters/b/app.yaml":    sealed(t, "meta.yaml"),
	})
	keys := newKeyring(t, testKey)
	r := renderer.NewUnsealing(renderer.New(), keys)
	for cluster, want := range map[string]map[string]any{
		"a": {"user": "layer-user", "password": "layer-password", "level": "debug"},
		"b": {"user": "layer-user", "password": "own-password", "level": "debug"},
	} {
		target, err := r.Render(t.Context(), requestOf(f, cluster))
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, secretData(t, target)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", cluster, diff)
		}
		if got := hiding(target).Text("is it layer-password?"); got != "is it ***?" {
			t.Errorf("%s: a text is %q: what a value overrides is as secret", cluster, got)
		}
	}
	if n := keys.asked.Load(); n != 2 {
		t.Errorf("%d files were decrypted, want 2: each once", n)
	}
}

// TestUnsealingBehindACache: what the cache knows is what stands in git.
func TestUnsealingBehindACache(t *testing.T) {
	t.Parallel()
	meta := sealed(t, "meta.yaml")
	f := sealedFleet(t, map[string]string{"clusters/a/app.yaml": meta, "clusters/b/app.yaml": meta})
	cache := renderer.NewCache(renderer.NewUnsealing(renderer.New(), newKeyring(t, testKey)), 1<<20)
	first, err := cache.Render(t.Context(), requestOf(f, "a"))
	if err != nil {
		t.Fatal(err)
	}
	second, err := cache.Render(t.Context(), requestOf(f, "b"))
	if err != nil {
		t.Fatal(err)
	}
	if first != second || cache.Stats().Misses != 1 {
		t.Errorf("%d renders, want 1: the files are the same", cache.Stats().Misses)
	}

	// The same values in a file that was changed elsewhere: it is verified by
	// itself.
	g := sealedFleet(t, map[string]string{
		"clusters/a/app.yaml": meta,
		"clusters/b/app.yaml": strings.Replace(meta, "paused: false", "paused: true", 1),
	})
	if _, err := cache.Render(t.Context(), requestOf(g, "a")); err != nil {
		t.Fatal(err)
	}
	_, err = cache.Render(t.Context(), requestOf(g, "b"))
	var failed *renderer.Error
	if !errors.As(err, &failed) || failed.Transient || failed.At.File != "clusters/b/app.yaml" || !strings.Contains(err.Error(), "MAC does not match") {
		t.Errorf("error %v; want a lasting one that names the file that was changed", err)
	}
}

// TestUnsealingWaitsForAKey: a key that is missing may come, without a restart
// and without a commit; who needs none goes on meanwhile.
func TestUnsealingWaitsForAKey(t *testing.T) {
	t.Parallel()
	f := sealedFleet(t, map[string]string{"clusters/b/app.yaml": sealed(t, "meta.yaml")})
	file := filepath.Join(t.TempDir(), "keys.txt")
	cache := renderer.NewCache(renderer.NewUnsealing(renderer.New(), newKeyring(t, file)), 1<<20)

	if _, err := cache.Render(t.Context(), requestOf(f, "a")); err != nil {
		t.Errorf("a cluster without encrypted values: %v", err)
	}
	other, err := os.ReadFile("../registry/sops/testdata/other-keys.txt")
	if err != nil {
		t.Fatal(err)
	}
	right, err := os.ReadFile(testKey)
	if err != nil {
		t.Fatal(err)
	}
	for _, keys := range []string{"", "# nothing yet\n", string(other), "AGE-SECRET-KEY-1NONSENSE\n"} {
		if keys != "" {
			write(t, file, keys)
		}
		_, err := cache.Render(t.Context(), requestOf(f, "b"))
		var failed *renderer.Error
		if !errors.As(err, &failed) || !failed.Transient || !errors.Is(err, renderer.ErrNoKey) || failed.At.File != "clusters/b/app.yaml" {
			t.Errorf("with keys %.20q: error %v; want a transient one that names the file", keys, err)
		}
	}
	write(t, file, string(right))
	if _, err := cache.Render(t.Context(), requestOf(f, "b")); err != nil {
		t.Errorf("with the key: %v", err)
	}
	// What is decrypted stays, whatever becomes of the key.
	write(t, file, "")
	if _, err := cache.Render(t.Context(), requestOf(f, "b")); err != nil {
		t.Errorf("once more without it: %v", err)
	}
}

func write(t *testing.T, file, content string) {
	t.Helper()
	if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}

// TestUnsealingHash: the hash of a target stands in statuses, so it must not
// confirm a guess at a password. It is the same in each process.
func TestUnsealingHash(t *testing.T) {
	t.Parallel()
	f := sealedFleet(t, map[string]string{"clusters/a/app.yaml": sealed(t, "meta.yaml")})
	render := func(r renderer.Renderer, q renderer.Request) string {
		target, err := r.Render(t.Context(), q)
		if err != nil {
			t.Fatal(err)
		}
		return target.Hash
	}
	hash := render(renderer.NewUnsealing(renderer.New(), newKeyring(t, testKey)), requestOf(f, "a"))
	again := render(renderer.NewUnsealing(renderer.New(), newKeyring(t, testKey)), requestOf(f, "a"))
	if hash != again {
		t.Errorf("hashes %s and %s of one target", hash, again)
	}
	guess := requestOf(f, "a")
	guess.Values = registry.ValuesFrom(map[string]any{"password": "own-password"})
	if guessed := render(renderer.New(), guess); guessed == hash {
		t.Error("who guesses the password sees that it is right")
	}
}

// TestUnsealingRedacts everything that another renderer may say.
func TestUnsealingRedacts(t *testing.T) {
	t.Parallel()
	f := sealedFleet(t, map[string]string{"clusters/a/app.yaml": sealed(t, "meta.yaml")})
	const leak = "it is own-password"
	cases := map[string]struct {
		err       error
		transient bool
		cause     error
	}{
		"Lasting":   {err: &renderer.Error{Message: leak, Err: errors.New(leak)}},
		"Transient": {err: &renderer.Error{Message: leak, Transient: true, Err: context.Canceled}, transient: true, cause: context.Canceled},
		"Foreign":   {err: errors.New(leak), transient: true},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := renderer.NewUnsealing(failing{tc.err}, newKeyring(t, testKey))
			_, err := r.Render(t.Context(), requestOf(f, "a"))
			var failed *renderer.Error
			if !errors.As(err, &failed) {
				t.Fatalf("error %v of type %T", err, err)
			}
			for e := err; e != nil; e = errors.Unwrap(e) {
				if strings.Contains(e.Error(), "own-password") {
					t.Errorf("it tells the password: %v", e)
				}
			}
			if failed.Message != "it is ***" || failed.Transient != tc.transient || !errors.Is(failed.Err, tc.cause) {
				t.Errorf("error %#v", failed)
			}
		})
	}
}

// failing is a renderer that fails.
type failing struct{ err error }

func (f failing) Render(context.Context, renderer.Request) (*renderer.Target, error) {
	return nil, f.err
}

// TestUnsealingAndDisk: on whichever side of the decryption a disk is put, it
// holds nothing that was decrypted.
func TestUnsealingAndDisk(t *testing.T) {
	t.Parallel()
	f := sealedFleet(t, map[string]string{"clusters/a/app.yaml": sealed(t, "meta.yaml")})
	disk := func(next renderer.Renderer, folder string) renderer.Renderer {
		return openDisk(t, next, folder, "v1", 1<<20)
	}
	unsealing := func(next renderer.Renderer) renderer.Renderer {
		return renderer.NewUnsealing(next, newKeyring(t, testKey))
	}
	for name, order := range map[string]func(folder string) renderer.Renderer{
		"Before": func(folder string) renderer.Renderer { return disk(unsealing(renderer.New()), folder) },
		"Behind": func(folder string) renderer.Renderer { return unsealing(disk(renderer.New(), folder)) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			folder := t.TempDir()
			r := order(folder)
			for cluster, want := range map[string]string{"a": "own-password", "b": "none"} {
				target, err := r.Render(t.Context(), requestOf(f, cluster))
				if err != nil {
					t.Fatal(err)
				}
				if got := secretData(t, target)["password"]; got != want {
					t.Errorf("%s: password %v, want %s", cluster, got, want)
				}
			}
			files, err := filepath.Glob(filepath.Join(folder, "*"))
			if err != nil || len(files) != 1 {
				t.Fatalf("%d files, %v; want that of the cluster without secrets alone", len(files), err)
			}
			data, err := os.ReadFile(files[0])
			if err != nil || strings.Contains(string(data), "own-password") {
				t.Errorf("the file holds the password, or can't be read: %v", err)
			}
		})
	}
}

func hiding(t *renderer.Target) *redact.Redactor {
	r := redact.New()
	r.Set("", "", func() []redact.Value { return t.Hidden() })
	return r
}
