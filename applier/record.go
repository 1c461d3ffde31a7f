package applier

import (
	"bytes"
	"compress/gzip"
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"

	"github.com/keelson-io/keelson/api/v1alpha1"
	"github.com/keelson-io/keelson/differ"
)

const (
	recordPrefix = "record-"
	recordLabel  = "keelson.io/record" // its value is the component
	recordFormat = 1
	// recordPacked keeps the Secret under the API server's 1 MiB with room for
	// its metadata.
	recordPacked = 1000 << 10
	// recordLimit bounds what a record unpacks to: it is read from a cluster.
	recordLimit = 256 << 20
	maskKeyName = "mask-key"
	// historyLength is how many deliveries a record remembers.
	historyLength = 10
)

// Record is what Keelson remembers in a cluster of one component there.
type Record struct {
	Format    int    `json:"format"`
	Component string `json:"component"`
	// Version, Tree, Revision and TargetHash of the last delivery that was
	// applied in whole; empty before the first.
	Version    string `json:"version,omitempty"`
	Tree       string `json:"tree,omitempty"`
	Revision   string `json:"revision,omitempty"`
	TargetHash string `json:"targetHash,omitempty"`
	// Objects are the inventory, in the order of their IDs.
	Objects []RecordedObject `json:"objects"`
	// History of deliveries, the newest first.
	History []HistoryEntry `json:"history,omitempty"`
}

// RecordedObject is one object of the inventory.
type RecordedObject struct {
	differ.ID  `json:",inline"`
	APIVersion string `json:"apiVersion"`
	// UID is empty while the object is only intended.
	UID string `json:"uid,omitempty"`
	// Content as applied, Secret data as keyed hashes.
	Content map[string]any `json:"content"`
	// Normal holds the hashes of the differences that the API server makes of
	// the content by itself.
	Normal []string `json:"normal,omitempty"`
	// Intended marks an object that was about to be created when the record
	// was written: it may or may not exist.
	Intended bool `json:"intended,omitempty"`
}

// HistoryEntry is one delivery that was applied in whole.
type HistoryEntry struct {
	Number     int       `json:"number"`
	Time       time.Time `json:"time"`
	Version    string    `json:"version"`
	Revision   string    `json:"revision"`
	TargetHash string    `json:"targetHash"`
	Created    int       `json:"created,omitempty"`
	Updated    int       `json:"updated,omitempty"`
	Deleted    int       `json:"deleted,omitempty"`
}

// record is a Record with the resourceVersion of its Secret, empty before the
// first write.
type record struct {
	Record
	version string
}

func secretResource() schema.GroupVersionResource {
	return corev1.SchemeGroupVersion.WithResource("secrets")
}

func (c *Cluster) secrets() dynamic.ResourceInterface {
	return c.dynamic.Resource(secretResource()).Namespace(v1alpha1.Namespace)
}

// Record returns what the cluster remembers of a component; the zero Objects
// and History when nothing was ever applied.
func (c *Cluster) Record(ctx context.Context, component string) (Record, error) {
	r, err := c.readRecord(ctx, component)
	if err != nil {
		return Record{}, err
	}
	return r.Record, nil
}

// Recorded returns the components that have a record in the cluster, in order.
func (c *Cluster) Recorded(ctx context.Context) ([]string, error) {
	list, err := c.secrets().List(ctx, metav1.ListOptions{LabelSelector: recordLabel})
	if err != nil {
		return nil, fmt.Errorf("cluster %s: list records: %w", c.name, err)
	}
	names := map[string]bool{}
	for i := range list.Items {
		names[list.Items[i].GetLabels()[recordLabel]] = true
	}
	return slices.Sorted(maps.Keys(names)), nil
}

// readRecord returns the record as this process last read or wrote it. Another
// writer is noticed when the record is written: its resourceVersion is stale.
func (c *Cluster) readRecord(ctx context.Context, component string) (*record, error) {
	c.mu.Lock()
	r := c.records[component]
	c.mu.Unlock()
	if r != nil {
		return r, nil
	}
	r, err := c.fetchRecord(ctx, component)
	if err != nil {
		return nil, fmt.Errorf("cluster %s: record of %s: %w", c.name, component, err)
	}
	c.remember(r)
	return r, nil
}

func (c *Cluster) remember(r *record) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.records[r.Component] = r
}

// forgetRecord makes the next read ask the cluster.
func (c *Cluster) forgetRecord(component string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.records, component)
}

func (c *Cluster) fetchRecord(ctx context.Context, component string) (*record, error) {
	r := &record{Record: Record{Format: recordFormat, Component: component}}
	s, err := c.getSecret(ctx, recordPrefix+component)
	if err != nil || s == nil {
		return r, err
	}
	r.version = s.ResourceVersion
	if err := unpack(s.Data["record"], &r.Record); err != nil {
		return nil, fmt.Errorf("decode Secret %s/%s: %w", s.Namespace, s.Name, err)
	}
	if r.Format != recordFormat {
		return nil, fmt.Errorf("the record has format %d, and this version of Keelson knows %d: upgrade Keelson", r.Format, recordFormat)
	}
	return r, nil
}

// getSecret returns one of Keelson's own Secrets, or nil when there is none.
func (c *Cluster) getSecret(ctx context.Context, name string) (*corev1.Secret, error) {
	u, err := c.secrets().Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read Secret %s/%s: %w", v1alpha1.Namespace, name, err)
	}
	var s corev1.Secret
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, &s); err != nil {
		return nil, fmt.Errorf("decode Secret %s/%s: %w", v1alpha1.Namespace, name, err)
	}
	return &s, nil
}

func pack(r Record) ([]byte, error) {
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	if err := json.NewEncoder(z).Encode(r); err != nil {
		return nil, fmt.Errorf("encode record: %w", err)
	}
	if err := z.Close(); err != nil {
		return nil, fmt.Errorf("compress record: %w", err)
	}
	return b.Bytes(), nil
}

func unpack(data []byte, into *Record) error {
	z, err := gzip.NewReader(bytes.NewReader(data))
	if err != nil {
		return fmt.Errorf("decompress: %w", err)
	}
	plain, err := io.ReadAll(io.LimitReader(z, recordLimit+1))
	if err != nil {
		return fmt.Errorf("decompress: %w", err)
	}
	if len(plain) > recordLimit {
		return fmt.Errorf("unpacks to more than %d bytes", recordLimit)
	}
	// Numbers must come out as an API server's do: whole ones as int64.
	var u struct {
		*Record
		Objects []struct {
			RecordedObject
			Content json.RawMessage `json:"content"`
		} `json:"objects"`
	}
	u.Record = into
	if err := json.Unmarshal(plain, &u); err != nil {
		return fmt.Errorf("decode: %w", err)
	}
	into.Objects = make([]RecordedObject, len(u.Objects))
	for i, o := range u.Objects {
		into.Objects[i] = o.RecordedObject
		content := &unstructured.Unstructured{}
		if err := content.UnmarshalJSON(o.Content); err != nil {
			return fmt.Errorf("decode %s: %w", o.ID, err)
		}
		into.Objects[i].Content = content.Object
	}
	return nil
}

// writeRecord replaces the record in the cluster. A conflict means that
// somebody else writes, too.
func (c *Cluster) writeRecord(ctx context.Context, old *record, content Record) (*record, error) {
	packed, err := pack(content)
	if err != nil {
		return nil, err
	}
	if len(packed) > recordPacked {
		return nil, fmt.Errorf("cluster %s: the record of %s takes %d bytes, more than the %d that fit into a Secret: split the component",
			c.name, content.Component, len(packed), recordPacked)
	}
	version, err := c.writeSecret(ctx, corev1.Secret{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Secret"},
		ObjectMeta: metav1.ObjectMeta{
			Name: recordPrefix + content.Component, Namespace: v1alpha1.Namespace,
			Labels: map[string]string{recordLabel: content.Component},
		},
		Type: "keelson.io/record", Data: map[string][]byte{"record": packed},
	}, old.version)
	if err != nil {
		c.forgetRecord(content.Component)
		return nil, fmt.Errorf("cluster %s: record of %s: %w", c.name, content.Component, err)
	}
	next := &record{Record: content, version: version}
	c.remember(next)
	return next, nil
}

// writeSecret creates the Secret, or replaces the one with the given
// resourceVersion.
func (c *Cluster) writeSecret(ctx context.Context, s corev1.Secret, version string) (string, error) {
	s.ResourceVersion = version
	object, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&s)
	if err != nil {
		return "", fmt.Errorf("encode Secret %s: %w", s.Name, err)
	}
	u := &unstructured.Unstructured{Object: object}
	if version != "" {
		u, err = c.secrets().Update(ctx, u, metav1.UpdateOptions{FieldManager: v1alpha1.FieldManager})
	} else {
		u, err = c.secrets().Create(ctx, u, metav1.CreateOptions{FieldManager: v1alpha1.FieldManager})
	}
	if err != nil {
		return "", fmt.Errorf("write Secret %s/%s: %w", s.Namespace, s.Name, err)
	}
	return u.GetResourceVersion(), nil
}

// key returns the key of the hashes that stand for Secret data in this
// cluster. It never leaves the cluster and the process.
func (c *Cluster) key(ctx context.Context) ([]byte, error) {
	c.mu.Lock()
	key := c.maskKey
	c.mu.Unlock()
	if key != nil {
		return key, nil
	}
	key, err := c.fetchKey(ctx)
	if err != nil {
		return nil, fmt.Errorf("cluster %s: key of the record: %w", c.name, err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.maskKey = key
	return key, nil
}

func (c *Cluster) fetchKey(ctx context.Context) ([]byte, error) {
	s, err := c.getSecret(ctx, maskKeyName)
	if err != nil || s == nil {
		return nil, err
	}
	if len(s.Data["key"]) == 0 {
		return nil, fmt.Errorf("the Secret %s/%s has no key", v1alpha1.Namespace, maskKeyName)
	}
	return s.Data["key"], nil
}

// Prepare makes the cluster ready to hold records: the namespace and the key.
// An apply does so too, but what was planned before must then be planned again.
func (c *Cluster) Prepare(ctx context.Context) error {
	key, err := c.key(ctx)
	if err != nil || key != nil {
		return err
	}
	if err := c.ensureNamespace(ctx, v1alpha1.Namespace); err != nil {
		return err
	}
	key = make([]byte, 32)
	if _, err := rand.Read(key); err != nil {
		return fmt.Errorf("make a key: %w", err)
	}
	_, err = c.writeSecret(ctx, corev1.Secret{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Secret"},
		ObjectMeta: metav1.ObjectMeta{Name: maskKeyName, Namespace: v1alpha1.Namespace},
		Type:       "keelson.io/key", Data: map[string][]byte{"key": key},
	}, "")
	if apierrors.IsAlreadyExists(err) {
		key, err = c.fetchKey(ctx) // another component's first apply won
	}
	if err != nil {
		return fmt.Errorf("cluster %s: %w", c.name, err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.maskKey = key
	return nil
}

// ensureNamespace creates a namespace that does not exist. It is nobody's
// inventory: Keelson never deletes it.
func (c *Cluster) ensureNamespace(ctx context.Context, name string) error {
	namespaces := c.dynamic.Resource(corev1.SchemeGroupVersion.WithResource("namespaces"))
	_, err := namespaces.Get(ctx, name, metav1.GetOptions{})
	if err == nil {
		return nil
	}
	if !apierrors.IsNotFound(err) {
		return fmt.Errorf("cluster %s: read Namespace %s: %w", c.name, name, err)
	}
	u := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "v1", "kind": "Namespace", "metadata": map[string]any{"name": name},
	}}
	_, err = namespaces.Create(ctx, u, metav1.CreateOptions{FieldManager: v1alpha1.FieldManager})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("cluster %s: create Namespace %s: %w", c.name, name, err)
	}
	return nil
}
