package applier

import (
	"context"
	"crypto/rand"
	"fmt"
	"sync"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/dynamic"

	"github.com/keelson-io/keelson/api/v1alpha1"
	"github.com/keelson-io/keelson/applier/records"
)

// maskKeyName is the Secret with the name of the API server's cluster, and with the key of the
// hashes in records. It is read before anything is planned.
const maskKeyName = "mask-key"

// The keys of that Secret.
const (
	keyMask    = "key"
	keyCluster = "cluster" // the cluster's name in git; empty: not set yet
	keyUID     = "uid"     // UID of the Namespace kube-system when the name was set
)

// AnyCluster is stored instead of a name when an administrator lets several clusters share one API
// server.
const AnyCluster = "*"

// OtherClusterError reports that a connection leads to the API server of another cluster.
type OtherClusterError struct {
	Cluster string // the connection's cluster
	Other   string // the API server's cluster
}

func (e *OtherClusterError) Error() string {
	return fmt.Sprintf("its connection leads to the API server of cluster %s, according to the Secret %s/%s there: nothing is read or changed there. "+
		"Mend the connection of %s. If that is what git calls the cluster now, let it take the name: "+
		`kubectl -n %s patch secret %s --type=json -p='[{"op":"remove","path":"/data/%s"}]'`,
		e.Other, v1alpha1.Namespace, maskKeyName, e.Cluster, v1alpha1.Namespace, maskKeyName, keyCluster)
}

// clusterName makes sure that an API server is that of the cluster, and holds the key of its
// records. Both are in one Secret of the cluster.
type clusterName struct {
	name       string
	secrets    records.Secrets
	client     dynamic.Interface
	namespaces *namespaces

	mu  sync.Mutex
	key []byte // nil: not read yet
	// named: the Secret has this cluster's name. It got the name when kube-system had the UID
	// namedUID. sure: the name was confirmed for this API server.
	named, sure bool
	namedUID    string
}

// reset forgets what was read.
func (c *clusterName) reset() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.key, c.named, c.sure = nil, false, false
}

// maskKey returns the key of the hashes that stand for Secret data in this cluster, or nil before
// [clusterName.prepare] has made it. It never leaves the cluster and the process. The error is an
// [*OtherClusterError] when the API server is of another cluster.
func (c *clusterName) maskKey(ctx context.Context) ([]byte, error) {
	c.mu.Lock()
	key := c.key
	c.mu.Unlock()
	if key != nil {
		return key, nil
	}
	s, err := c.readName(ctx)
	if err != nil || s == nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.key, c.named = s.Data[keyMask], s.names(c.name)
	c.namedUID = string(s.Data[keyUID])
	c.sure = string(s.Data[keyCluster]) == AnyCluster
	return c.key, nil
}

// sureOfName reports whether the stored name was set for this API server. A cluster restored from a
// backup has the name of the original, and would accept the original's name for itself. The UID of
// kube-system shows the difference. A positive answer is remembered.
func (c *clusterName) sureOfName(ctx context.Context) (bool, error) {
	c.mu.Lock()
	named, uidThen, sure := c.named, c.namedUID, c.sure
	c.mu.Unlock()
	if !named || sure {
		return named, nil
	}
	uid, err := c.uid(ctx)
	if err != nil {
		return false, err
	}
	sure = uid == "" || uid == uidThen
	c.mu.Lock()
	defer c.mu.Unlock()
	c.sure = sure
	return sure, nil
}

// nameSecret is the Secret with the cluster's name.
type nameSecret struct{ *corev1.Secret }

// names reports whether the Secret allows a cluster of this name.
func (s nameSecret) names(cluster string) bool {
	is := string(s.Data[keyCluster])
	return is == cluster || is == AnyCluster
}

// readName reads the Secret with the cluster's name, and fails when it names another cluster; nil:
// there is no Secret yet.
func (c *clusterName) readName(ctx context.Context) (*nameSecret, error) {
	found, err := c.secrets.Get(ctx, maskKeyName)
	if err != nil {
		return nil, err
	}
	if found == nil {
		return nil, nil
	}
	s := nameSecret{found}
	if len(s.Data[keyMask]) == 0 {
		return nil, fmt.Errorf("the Secret %s/%s has no key", v1alpha1.Namespace, maskKeyName)
	}
	other := string(s.Data[keyCluster])
	if other == "" || s.names(c.name) {
		return &s, nil
	}
	// A copy of the Secret, from a backup restored elsewhere, says nothing about this cluster.
	uid, err := c.uid(ctx)
	if err != nil {
		return nil, err
	}
	if was := string(s.Data[keyUID]); was == "" || uid == "" || was == uid {
		return nil, &OtherClusterError{Cluster: c.name, Other: other}
	}
	return &s, nil
}

// uid returns the UID of the Namespace kube-system, which differs between clusters; empty: it may
// not be read, or does not exist.
func (c *clusterName) uid(ctx context.Context) (string, error) {
	system, err := c.client.Resource(namespaceMapping().Resource).Get(ctx, metav1.NamespaceSystem, metav1.GetOptions{})
	switch {
	case apierrors.IsForbidden(err), apierrors.IsNotFound(err):
		return "", nil
	case err != nil:
		return "", fmt.Errorf("read Namespace %s: %w", metav1.NamespaceSystem, err)
	}
	return string(system.GetUID()), nil
}

// prepare makes the cluster ready for records: the namespace, the key, and the name of the cluster.
// The error is an [*OtherClusterError] when the API server is of another cluster.
func (c *clusterName) prepare(ctx context.Context) error {
	if _, err := c.maskKey(ctx); err != nil {
		return err
	}
	if sure, err := c.sureOfName(ctx); err != nil || sure {
		return err
	}
	if err := c.namespaces.ensure(ctx, v1alpha1.Namespace); err != nil {
		return err
	}
	err := c.storeName(ctx)
	if err != nil && !apierrors.IsAlreadyExists(err) && !apierrors.IsConflict(err) {
		return err // else another session was first, and its name counts
	}
	c.mu.Lock()
	c.key = nil // so that it is read again
	c.mu.Unlock()
	key, err := c.maskKey(ctx)
	if err == nil && key == nil {
		err = fmt.Errorf("the Secret %s/%s was deleted just now", v1alpha1.Namespace, maskKeyName)
	}
	return err
}

// storeName stores the cluster's name, and a key if there is none.
func (c *clusterName) storeName(ctx context.Context) error {
	s, err := c.readName(ctx)
	if err != nil || s != nil && string(s.Data[keyCluster]) == AnyCluster {
		return err
	}
	uid, err := c.uid(ctx)
	if err != nil || s != nil && s.names(c.name) && string(s.Data[keyUID]) == uid {
		return err
	}
	next := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: maskKeyName, Namespace: v1alpha1.Namespace}, Type: "keelson.io/key"}
	if s != nil {
		next = s.Secret
	} else {
		key := make([]byte, 32)
		if _, err := rand.Read(key); err != nil {
			return fmt.Errorf("make a key: %w", err)
		}
		next.Data = map[string][]byte{keyMask: key}
	}
	next.Data[keyCluster], next.Data[keyUID] = []byte(c.name), []byte(uid)
	_, err = c.secrets.Write(ctx, next)
	return err
}
