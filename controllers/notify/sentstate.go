package notify

import (
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"

	"github.com/keelson-io/keelson/api/v1alpha1"
)

// sentState is what a notification has sent. Anything that is not in it was not sent.
type sentState struct {
	// At is when the world was last compared.
	At metav1.Time
	// Serial is how many messages were taken, or refused for good.
	Serial   int64
	Rollouts map[string]sentRollout // by component
	// Deliveries that are failing, held or blocked.
	Deliveries map[place]state
	// Warned are the keys of the warnings; nil if a version without warnings stored it.
	Warned map[place]string
}

// same reports whether both have sent the same, whatever At is.
func (t sentState) same(o sentState) bool {
	return t.Serial == o.Serial && maps.Equal(t.Deliveries, o.Deliveries) && (t.Warned == nil) == (o.Warned == nil) && maps.Equal(t.Warned, o.Warned) && equality.Semantic.DeepEqual(t.Rollouts, o.Rollouts)
}

// SentStateName returns the name of the ConfigMap, in the hub, that stores what a notification of a
// fleet has sent. Several fleets may share a hub.
func SentStateName(fleet, notification string) string {
	sum := sha256.Sum256([]byte(fleet))
	return "keelson-told-" + hex.EncodeToString(sum[:4]) + "-" + notification
}

const (
	// sentStateKey is the key in the ConfigMap.
	sentStateKey = "told.json.gz"
	// maxSentState bounds the unpacked data, in bytes: 60,000 failing deliveries are 2 MB.
	maxSentState = 64 << 20
)

// written is the stored form of told: it has each frequent name once.
type written struct {
	At       metav1.Time            `json:"at"`
	Serial   int64                  `json:"serial"`
	Rollouts map[string]sentRollout `json:"rollouts,omitempty"`
	// Deliveries are the clusters by event and component.
	Deliveries map[v1alpha1.NotificationEvent]map[string][]string `json:"deliveries,omitempty"`
	// Warned are the clusters by component and key. It is stored even if it is empty.
	Warned map[string]map[string][]string `json:"warned"`
}

func encodeSentState(t sentState) ([]byte, error) {
	w := written{At: t.At, Serial: t.Serial, Rollouts: t.Rollouts, Deliveries: map[v1alpha1.NotificationEvent]map[string][]string{}}
	for at, is := range t.Deliveries {
		add(w.Deliveries, is.event(), at.component, at.cluster)
	}
	if t.Warned != nil {
		w.Warned = map[string]map[string][]string{}
	}
	for at, key := range t.Warned {
		add(w.Warned, at.component, key, at.cluster)
	}
	var b bytes.Buffer
	packed := gzip.NewWriter(&b)
	if err := json.NewEncoder(packed).Encode(w); err != nil {
		return nil, fmt.Errorf("encode what was told: %w", err)
	}
	if err := packed.Close(); err != nil {
		return nil, fmt.Errorf("encode what was told: %w", err)
	}
	return b.Bytes(), nil
}

// add inserts a cluster into its sorted list.
func add[K comparable](lists map[K]map[string][]string, key K, name, cluster string) {
	if lists[key] == nil {
		lists[key] = map[string][]string{}
	}
	i, _ := slices.BinarySearch(lists[key][name], cluster)
	lists[key][name] = slices.Insert(lists[key][name], i, cluster)
}

func decodeSentState(data []byte) (sentState, error) {
	packed, err := gzip.NewReader(bytes.NewReader(data))
	if err != nil {
		return sentState{}, fmt.Errorf("read what was told: %w", err)
	}
	var w written
	if err := json.NewDecoder(io.LimitReader(packed, maxSentState)).Decode(&w); err != nil {
		return sentState{}, fmt.Errorf("read what was told: %w", err)
	}
	t := sentState{At: w.At, Serial: w.Serial, Rollouts: w.Rollouts, Deliveries: map[place]state{}}
	for _, is := range []state{failing, held, blocked} {
		for component, clusters := range w.Deliveries[is.event()] {
			for _, cluster := range clusters {
				t.Deliveries[place{cluster, component}] = is
			}
		}
	}
	if w.Warned != nil {
		t.Warned = map[place]string{}
	}
	for component, keys := range w.Warned {
		for key, clusters := range keys {
			for _, cluster := range clusters {
				t.Warned[place{cluster, component}] = key
			}
		}
	}
	return t, nil
}

// sentStateStore stores what was sent, in a ConfigMap of the hub.
type sentStateStore struct {
	configMaps typedcorev1.ConfigMapInterface
	fleet      string
	name       string // of the notification
	object     *corev1.ConfigMap
}

// read returns what was sent. there is false if nothing was ever stored.
func (m *sentStateStore) read(ctx context.Context) (t sentState, there bool, err error) {
	c, err := m.configMaps.Get(ctx, SentStateName(m.fleet, m.name), metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		m.object = nil
		return sentState{}, false, nil
	}
	if err != nil {
		return sentState{}, false, fmt.Errorf("read ConfigMap %s: %w", SentStateName(m.fleet, m.name), err)
	}
	m.object = c
	t, err = decodeSentState(c.BinaryData[sentStateKey])
	if err != nil {
		return sentState{}, false, fmt.Errorf("ConfigMap %s: %w", c.Name, err)
	}
	return t, true, nil
}

// write stores what was sent, if no other process has written meanwhile.
func (m *sentStateStore) write(ctx context.Context, t sentState) error {
	data, err := encodeSentState(t)
	if err != nil {
		return err
	}
	next := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{
		Name: SentStateName(m.fleet, m.name), Namespace: v1alpha1.Namespace,
		Annotations: map[string]string{v1alpha1.AnnotationFleet: m.fleet},
	}}
	write := func() (*corev1.ConfigMap, error) {
		return m.configMaps.Create(ctx, next, metav1.CreateOptions{FieldManager: v1alpha1.FieldManager})
	}
	if m.object != nil {
		next = m.object.DeepCopy()
		write = func() (*corev1.ConfigMap, error) {
			return m.configMaps.Update(ctx, next, metav1.UpdateOptions{FieldManager: v1alpha1.FieldManager})
		}
	}
	next.BinaryData = map[string][]byte{sentStateKey: data}
	is, err := write()
	if err != nil {
		return fmt.Errorf("write ConfigMap %s: %w", next.Name, err)
	}
	m.object = is
	return nil
}

// remove deletes what was stored: git no longer has the notification.
func (m *sentStateStore) remove(ctx context.Context) error {
	err := m.configMaps.Delete(ctx, SentStateName(m.fleet, m.name), metav1.DeleteOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("delete ConfigMap %s: %w", SentStateName(m.fleet, m.name), err)
	}
	return nil
}

// summary counts what a notification does not send, since it was so at its begin.
func (t sentState) summary() string {
	var parts []string
	for _, is := range []state{failing, held, blocked} {
		n := 0
		for _, s := range t.Deliveries {
			if s == is {
				n++
			}
		}
		if n > 0 {
			parts = append(parts, fmt.Sprintf("%s: %d", is.event(), n))
		}
	}
	if len(t.Warned) > 0 {
		parts = append(parts, fmt.Sprintf("%s: %d", v1alpha1.DeliveryWarned, len(t.Warned)))
	}
	return strings.Join(append(parts, fmt.Sprintf("rollouts: %d", len(t.Rollouts))), ", ")
}
