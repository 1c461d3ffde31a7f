// Package gitmemory keeps the history of a fleet repository in the hub: the accepted heads of
// branches, and the commits of tags when first seen. All replicas share it, and it outlives their
// cache folders. So a server that shows an older branch to a new pod is detected. See
// docs/decisions/009 and 057.
package gitmemory

import (
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"

	"github.com/keelson-io/keelson/api/v1alpha1"
	"github.com/keelson-io/keelson/registry/gitrepo"
)

const (
	prefix = "keelson-git-"
	// maxKept bounds unpacked data in bytes. The registry keeps half of that under one name.
	maxKept = 1 << 20
)

// Names returns the names of all ConfigMaps in the hub, for any repositories.
func Names() []string {
	names := gitrepo.MemoryNames()
	for i := range names {
		names[i] = prefix + names[i]
	}
	return names
}

// Memory implements [gitrepo.Memory] for one repository.
type Memory struct {
	core corev1client.CoreV1Interface
	key  string // identifies the repository in each ConfigMap
	url  string
}

// New returns the memory of a repository in a hub, without making a call. The URL must not contain
// a password.
func New(hub *rest.Config, url string) (*Memory, error) {
	core, err := corev1client.NewForConfig(hub)
	if err != nil {
		return nil, fmt.Errorf("memory of %s: %w", url, err)
	}
	sum := sha256.Sum256([]byte(url))
	return &Memory{core: core, key: hex.EncodeToString(sum[:16]), url: url}, nil
}

// Read implements [gitrepo.Memory].
func (m *Memory) Read(ctx context.Context, name string) (gitrepo.MemoryEntry, error) {
	c, err := m.get(ctx, prefix+name)
	if err != nil || c == nil {
		return gitrepo.MemoryEntry{}, err
	}
	data, err := unpack(c.BinaryData[m.key])
	if err != nil {
		return gitrepo.MemoryEntry{}, fmt.Errorf("ConfigMap %s/%s is damaged: %w", c.Namespace, c.Name, err)
	}
	return gitrepo.MemoryEntry{Data: data, Version: c.ResourceVersion}, nil
}

func (m *Memory) get(ctx context.Context, name string) (*corev1.ConfigMap, error) {
	c, err := m.core.ConfigMaps(v1alpha1.Namespace).Get(ctx, name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err) && !apierrors.HasStatusCause(err, metav1.CauseTypeUnexpectedServerResponse):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("read ConfigMap %s/%s in the hub: %w", v1alpha1.Namespace, name, err)
	}
	return c, nil
}

// Write implements [gitrepo.Memory]. Entries of other repositories in the same ConfigMap stay
// unchanged.
func (m *Memory) Write(ctx context.Context, name, version string, data []byte) (gitrepo.MemoryEntry, error) {
	packed, err := pack(data)
	if err != nil {
		return gitrepo.MemoryEntry{}, err
	}
	c, err := m.get(ctx, prefix+name)
	if err != nil {
		return gitrepo.MemoryEntry{}, err
	}
	if c == nil && version != "" || c != nil && c.ResourceVersion != version {
		return gitrepo.MemoryEntry{}, gitrepo.ErrMemoryChanged
	}
	if c == nil {
		c, err = m.create(ctx, &corev1.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{Name: prefix + name, Namespace: v1alpha1.Namespace},
			BinaryData: map[string][]byte{m.key: packed}, Data: map[string]string{m.key + ".url": m.url},
		})
	} else {
		next := c.DeepCopy()
		if next.BinaryData == nil {
			next.BinaryData = map[string][]byte{}
		}
		next.BinaryData[m.key] = packed
		c, err = m.core.ConfigMaps(v1alpha1.Namespace).Update(ctx, next, metav1.UpdateOptions{FieldManager: v1alpha1.FieldManager})
	}
	switch {
	case apierrors.IsConflict(err), apierrors.IsAlreadyExists(err), apierrors.IsNotFound(err):
		return gitrepo.MemoryEntry{}, gitrepo.ErrMemoryChanged
	case err != nil:
		return gitrepo.MemoryEntry{}, fmt.Errorf("write ConfigMap %s/%s in the hub: %w", v1alpha1.Namespace, prefix+name, err)
	}
	return gitrepo.MemoryEntry{Data: bytes.Clone(data), Version: c.ResourceVersion}, nil
}

// create makes a ConfigMap, and in a new hub its namespace.
func (m *Memory) create(ctx context.Context, c *corev1.ConfigMap) (*corev1.ConfigMap, error) {
	options := metav1.CreateOptions{FieldManager: v1alpha1.FieldManager}
	made, err := m.core.ConfigMaps(c.Namespace).Create(ctx, c, options)
	if !apierrors.IsNotFound(err) {
		return made, err //nolint:wrapcheck // Write says it
	}
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: c.Namespace}}
	if _, err := m.core.Namespaces().Create(ctx, namespace, metav1.CreateOptions{FieldManager: v1alpha1.FieldManager}); err != nil && !apierrors.IsAlreadyExists(err) {
		return nil, fmt.Errorf("create Namespace %s: %w", c.Namespace, err)
	}
	return m.core.ConfigMaps(c.Namespace).Create(ctx, c, options) //nolint:wrapcheck // Write says it
}

func pack(data []byte) ([]byte, error) {
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	if _, err := w.Write(data); err != nil {
		return nil, fmt.Errorf("pack what is kept: %w", err)
	}
	if err := w.Close(); err != nil {
		return nil, fmt.Errorf("pack what is kept: %w", err)
	}
	return b.Bytes(), nil
}

// unpack reverses pack; no data gives nil.
func unpack(data []byte) ([]byte, error) {
	if len(data) == 0 {
		return nil, nil
	}
	r, err := gzip.NewReader(bytes.NewReader(data))
	if err != nil {
		return nil, err //nolint:wrapcheck // Read says it
	}
	out, err := io.ReadAll(io.LimitReader(r, maxKept+1))
	if err == nil && len(out) > maxKept {
		err = fmt.Errorf("it has more than %d bytes", maxKept)
	}
	return out, err
}
