package gitmemory_test

import (
	"bytes"
	"crypto/rand"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"

	"github.com/keelson-io/keelson/api/v1alpha1"
	"github.com/keelson-io/keelson/applier/apiservertest"
	"github.com/keelson-io/keelson/controllers/gitmemory"
	"github.com/keelson-io/keelson/registry/gitrepo"
)

// TestMemory is what registry needs of a memory, on a hub that is new: not even Keelson's
// namespace is there.
func TestMemory(t *testing.T) {
	t.Parallel()
	apiservertest.Each(t, apiservertest.Versions()[:1], func(t *testing.T, start func(*testing.T) *apiservertest.Server) {
		hub := start(t).Config
		one, other := open(t, hub, "https://git.example/one.git"), open(t, hub, "https://git.example/other.git")
		core, err := corev1client.NewForConfig(hub)
		if err != nil {
			t.Fatal(err)
		}
		maps := core.ConfigMaps(v1alpha1.Namespace)

		if k, err := one.Read(t.Context(), "heads"); err != nil || len(k.Data) != 0 || k.Version != "" {
			t.Fatalf("a new hub has %v (%v)", k, err)
		}
		if _, err := one.Write(t.Context(), "heads", "7", []byte("x")); !errors.Is(err, gitrepo.ErrMemoryChanged) {
			t.Errorf("what is not there has no version: %v", err)
		}
		first := write(t, one, "", "a")
		if _, err := one.Write(t.Context(), "heads", "", []byte("b")); !errors.Is(err, gitrepo.ErrMemoryChanged) {
			t.Errorf("it is there: %v", err)
		}
		second := write(t, one, first.Version, "b")
		if _, err := one.Write(t.Context(), "heads", first.Version, []byte("c")); !errors.Is(err, gitrepo.ErrMemoryChanged) {
			t.Errorf("the version is an older one: %v", err)
		}

		// Another repository has the same ConfigMap.
		k, err := other.Read(t.Context(), "heads")
		if err != nil || len(k.Data) != 0 {
			t.Fatalf("the other repository has %v (%v)", k, err)
		}
		write(t, other, k.Version, "other")
		if _, err := one.Write(t.Context(), "heads", second.Version, []byte("c")); !errors.Is(err, gitrepo.ErrMemoryChanged) {
			t.Errorf("to look again is what it takes: %v", err)
		}
		if k, err = one.Read(t.Context(), "heads"); err != nil || string(k.Data) != "b" {
			t.Errorf("it has %q (%v)", k.Data, err)
		}
		write(t, one, k.Version, "c")
		if k, err := other.Read(t.Context(), "heads"); err != nil || string(k.Data) != "other" {
			t.Errorf("the other has %q (%v)", k.Data, err)
		}

		// Ten at once count to ten.
		var wg sync.WaitGroup
		var lost atomic.Int64
		for range 10 {
			wg.Go(func() { lost.Add(count(t, open(t, hub, "https://git.example/count.git"))) })
		}
		wg.Wait()
		if k, err := open(t, hub, "https://git.example/count.git").Read(t.Context(), "tags-0"); err != nil || len(k.Data) != 10 {
			t.Errorf("they counted to %d (%v); %d writes came too late", len(k.Data), err, lost.Load())
		}

		// As much as two repositories keep under one name at most, and nothing can be packed.
		for _, m := range []*gitmemory.Memory{one, other} {
			data := make([]byte, 500_100)
			_, _ = rand.Read(data) // never fails
			k, err := m.Read(t.Context(), "tags-1")
			if err == nil {
				_, err = m.Write(t.Context(), "tags-1", k.Version, data)
			}
			if err == nil {
				k, err = m.Read(t.Context(), "tags-1")
			}
			if err != nil || !bytes.Equal(k.Data, data) {
				t.Errorf("it has %d bytes (%v)", len(k.Data), err)
			}
		}

		// What is damaged is not nothing, and who deletes it is noticed.
		c, err := maps.Get(t.Context(), "keelson-git-heads", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		for key := range c.BinaryData {
			c.BinaryData[key] = []byte("{}")
		}
		if c, err = maps.Update(t.Context(), c, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		if _, err := one.Read(t.Context(), "heads"); err == nil || !strings.Contains(err.Error(), "keelson-system/keelson-git-heads is damaged") {
			t.Errorf("the error is %v", err)
		}
		if err := maps.Delete(t.Context(), c.Name, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		if _, err := one.Write(t.Context(), "heads", c.ResourceVersion, []byte("d")); !errors.Is(err, gitrepo.ErrMemoryChanged) {
			t.Errorf("it was deleted: %v", err)
		}
		write(t, one, "", "d")
		named(t, maps)
	})
}

func open(t *testing.T, hub *rest.Config, url string) *gitmemory.Memory {
	t.Helper()
	m, err := gitmemory.New(hub, url)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func write(t *testing.T, m *gitmemory.Memory, version, data string) gitrepo.MemoryEntry {
	t.Helper()
	k, err := m.Write(t.Context(), "heads", version, []byte(data))
	if err != nil || string(k.Data) != data || k.Version == "" || k.Version == version {
		t.Fatalf("it wrote %v (%v)", k, err)
	}
	return k
}

// count adds one to what many add to, and returns how often others were faster.
func count(t *testing.T, m *gitmemory.Memory) (lost int64) {
	t.Helper()
	for {
		k, err := m.Read(t.Context(), "tags-0")
		if err == nil {
			_, err = m.Write(t.Context(), "tags-0", k.Version, append(bytes.Clone(k.Data), '+'))
		}
		switch {
		case err == nil:
			return lost
		case !errors.Is(err, gitrepo.ErrMemoryChanged):
			t.Error(err)
			return lost
		}
		lost++
	}
}

// named holds that roles can name each ConfigMap, and that no component may have one.
func named(t *testing.T, maps corev1client.ConfigMapInterface) {
	t.Helper()
	list, err := maps.List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	known := map[string]bool{}
	for _, name := range gitmemory.Names() {
		known[name] = true
		if !v1alpha1.IsOwn(corev1.GroupName, "ConfigMap", v1alpha1.Namespace, name) {
			t.Errorf("a component may have the ConfigMap %s", name)
		}
	}
	for _, c := range list.Items {
		if strings.HasPrefix(c.Name, "keelson-git-") && !known[c.Name] {
			t.Errorf("no role names the ConfigMap %s", c.Name)
		}
	}
}
